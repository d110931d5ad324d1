"""`bench compare` and `bench engine`: reads flags and prints; everything else is `llm_inference.tools.compare`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_inference.tools.compare.comparison import Comparison
    from llm_inference.tools.compare.contender import Contender, Precision
    from llm_inference.tools.compare.run import CompareSettings

COMPARE_HELP = "of several engines, in turn, on the same work"
COMPARE = """Measure several contenders on the same workloads, in turn, in one run, and print ratios. A contender is a
configuration file, the name of a peer (a file in the folder of --peers), or url=http://HOST:PORT of a server that
runs. Each is started, measured and stopped before the next one starts. The exit code is 1 when one failed."""
ENGINE_HELP = "of the native engine alone, without HTTP"
ENGINE = """Measure the native engine without HTTP: its core in a process of its own, on the workloads of
`bench compare`."""
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8", "int4")
_PEERS = Path("benchmarks/peers")


def add_compare(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run_benchmark=run_compare)
    parser.add_argument("contenders", nargs="*", metavar="CONTENDER", help="FILE.yaml, a peer's name, or url=…")
    parser.add_argument(
        "--precision", metavar="CLASS", help="of configurations that say none; without contenders: which peers"
    )
    parser.add_argument("--peers", type=Path, default=_PEERS, metavar="FOLDER", help=f"of peers ({_PEERS})")
    parser.add_argument("--api-key", metavar="KEY", help="for contenders url=…; never written anywhere")
    _add_shared(parser, rounds=2)


def add_engine(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run_benchmark=run_engine)
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="a configuration file (the defaults)")
    parser.add_argument("--precision", metavar="CLASS", help="fp32, bf16, int8 or int4, where the file says none")
    _add_shared(parser, rounds=1)


def run_compare(args: argparse.Namespace) -> int:
    from llm_inference.tools.compare.contender import find_contenders

    _check_outputs(args)
    contenders = find_contenders(args.contenders, args.peers, _precisions(args.precision), api_key=args.api_key)
    return _run(args, contenders)


def run_engine(args: argparse.Namespace) -> int:
    from llm_inference.tools.compare.contender import offline_contender

    _check_outputs(args)
    return _run(args, [offline_contender(args.config, _precisions(args.precision))])


def _run(args: argparse.Namespace, contenders: list[Contender]) -> int:
    from llm_inference.tools.compare.run import compare
    from llm_inference.tools.compare.table import render

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def save(comparison: Comparison) -> None:
        if args.out is not None:
            args.out.write_bytes(comparison.to_json())

    comparison = compare(contenders, _settings(args), say=say, save=save)
    save(comparison)
    sys.stdout.write(render(comparison))
    if args.plot is not None:
        from llm_inference.tools.compare.plot import save_plot

        save_plot(comparison, args.plot)
    if comparison.interrupted:
        return 130
    return 0 if comparison.ok else 1


def _add_shared(parser: argparse.ArgumentParser, *, rounds: int) -> None:
    parser.add_argument("--workloads", default="W1,W2,W3,W4,W5", metavar="LIST", help="some of W1,W2,W3,W4,W5 (all)")
    parser.add_argument("--rounds", type=int, default=rounds, metavar="N", help=f"how often all take a turn ({rounds})")
    parser.add_argument("--limit", type=float, default=120.0, metavar="SECONDS", help="of one workload (120)")
    parser.add_argument("--tokenizer", metavar="MODEL", help="whose tokens count (the first contender's model)")
    parser.add_argument("--quick", action="store_true", help="a few small requests, to see that everything works")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything that was measured as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a .png or .svg")


def _settings(args: argparse.Namespace) -> CompareSettings:
    from llm_inference.tools.compare.run import CompareSettings

    return CompareSettings(
        workloads=tuple(name.strip() for name in args.workloads.split(",") if name.strip()),
        rounds=args.rounds,
        limit_s=args.limit,
        tokenizer=args.tokenizer,
        quick=args.quick,
    )


def _precisions(text: str | None) -> tuple[Precision, ...]:
    from llm_inference.errors import ConfigError

    found: list[Precision] = []
    for name in (text or "").split(","):
        known = [one for one in PRECISIONS if one == name.strip()]
        if not known and text is not None:
            raise ConfigError(f"--precision: {name!r} is none of {', '.join(PRECISIONS)}")
        found += known
    return tuple(found)


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse what could not be written before anything is measured."""
    from llm_inference.errors import ConfigError

    for flag, path in (("--out", args.out), ("--plot", args.plot)):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{flag}: the folder {path.parent} does not exist")
    if args.plot is not None:
        from llm_inference.tools.bench.plot import check_plot

        check_plot(args.plot)
