"""The command `llm-inference`: finds the subcommand, turns errors into one line and an exit code.

    0 done · 1 failed while running · 2 refused at the start (`StartupError`) or a wrong flag · 130 Ctrl-C

Each command is a file with `HELP`, `add_arguments(parser)` and `run(args) -> int`; what it needs it imports inside
`run`, so that `--help` is instant.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from llm_inference.errors import LLMInferenceError, StartupError
from llm_inference.version import __version__

COMMANDS = {
    "serve": "llm_inference.cli.serve",
    "chat": "llm_inference.cli.chat",
    "run": "llm_inference.cli.run",
    "bench": "llm_inference.cli.bench",
    "engines": "llm_inference.cli.engines",
    "deploy": "llm_inference.cli.deploy",
    "keys": "llm_inference.cli.keys",
    "usage": "llm_inference.cli.usage",
    "reload": "llm_inference.cli.reload",
    "models": "llm_inference.cli.models",
    "profile": "llm_inference.cli.profile",
    "top": "llm_inference.cli.top",
    "config": "llm_inference.cli.config",
    "version": "llm_inference.cli.version",
}
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own where it is None) and return the exit code."""
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except StartupError as error:
        _complain(error)
        return error.exit_code
    except LLMInferenceError as error:
        _complain(error)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left (`… | head`); nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED


def _complain(error: LLMInferenceError) -> None:
    from llm_inference.cli.terminal import visible

    print(f"error: {visible(error.message)}", file=sys.stderr)  # it may hold what a server or a file says


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, every subcommand's flags included."""
    parser = argparse.ArgumentParser(
        prog="llm-inference",
        description="Serve language models behind an OpenAI-compatible API, or talk to one in the terminal.",
    )
    parser.add_argument("--version", action="version", version=f"llm-inference {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module_name in COMMANDS.items():
        module = import_module(module_name)
        subparser = subparsers.add_parser(name, help=module.HELP, description=(module.__doc__ or "").split("\n\n")[0])
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
