"""Log lines: one record is one line that nobody can forge, as JSON or for people.

    logger.info("request finished", extra={"fields": {"request_id": "r-1", "total_s": 0.4}})

    json     {"time": "2025-01-31T09:30:00.123Z", "level": "info", "logger": "…", "message": "…", "request_id": "r-1"}
    console  2025-01-31T09:30:00.123Z INFO    llm_inference.serve: request finished request_id=r-1 total_s=0.4

Whatever stands in a message, a field or an exception (line breaks, terminal escapes, bidi marks) comes out escaped.
Only a traceback in the console form takes more lines, each behind a `    | ` that no record begins with. A log that
nobody reads stops nobody: see `telemetry/log_stream.py`.

Knows nothing of requests or HTTP: what a field means is its writer's business.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TextIO

import msgspec

from llm_inference.telemetry.log_stream import LogStream

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler  # not subscriptable before Python 3.11

LogFormat = Literal["auto", "json", "console"]

#: Loggers that follow the asked-for level; everybody else's chatter starts at warning.
_OURS = ("llm_inference", "uvicorn")
_UVICORN = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False)
_FAST_ENCODER = msgspec.json.Encoder()
#: What strict JSON takes as it is, floats if they are finite.
_PLAIN = frozenset({str, int, bool, float, type(None)})
_STR = frozenset({str})
#: Unicode categories that move the cursor, break a line, reorder it or cannot be encoded.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: How long the end of the process waits for a reader of its last lines.
_LAST_LINES_S = 1.0


def configure_logging(
    level: str = "info", format: LogFormat = "auto", stream: TextIO | None = None, *, worker: int | None = None
) -> None:
    """Send every logger of this process, uvicorn's and Python warnings included, through one handler.

    `stream` is stderr where it is None. `format` "auto" is "console" on a terminal, else "json". `level` is one of
    debug, info, warning, error, critical. May be called again: the last call counts. Start uvicorn with
    `log_config=None`, or it puts its own handlers back. `worker`: of several gateway processes this one's number, which
    then stands in every JSON line.
    """
    stream = sys.stderr if stream is None else stream
    root = logging.getLogger()
    before = [one for one in root.handlers if isinstance(one, _SafeHandler)]
    # One writer for a stream: lines that still wait there come before those that follow.
    handler = _SafeHandler(stream, next((one.out for one in before if one.stream is stream), None))
    console = resolve_format(format, stream) == "console"
    handler.setFormatter(ConsoleFormatter() if console else JsonFormatter(worker))
    for old in before:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for name in _UVICORN:
        uvicorn_logger = logging.getLogger(name)
        uvicorn_logger.handlers.clear()
        uvicorn_logger.propagate = True
    for name in _OURS:
        logging.getLogger(name).setLevel(level.upper())
    logging.captureWarnings(True)


def resolve_format(format: LogFormat, stream: TextIO) -> Literal["json", "console"]:
    """What "auto" means for `stream`. A parent settles it for its children, whose stderr is a pipe to the parent."""
    if format == "auto":
        return "console" if stream.isatty() else "json"
    return format


def pass_on(line: str) -> None:
    """A line that a child has logged already, to where this process logs, as it is."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _SafeHandler):
            handler.pass_on(line)
            return
    print(line, file=sys.stderr, flush=True)


