"""Answer one prompt and print nothing but the model's text.

The text goes to stdout as it comes; progress, reasoning and errors go to stderr.
"""

from __future__ import annotations

import argparse
import sys

from llm_inference.cli import options
from llm_inference.cli.sampling import add_sampling_arguments, sampling_of

HELP = "answer one prompt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help='what to say to the model; "-" reads it from stdin')
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, without a chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message before the prompt")
    add_sampling_arguments(parser)
    options.add_config_arguments(parser, api=False, model_flag=True)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from llm_inference.errors import ConfigError

    if args.raw and args.system is not None:
        raise ConfigError("--raw continues the prompt as it is; it has no place for --system")
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    return asyncio.run(_answer(args, prompt))


async def _answer(args: argparse.Namespace, prompt: str) -> int:
    from contextlib import aclosing

    from llm_inference.cli.conversation import EngineTalker, Messages
    from llm_inference.cli.terminal import Printer, configure_terminal_logging
    from llm_inference.serve import open_engine

    model, loaded = options.load_model(args)
    configure_terminal_logging(loaded, args)
    messages: Messages = [{"role": "system", "content": args.system}] if args.system is not None else []
    messages.append({"role": "user", "content": prompt})
    async with open_engine(model, progress=sys.stderr.isatty()) as engine:
        reply = EngineTalker(engine).reply(prompt if args.raw else messages, sampling_of(args))
        printer = Printer(sys.stdout, sys.stderr)
        async with aclosing(reply):
            async for delta in reply:
                printer.show(delta)
        printer.end()
    return 0
