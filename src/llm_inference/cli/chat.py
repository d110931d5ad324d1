"""Talk to a model in the terminal, or line by line through a pipe.

Commands: /clear forgets the conversation, /exit (or end of input) ends it. Ctrl-C stops an answer; at the prompt it
ends the chat. Only the model's text goes to stdout.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import TYPE_CHECKING

from llm_inference.cli import options
from llm_inference.cli.sampling import add_sampling_arguments, sampling_of

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from llm_inference.cli.conversation import Messages, Talker
    from llm_inference.cli.loop_thread import LoopThread
    from llm_inference.engine.types import SamplingParams

HELP = "talk to a model in the terminal"
PROMPT = "> "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="system message before the conversation")
    parser.add_argument("--url", help="talk to this running server instead of starting a model")
    parser.add_argument("--api-key", metavar="KEY", help="key of the server at --url")
    add_sampling_arguments(parser)
    options.add_config_arguments(parser, api=False)


def run(args: argparse.Namespace) -> int:
    from llm_inference.cli.loop_thread import LoopThread

    with LoopThread() as loop, loop.entered(_open_talker(args)) as talker:
        return Chat(talker, loop, sampling_of(args), args.system).talk(_reader())


def _open_talker(args: argparse.Namespace) -> AbstractAsyncContextManager[Talker]:
    from contextlib import asynccontextmanager

    from llm_inference.cli.conversation import EngineTalker, connect
    from llm_inference.cli.terminal import configure_terminal_logging
    from llm_inference.errors import ConfigError

    if args.url is not None:
        local = [one.flag for one in options.overrides_of(args, with_model=False)]
        local += ["--config"] if args.config is not None else []
        if local:
            raise ConfigError(f"{local[0]} is for a model started here; it has no effect on the server at --url")
        configure_terminal_logging(None, args)
        return connect(args.url, model=args.model, api_key=args.api_key)
    if args.api_key is not None:
        raise ConfigError("--api-key is the key of the server at --url; a model started here needs none")
    from llm_inference.serve import open_engine

    model, loaded = options.load_model(args)
    configure_terminal_logging(loaded, args)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Talker]:
        async with open_engine(model, progress=sys.stderr.isatty()) as engine:
            yield EngineTalker(engine)

    return opened()


def _reader() -> Callable[[], str]:
    """A function that returns the next line and raises EOFError after the last; prompts only on a terminal."""
    if not sys.stdin.isatty():
        return _read_piped
    if sys.stdout.isatty():
        import contextlib

        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 (line editing and history for input())
        return lambda: input(PROMPT)

    def prompt_on_stderr() -> str:
        print(PROMPT, end="", file=sys.stderr, flush=True)
        return _read_piped()

    return prompt_on_stderr


def _read_piped() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


class Chat:
    """The conversation so far, and the loop that continues it."""

    def __init__(self, talker: Talker, loop: LoopThread, sampling: SamplingParams, system: str | None) -> None:
        self._talker = talker
        self._loop = loop
        self._sampling = sampling
        self._opening: Messages = [{"role": "system", "content": system}] if system is not None else []
        self.messages: Messages = list(self._opening)

    def talk(self, read_line: Callable[[], str]) -> int:
        """Until /exit or the end of input; 1 when an answer failed and nobody sat there to see it, else 0."""
        failed = False
        while True:
            try:
                line = read_line().strip()
            except EOFError:
                return 1 if failed and not sys.stdin.isatty() else 0
            if line in ("/exit", "/quit"):
                return 1 if failed and not sys.stdin.isatty() else 0
            if line == "/clear":
                self.messages = list(self._opening)
                print("(forgotten)", file=sys.stderr)
            elif line:
                failed = not self._answer(line) or failed

    def _answer(self, line: str) -> bool:
        """Print the answer to `line` and remember both; a failed turn is forgotten."""
        from llm_inference.cli.terminal import Printer, visible
        from llm_inference.errors import ContextLengthError, LLMInferenceError

        asked = [*self.messages, {"role": "user", "content": line}]
        printer = Printer(sys.stdout, sys.stderr)
        finish_reason = None
        try:
            with closing(self._loop.stream(self._talker.reply(asked, self._sampling))) as deltas:
                for delta in deltas:
                    printer.show(delta)
                    finish_reason = delta.finish_reason or finish_reason
        except LLMInferenceError as error:
            if printer.text:
                printer.end()
            advice = "; /clear begins anew" if isinstance(error, ContextLengthError) else ""
            print(f"error: {visible(error.message)}{advice}", file=sys.stderr)
            return False
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            print("(stopped)", file=sys.stderr)
        printer.end()
        if finish_reason == "length" and sys.stdin.isatty():
            print("(cut: the answer reached its longest)", file=sys.stderr)
        self.messages = [*asked, {"role": "assistant", "content": printer.text}]
        return True
