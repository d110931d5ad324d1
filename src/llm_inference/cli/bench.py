"""Measure: `bench serve` is a load generator for any OpenAI-compatible server; its sisters are in files of their own.

Only reads flags and prints; everything else is `llm_inference.tools.bench`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llm_inference.cli import bench_compare, bench_kernels

if TYPE_CHECKING:
    from llm_inference.tools.bench import BenchSettings, Report

HELP = "measure a server, engines side by side, or kernels"

_LENGTH = "N, LOW:HIGH (uniform) or lognormal:MEAN:STD[:MOST]"
_SERVE = """Measure a running OpenAI-compatible server as its clients see it. Start one first, such as
`llm-inference serve`. The exit code is 1 when a request failed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    _add_serve(subparsers.add_parser("serve", help="of a running OpenAI-compatible server", description=_SERVE))
    for name, help_text, description, add in (
        ("compare", bench_compare.COMPARE_HELP, bench_compare.COMPARE, bench_compare.add_compare),
        ("engine", bench_compare.ENGINE_HELP, bench_compare.ENGINE, bench_compare.add_engine),
        ("kernels", bench_kernels.HELP, bench_kernels.DESCRIPTION, bench_kernels.add_arguments),
    ):
        add(subparsers.add_parser(name, help=help_text, description=description))


def run(args: argparse.Namespace) -> int:
    code: int = args.run_benchmark(args)
    return code


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run_benchmark=_serve)
    target = parser.add_argument_group("server")
    target.add_argument("--url", required=True, help="base URL, with or without /v1")
    target.add_argument("--model", help="model to ask for (the first that the server lists)")
    target.add_argument("--api-key", metavar="KEY", help="sent as a bearer token; never written to a report")
    target.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="API to use (chat)")

    work = parser.add_argument_group("requests")
    work.add_argument("--num-prompts", type=int, metavar="N", help="requests to measure (100; of a dataset all)")
    work.add_argument("--input-len", default="256", metavar="TOKENS", help=f"prompt length: {_LENGTH} (256)")
    work.add_argument("--output-len", default="128", metavar="TOKENS", help="answer length, written likewise (128)")
    work.add_argument("--prefix-len", type=int, default=0, metavar="N", help="tokens before it, equal in all prompts")
    work.add_argument("--dataset", type=Path, metavar="FILE", help="JSONL of prompts or messages instead")
    work.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts, lengths and arrivals (0)")
    work.add_argument("--no-ignore-eos", action="store_true", help="let answers end where the model ends them")
    work.add_argument("--no-continuous-usage", action="store_true", help="count every chunk as one token")

    load = parser.add_argument_group("load")
    load.add_argument("--concurrency", type=int, metavar="N", help="clients that wait for their answers (8)")
    load.add_argument("--request-rate", type=float, metavar="R", help="send R requests a second instead, on a schedule")
    load.add_argument("--burstiness", type=float, default=1.0, metavar="SHAPE", help="of the intervals (1: Poisson)")
    load.add_argument("--warmup", type=int, default=1, metavar="N", help="requests before the measurement (1)")
    load.add_argument("--duration", type=float, metavar="SECONDS", help="send nothing new after this time")
    load.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="per request (600)")

    output = parser.add_argument_group("result")
    output.add_argument("--slo", nargs="+", metavar="METRIC:MS", help="bounds for goodput: ttft:500 tpot:50 e2el:3000")
    output.add_argument("--json", type=Path, metavar="FILE", help="write settings, versions and figures")
    output.add_argument("--save-requests", action="store_true", help="and every single request's times")
    output.add_argument("--plot", type=Path, metavar="FILE", help="draw a .png or .svg")


def _serve(args: argparse.Namespace) -> int:
    settings = _settings(args)
    _check_outputs(args)
    from llm_inference.errors import ConfigError
    from llm_inference.tools import bench
    from llm_inference.tools.bench.table import render

    report = bench.run(settings, progress=sys.stderr.isatty())
    sys.stdout.write(render(report))
    try:
        _write(args, report)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}") from error
    return 0 if report.ok else 1


def _write(args: argparse.Namespace, report: Report) -> None:
    if args.json is not None:
        args.json.write_bytes(report.to_json(with_requests=args.save_requests))
    if args.plot is not None:
        from llm_inference.tools.bench.plot import save_plot

        save_plot(report, args.plot)


def _settings(args: argparse.Namespace) -> BenchSettings:
    from llm_inference.tools.bench import BenchSettings, Lengths, Slo

    return BenchSettings(
        url=args.url,
        model=args.model,
        api_key=args.api_key,
        endpoint=args.endpoint,
        num_prompts=args.num_prompts,
        input_len=Lengths.parse(args.input_len, "--input-len"),
        output_len=Lengths.parse(args.output_len, "--output-len"),
        prefix_len=args.prefix_len,
        seed=args.seed,
        dataset=args.dataset,
        ignore_eos=not args.no_ignore_eos,
        continuous_usage=not args.no_continuous_usage,
        concurrency=args.concurrency,
        request_rate=args.request_rate,
        burstiness=args.burstiness,
        warmup=args.warmup,
        duration_s=args.duration,
        timeout_s=args.timeout,
        slo=None if args.slo is None else Slo.parse(args.slo),
    )


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse what could not be written before the load, not after it."""
    from llm_inference.errors import ConfigError

    if args.save_requests and args.json is None:
        raise ConfigError("--save-requests would have no effect without --json")
    for flag, path in (("--json", args.json), ("--plot", args.plot)):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{flag}: the folder {path.parent} does not exist")
    if args.plot is not None:
        from llm_inference.tools.bench.plot import check_plot

        check_plot(args.plot)
