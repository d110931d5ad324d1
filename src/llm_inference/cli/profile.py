"""Where the native engine's time goes: a diagnosis in words, and a trace for Perfetto or TensorBoard.

Without --url a workload runs here, on one thread. With --url a running server's own next steps are profiled while it
goes on serving; that takes a key with the right `admin`.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from llm_inference.cli.options import add_config_arguments, load_model

HELP = "say where the native engine's time goes, and what to change"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser, api=False)
    look = parser.add_argument_group("profile")
    look.add_argument("--steps", type=int, default=20, metavar="N", help="steps that count (20, at most 100)")
    look.add_argument("--seconds", type=float, default=60.0, metavar="S", help="end it after that (60)")
    look.add_argument("--trace", type=Path, metavar="FILE", help="write the trace: *.json, or packed as *.json.gz")
    look.add_argument("--json", action="store_true", help="print figures and findings as JSON instead of words")
    work = parser.add_argument_group("workload, without --url")
    work.add_argument("--requests", type=int, default=8, metavar="N", help="in the engine at a time (8)")
    work.add_argument("--prompt-words", type=int, default=100, metavar="N", help="in each prompt (100)")
    work.add_argument("--output-len", type=int, default=32, metavar="N", help="tokens of each answer (32)")
    live = parser.add_argument_group("a running server")
    live.add_argument("--url", metavar="URL", help="of its API, such as http://127.0.0.1:8000/v1")
    live.add_argument("--api-key", metavar="KEY", help="one with the right `admin`")
    live.add_argument("--replica", metavar="NAME", help="which, where the model has several")


def run(args: argparse.Namespace) -> int:
    """Raises `ConfigError` for flags, and with the server's own words where it refuses."""
    from llm_inference.errors import ConfigError

    for flag, value, most in (
        ("--steps", args.steps, 100),
        ("--seconds", args.seconds, 60),
        ("--requests", args.requests, 4096),
        ("--output-len", args.output_len, 2**20),
    ):
        if not 0 < value <= most:
            raise ConfigError(f"{flag}: must be above 0 and at most {most}, not {value:g}")
    if args.prompt_words < 0:
        raise ConfigError(f"--prompt-words: must not be below 0, not {args.prompt_words}")
    if args.trace is not None and not args.trace.parent.is_dir():
        raise ConfigError(f"--trace: the folder {args.trace.parent} does not exist")
    report, trace_gz = _live(args) if args.url is not None else _here(args)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(report["text"]))
    if args.trace is not None:
        # JSON is read by programs, which want nothing behind it.
        print(_write(trace_gz, args.trace), file=sys.stderr if args.json else sys.stdout)
    return 0


def _write(trace_gz: bytes, file: Path) -> str:
    """As it is for a name that ends in .json, packed otherwise. Raises `ConfigError`."""
    from llm_inference.errors import ConfigError

    if not trace_gz:
        return "no trace: no step was recorded"
    try:
        file.write_bytes(gzip.decompress(trace_gz) if file.suffix == ".json" else trace_gz)
    except OSError as error:
        raise ConfigError(f"--trace: {file} cannot be written: {error.strerror}") from error
    return f"trace: {file} (Perfetto and TensorBoard show it)"


def _here(args: argparse.Namespace) -> tuple[dict[str, Any], bytes]:
    import msgspec

    from llm_inference.telemetry.profiling.diagnosis import diagnose
    from llm_inference.telemetry.profiling.figures import ProfileOrder
    from llm_inference.telemetry.profiling.words import described
    from llm_inference.tools import profile

    model, _ = load_model(args)
    work = profile.Workload(num_requests=args.requests, prompt_words=args.prompt_words, max_tokens=args.output_len)
    result = profile.run(model, work, ProfileOrder(num_steps=args.steps, max_s=args.seconds))
    findings = diagnose(result.profile)
    report = {
        "model": model.name,
        "findings": msgspec.to_builtins(findings),
        "text": described(result.profile, findings),
        "profile": msgspec.to_builtins(result.profile),
    }
    return report, result.trace_gz


def _live(args: argparse.Namespace) -> tuple[dict[str, Any], bytes]:
    from llm_inference.cli.admin_api import ask
    from llm_inference.errors import ConfigError

    if args.api_key is None:
        raise ConfigError("--api-key: a running server wants one with the right `admin`")
    body = {"steps": args.steps, "seconds": args.seconds, "trace": args.trace is not None}
    body |= {name: value for name, value in (("model", args.model), ("replica", args.replica)) if value is not None}
    report = ask(args, "POST", "profile", body)
    if "text" not in report:
        raise ConfigError(f"{args.url} does not answer like llm-inference")
    return report, base64.b64decode(report.pop("trace_gz", None) or "")
