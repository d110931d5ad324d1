"""Grammars of strangers are compiled in a process of their own first: what kills or eats it, kills and eats only it.

    front ──check──► GrammarGuard ──stdin──► python -m llm_inference.native.grammar_guard ──stdout──► verdict
                          │                      compiles as the core will, and makes the first mask
                          └── no verdict: the process was killed by its limits, or by the grammar; a 400

The library bounds the steps of a compilation, not what a step costs, and it recurses: a schema of 60 bytes can take a
minute and half a gigabyte, one of 60,000 bytes can overflow the stack. What passes here within the limits passes in
the core, too: the same code, the same vocabulary, a stack of half the size.

Knows nothing of requests. Both ends of the pipe are in this file, and nothing else speaks over it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import msgspec

from llm_inference.engine.types import Grammar
from llm_inference.errors import EngineError, InvalidRequestError
from llm_inference.native.grammar import GrammarCompiler, GrammarLimits
from llm_inference.native.grammar_source import FIELDS, invalid

_LENGTH: Final = struct.Struct("<I")
#: Stands for the field to blame, which the process does not know.
_PLACEHOLDER: Final = "_"
_STACK_BYTES: Final = 4 * 1024 * 1024
#: Verdicts remembered, refusals too: the same bomb is not tried twice.
_MAX_VERDICTS: Final = 256
_MAX_REMEMBERED_CHARS: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Of one check. CPU time, so that a busy machine refuses nobody; `wall_s` is for a process that hangs."""

    cpu_s: float = 1.5
    wall_s: float = 120.0
    memory_bytes: int = 512 * 1024 * 1024


class _Setup(msgspec.Struct, frozen=True):
    """The first message to the process."""

    tokenizer_json: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    cpu_s: float
    memory_bytes: int


class _Verdict(msgspec.Struct, frozen=True):
    """`refusal` None: it compiles."""

    refusal: str | None = None


class GrammarGuard:
    """Checks grammars as `GrammarCompiler.check` does, one at a time. Thread-safe; the process starts at first use."""

    def __init__(self, compiler: GrammarCompiler, limits: GuardLimits = GuardLimits()) -> None:
        self._limits = limits
        self._compiler = compiler
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._verdicts: OrderedDict[Grammar, str | None] = OrderedDict()
        self._closed = False

    def check(self, grammar: Grammar, param: str | None = None) -> None:
        """Raises `InvalidRequestError` naming `param` (default: the usual field) unless the grammar compiles."""
        with self._lock:
            if grammar not in self._verdicts:
                self._remember(grammar, self._judge(grammar))
            self._verdicts.move_to_end(grammar)
            refusal = self._verdicts[grammar]
        if refusal is not None:
            raise invalid(param or FIELDS[grammar.kind], refusal)

    def close(self) -> None:
        """End the process. A check that waits for it is refused."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        with self._lock:  # nobody reads from its pipes any more
            self._drop()

    def _judge(self, grammar: Grammar) -> str | None:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        question = msgspec.msgpack.encode(grammar)
        try:
            _write(process.stdin, question)
            if not select.select([process.stdout], [], [], self._limits.wall_s)[0]:
                raise TimeoutError
            return msgspec.msgpack.decode(_read(process.stdout), type=_Verdict).refusal
        except (OSError, EOFError, TimeoutError) as error:
            code = self._drop()
            if self._closed:
                raise EngineError("the engine is stopping") from error
            if code == -signal.SIGPROF or isinstance(error, TimeoutError):
                return f"takes more than {self._limits.cpu_s:g} s to compile, which is the limit; make it simpler"
            return "is too large or too deeply nested to be compiled; make it simpler"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._drop()
        if self._closed:
            raise EngineError("the engine is stopping")
        process = subprocess.Popen(
            [sys.executable, "-m", "llm_inference.native.grammar_guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "RUST_BACKTRACE": "0"},
            start_new_session=True,  # a terminal's Ctrl-C is for the parent, which ends this one
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        try:
            _write(process.stdin, msgspec.msgpack.encode(self._setup()))
            _read(process.stdout)
        except (OSError, EOFError) as error:
            code = self._drop()
            raise EngineError(f"the process that checks grammars ended with {code} as it started") from error
        return process

    def _setup(self) -> _Setup:
        known, limits = self._compiler, self._limits
        return _Setup(known.tokenizer_json, known.vocab_size, known.eos_token_ids, limits.cpu_s, limits.memory_bytes)

    def _drop(self) -> int | None:
        """End the process, by force if it still runs; its exit status. The lock is held."""
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return code

    def _remember(self, grammar: Grammar, refusal: str | None) -> None:
        self._verdicts[grammar] = refusal
        size = sum(len(known.source) for known in self._verdicts)
        while len(self._verdicts) > _MAX_VERDICTS or (size > _MAX_REMEMBERED_CHARS and len(self._verdicts) > 1):
            oldest, _ = self._verdicts.popitem(last=False)
            size -= len(oldest.source)


def _write(pipe: IO[bytes], payload: bytes) -> None:
    pipe.write(_LENGTH.pack(len(payload)) + payload)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    """One message. Raises `EOFError` when the other end is gone."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    payload = pipe.read(length)
    if len(payload) < length:
        raise EOFError
    return payload


# --- the process


def _verdict(compiler: GrammarCompiler, grammar: Grammar) -> _Verdict:
    """What the core will do with it: compile it, and make the first mask."""
    try:
        compiler.check(grammar, _PLACEHOLDER)
        state = compiler.start(grammar)
    except InvalidRequestError as error:
        return _Verdict(error.message.removeprefix(f"{_PLACEHOLDER}: ").rstrip("."))
    state.mask()
    return _Verdict(state.failure)


def _serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    setup = msgspec.msgpack.decode(_read(questions), type=_Setup)
    # Verdicts are remembered by the other end; grammars here would add up to the limit of memory.
    limits = GrammarLimits(cache_entries=1)
    compiler = GrammarCompiler(setup.tokenizer_json, setup.vocab_size, setup.eos_token_ids, limits)
    compiler.warm_up()
    compiler.check(Grammar("json_object", "{}"))
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + setup.memory_bytes, resource.RLIM_INFINITY))
    _write(answers, b"")
    while True:
        grammar = msgspec.msgpack.decode(_read(questions), type=Grammar)
        signal.setitimer(signal.ITIMER_PROF, setup.cpu_s)  # SIGPROF ends the process
        verdict = _verdict(compiler, grammar)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, msgspec.msgpack.encode(verdict))


def main() -> None:
    """Answer until the parent is gone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer

    def work() -> None:
        with contextlib.suppress(EOFError, BrokenPipeError):
            _serve(questions, answers)

    # Not the main thread: its stack is as large as the core's, and here it must be the smaller one.
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
