from __future__ import annotations

import asyncio
import io
import json
import logging
import math
import re
import warnings
from collections.abc import Iterator

import pytest

from llm_inference.telemetry.logging import JsonFormatter, LogFormat, configure_logging, escape, log_fields

LOG = logging.getLogger("llm_inference.test")
#: What could end a line, hide it or reorder it somewhere.
HOSTILE = "a\r\n2025-01-01T00:00:00.000Z INFO x: forged\x1b[2K\x00\x7f\x85\u2028\u2029\u202e\ud800\u200bend"


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), (logging.getLogger("llm_inference"), logging.getLogger("uvicorn"))
    before = root.handlers[:], root.level, [one.level for one in ours]
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level = before[0], before[1]
    for logger, level in zip(ours, before[2], strict=True):
        logger.setLevel(level)
    root.setLevel(before[1])


def configured(format: LogFormat, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure_logging(level, format, stream)
    return stream


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_line_has_the_fields_and_a_utc_time() -> None:
    stream = configured("json")
    LOG.info("request %s", "finished", extra={"fields": {"request_id": "r-1", "total_s": 0.25, "tokens": [1, 2]}})
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record.pop("time"))
    assert record == {
        "level": "info",
        "logger": "llm_inference.test",
        "message": "request finished",
        "request_id": "r-1",
        "total_s": 0.25,
        "tokens": [1, 2],
    }


def test_console_line_quotes_what_would_be_ambiguous() -> None:
    stream = configured("console")
    fields = {"id": "r-1", "text": "a b", "none": None, "empty": "", "s": 0.123456, "d": {"k": "v"}, "ja": "日本"}
    LOG.warning("slow", extra={"fields": fields})
    rest = stream.getvalue().split(" ", 1)[1]
    assert rest == (
        'WARNING llm_inference.test: slow id=r-1 text="a b" none=None empty="" s=0.1235 d={"k": "v"} ja=日本\n'
    )


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize("where", ["message", "argument", "field", "field name", "nested", "logger", "exception"])
def test_no_part_of_a_record_can_forge_or_hide_a_line(format: LogFormat, where: str) -> None:
    stream = configured(format)
    logger = logging.getLogger(f"llm_inference.{HOSTILE}") if where == "logger" else LOG
    fields = {"field": {"k": HOSTILE}, "field name": {HOSTILE: 1}, "nested": {"k": [{HOSTILE: HOSTILE}]}}.get(where, {})
    message = HOSTILE if where == "message" else "said %s" if where == "argument" else "m"
    arguments = (HOSTILE,) if where == "argument" else ()
    if where == "exception":
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logger.exception("m")
    else:
        logger.info(message, *arguments, extra={"fields": fields})
    text = stream.getvalue()
    assert text.endswith("\n")
    lines = text[:-1].split("\n")
    first, more = lines[0], lines[1:]
    assert all(line.startswith("    | ") for line in more)
    assert bool(more) == (where == "exception" and format == "console")
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202e\u200b\ud800-\udfff]", "".join(lines))
    if format == "json":
        assert "forged" in json.dumps(json.loads(first))


def test_escape_shows_which_character_it_was() -> None:
    assert escape("é\r\n\t\x1b\u2028\U000e0001") == "é\\r\\n\\t\\x1b\\u2028\\U000e0001"