class _SafeHandler(_StreamHandler):
    """Ours, so that a second `configure_logging` finds it; survives a stream that cannot encode a character.

    Lines below warning that come in one round of the event loop are written at its end, all at once.
    """

    def __init__(self, stream: TextIO, out: LogStream | None = None) -> None:
        """`out`: what writes to `stream` already."""
        super().__init__(stream)
        self.out = LogStream(stream, self._lost_line) if out is None else out
        self.out.lost_line = self._lost_line
        self._lines: list[str] = []
        self._flushed_by: asyncio.AbstractEventLoop | None = None  # it has been asked to

    def emit(self, record: logging.LogRecord) -> None:
        """Called with the handler's lock."""
        try:
            self._lines.append(self.format(record) + self.terminator)
            loop = _running_loop() if record.levelno < logging.WARNING else None
            if loop is None:
                self.flush()
            elif loop is not self._flushed_by:
                self._flushed_by = loop
                loop.call_soon(self._flush_late)
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            self._flushed_by = None
            if lines:
                self.out.write("".join(lines))
        finally:
            self.release()

    def pass_on(self, line: str) -> None:
        with suppress(OSError, ValueError):
            self.acquire()
            try:
                self._lines.append(line + self.terminator)
                self.flush()
            finally:
                self.release()

    def close(self) -> None:
        """At the end of the process; the stream is not ours to close."""
        with suppress(OSError, ValueError):
            self.flush()
        self.out.close(_LAST_LINES_S)
        super().close()

    def _lost_line(self, count: int) -> str:
        message = f"{count} log lines are lost: nobody has read the log for a while, and the service did not wait"
        record = logging.LogRecord(__name__, logging.WARNING, "", 0, message, (), None)
        return self.format(record) + self.terminator

    def _flush_late(self) -> None:
        with suppress(OSError, ValueError):  # a stream that is full or closed: there is no place to say so
            self.flush()

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if text.isascii():
            return text
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Of this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class JsonFormatter(logging.Formatter):
    """One ASCII-only JSON object a record. A field named like one of ours gets a leading underscore."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": utc_timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message_of(record),
        }
        if self._worker is not None:
            line["worker"] = self._worker
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        fields = fields_of(record)
        if line.keys().isdisjoint(fields):
            line.update(fields)
        else:
            for name, value in fields.items():
                line[name if name not in line else f"_{name}"] = value
        return _line_of(line if _are_plain(line) else _jsonable(line))


class ConsoleFormatter(logging.Formatter):
    """For people: time, level, logger, message, then `key=value` with quotes where a value would be ambiguous."""

    def format(self, record: logging.LogRecord) -> str:
        head = (
            f"{utc_timestamp(record.created)} {record.levelname:<7} {escape(record.name)}: {escape(message_of(record))}"
        )
        parts = [head, *(f"{escape(name)}={_console_value(value)}" for name, value in fields_of(record).items())]
        lines = [" ".join(parts)]
        if record.exc_info:
            lines += [f"    | {escape(line)}" for line in self.formatException(record.exc_info).split("\n")]
        if record.stack_info:
            lines += [f"    | {escape(line)}" for line in record.stack_info.split("\n")]
        return "\n".join(lines)


def log_fields(logger: logging.Logger, message: str, fields: Mapping[str, Any]) -> None:
    """`logger.info(message, extra={"fields": fields})` for what is logged with every request.

    It does not look for the line of code that called, which costs as much as the rest and which no format shows.
    """
    if logger.isEnabledFor(logging.INFO):
        logger.handle(_FieldsRecord(logger.name, message, fields))


class _FieldsRecord(logging.LogRecord):
    """A record of level info without place, thread and process, whose looking up costs more than the line."""

    _CONSTANT: ClassVar[dict[str, Any]] = vars(logging.LogRecord("", logging.INFO, "", 0, "", (), None))

    def __init__(self, name: str, message: str, fields: Mapping[str, Any]) -> None:
        now = time.time()
        self.__dict__.update(self._CONSTANT, name=name, msg=message, fields=fields, created=now, msecs=now % 1 * 1000)


def utc_timestamp(seconds: float) -> str:
    """ISO 8601 in UTC with milliseconds, for `seconds` since the epoch."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{_utc_second(whole)}.{milliseconds:03d}Z"


@lru_cache(maxsize=4)  # the lines of a second differ in their milliseconds
def _utc_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def message_of(record: logging.LogRecord) -> str:
    """The message with its arguments, or both apart where they do not fit together: a log call never raises."""
    if not record.args and type(record.msg) is str:
        return record.msg.rstrip("\n")
    try:
        return record.getMessage().rstrip("\n")
    except (TypeError, ValueError, KeyError):
        return f"{record.msg} {record.args!r}"


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The structured fields of a record, names as text; {} where there are none."""
    fields = getattr(record, "fields", None)
    if type(fields) is dict and _STR.issuperset(map(type, fields)):
        return fields
    return {str(name): value for name, value in fields.items()} if isinstance(fields, Mapping) else {}


def escape(text: str) -> str:
    r"""`text` with every character that could break, hide or reorder a line as its \x, \u or \U escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if unicodedata.category(char) not in _UNPRINTABLE else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char) or char.encode("unicode_escape").decode("ascii")


def _line_of(value: Any) -> str:
    """JSON in ASCII: no U+2028 or bidi mark for a reader to trip over, whatever the stream's encoding."""
    try:
        raw = _FAST_ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError):  # a lone surrogate, an integer beyond 64 bits
        return _ENCODER.encode(value)
    return raw.decode("ascii") if raw.isascii() and b"\x7f" not in raw else _ENCODER.encode(value)


def _console_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if isfinite(value) else str(value)
    if not isinstance(value, str):
        value = value if isinstance(value, (int, type(None))) else json.dumps(_jsonable(value), ensure_ascii=False)
        return escape(str(value))
    if value and not any(char in " \"'=" or char.isspace() for char in value):
        return escape(value)
    return escape(json.dumps(value, ensure_ascii=False))


def _are_plain(line: dict[str, Any]) -> bool:
    """Whether strict JSON takes all values as they are: most lines hold nothing else."""
    values = line.values()
    floats = [value for value in values if type(value) is float]
    return _PLAIN.issuperset(map(type, values)) and all(map(isfinite, floats))


def _jsonable(value: Any, depth: int = 0) -> Any:
    """`value` as strict JSON takes it: NaN and infinities as text, unknown objects as their `str`, bounded depth."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if depth < 8 and isinstance(value, Mapping):
        return {str(key): _jsonable(item, depth + 1) for key, item in value.items()}
    if depth < 8 and isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(item, depth + 1) for item in value]
    return str(value)