def test_json_is_strict_whatever_the_fields_hold() -> None:
    stream = configured("json")
    loop: list[object] = []
    loop.append(loop)
    LOG.info("m", extra={"fields": {"nan": math.nan, "inf": -math.inf, "object": {1, 2}.__class__, "loop": loop}})
    record = json.loads(stream.getvalue(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (record["nan"], record["inf"], record["object"]) == ("nan", "-inf", "<class 'set'>")


def test_a_field_cannot_overwrite_the_records_own() -> None:
    stream = configured("json")
    LOG.info("true message", extra={"fields": {"message": "other", "level": "debug"}})
    record = json.loads(stream.getvalue())
    assert (record["message"], record["_message"], record["level"]) == ("true message", "other", "info")


def test_arguments_that_do_not_fit_are_shown_not_raised() -> None:
    record = LOG.makeRecord("x", logging.INFO, "file", 1, "%d tokens", ("many",), None)
    assert json.loads(JsonFormatter().format(record))["message"] == "%d tokens ('many',)"


def test_json_keeps_the_traceback_in_one_line() -> None:
    stream = configured("json")
    try:
        raise ValueError("broken")
    except ValueError:
        LOG.exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["exception"].endswith("ValueError: broken")


async def test_lines_of_one_round_of_the_loop_are_written_together() -> None:
    stream = configured("json")
    LOG.info("one")
    LOG.info("two")
    assert stream.getvalue() == ""
    await asyncio.sleep(0)
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["one", "two"]
    LOG.info("three")
    LOG.warning("four")  # may be the last that is said
    assert len(stream.getvalue().splitlines()) == 4
    LOG.info("five")
    await asyncio.to_thread(LOG.info, "six")
    assert len(stream.getvalue().splitlines()) == 6


def test_a_loop_that_ended_early_keeps_no_line_back() -> None:
    stream = configured("json")

    async def say(text: str) -> None:
        LOG.info(text)

    for text in ("one", "two"):
        loop = asyncio.new_event_loop()
        task = loop.create_task(say(text))
        task.add_done_callback(lambda _, loop=loop: loop.stop())  # type: ignore[misc]
        loop.run_forever()
        loop.close()
    logging.getLogger().handlers[-1].flush()
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["one", "two"]


async def test_a_stream_that_is_closed_breaks_nothing() -> None:
    stream = configured("json")
    LOG.info("one")
    stream.close()
    await asyncio.sleep(0)


def test_what_every_request_logs_reads_like_any_line() -> None:
    stream = configured("json")
    fields = {"request_id": "r", "total_s": 0.25, "none": None, "stream": True, "n": 2**70, "text": "é\x7f\u2028"}
    log_fields(LOG, "request", fields)
    LOG.info("request", extra={"fields": fields})
    fast, slow = (json.loads(line) for line in stream.getvalue().splitlines())
    fast.pop("time"), slow.pop("time")
    assert fast == slow
    assert fast["text"] == "é\x7f\u2028"
    assert stream.getvalue().isascii()


def test_auto_is_for_people_on_a_terminal_only() -> None:
    terminal = Terminal()
    configure_logging("info", "auto", terminal)
    LOG.info("hello")
    assert " INFO    llm_inference.test: hello\n" in terminal.getvalue()
    pipe = configured("auto")
    LOG.info("hello")
    assert json.loads(pipe.getvalue())["message"] == "hello"


def test_level_is_ours_and_others_start_at_warning() -> None:
    stream = configured("console", "debug")
    LOG.debug("ours")
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("asyncio").warning("theirs")
    assert [line.rsplit(" ", 1)[1] for line in stream.getvalue().splitlines()] == ["ours", "theirs"]


def test_uvicorn_and_python_warnings_go_through_it() -> None:
    logging.getLogger("uvicorn.error").addHandler(logging.StreamHandler(io.StringIO()))
    stream = configured("json")
    logging.getLogger("uvicorn.error").info("started")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("two\nlines", stacklevel=1)
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [record["logger"] for record in records] == ["uvicorn.error", "py.warnings"]
    assert logging.getLogger("uvicorn.error").handlers == []


def test_the_last_call_counts() -> None:
    first = configured("json")
    second = configured("json")
    LOG.info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_a_stream_that_cannot_encode_gets_escapes() -> None:
    raw = io.BytesIO()
    configure_logging("info", "console", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    LOG.info("日本")
    assert raw.getvalue().endswith(b"\\u65e5\\u672c\n")


def test_a_worker_says_which_it_is() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream, worker=3)
    logging.getLogger("llm_inference.x").info("hello")
    assert json.loads(stream.getvalue())["worker"] == 3
    configure_logging("info", "json", stream)
    stream.truncate(0)
    stream.seek(0)
    logging.getLogger("llm_inference.x").info("hello")
    assert "worker" not in json.loads(stream.getvalue())
