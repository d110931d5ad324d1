"""Against uvicorn's own cycle: the same bytes for the same messages, in fewer writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from llm_inference.serve.joined_response import JoinedResponse

Message = dict[str, Any]


class Transport:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        if data:
            self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True


def cycle(kind: type[RequestResponseCycle], method: str = "POST", keep_alive: bool = True) -> Any:
    transport = Transport()
    made = RequestResponseCycle(
        scope={"type": "http", "method": method, "path": "/"},  # type: ignore[arg-type, typeddict-item]
        transport=transport,  # type: ignore[arg-type]
        flow=FlowControl(transport),  # type: ignore[arg-type]
        logger=None,  # type: ignore[arg-type]
        access_logger=None,  # type: ignore[arg-type]
        access_log=False,
        default_headers=[(b"x-default", b"1")],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: None,
    )
    made.__class__ = kind
    return made


def start(status: int = 200, **headers: str) -> Message:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": given}


def body(data: bytes = b"", more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def play(kind: type[RequestResponseCycle], messages: list[Message], **options: Any) -> Any:
    made = cycle(kind, **options)
    for message in messages:
        await made.send(dict(message))
    return made


CASES: list[tuple[list[Message], dict[str, Any]]] = [
    ([start(content_length="2"), body(b"ok")], {}),
    ([start(404, content_length="2", X_Served_By="a"), body(b"ok")], {}),
    ([start(), body(b"a", True), body(b"bc" * 20, True), body(b"", True), body()], {}),
    ([start(), body(b"all")], {}),
    ([start(Transfer_Encoding="chunked"), body(b"x", True), body(b"y")], {}),
    ([start(204), body()], {}),
    ([start(content_length="9"), body()], {"method": "HEAD"}),
    ([start(content_length="2"), body(b"ok")], {"keep_alive": False}),
    ([start(413, content_length="2", connection="close"), body(b"no")], {}),
    ([start(418, content_length="0"), body()], {}),
]


@pytest.mark.parametrize(("messages", "options"), CASES)
async def test_the_bytes_are_uvicorns(messages: list[Message], options: dict[str, Any]) -> None:
    theirs = await play(RequestResponseCycle, messages, **options)
    ours = await play(JoinedResponse, messages, **options)
    assert b"".join(ours.transport.writes) == b"".join(theirs.transport.writes)
    assert ours.transport.closed == theirs.transport.closed
    assert ours.response_complete
    assert theirs.response_complete


async def test_head_and_body_leave_together() -> None:
    made = await play(JoinedResponse, [start(content_length="2"), body(b"ok")])
    assert len(made.transport.writes) == 1


async def test_an_empty_piece_brings_the_head() -> None:
    made = await play(JoinedResponse, [start(), body(b"", True)])
    assert made.transport.writes[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert not made.response_complete


@pytest.mark.parametrize(
    "messages",
    [
        [body(b"x")],
        [start(), start()],
        [start(content_length="1"), body(b"xy")],
        [start(content_length="3"), body(b"xy")],
        [start(content_length="1"), body(b"x"), body(b"y")],
        [start(x_bad="a\r\nset-cookie: b"), body()],
        [start(x_bad="a\nb"), body()],
        [start(x_bad="a\x00b"), body()],
    ],
)
async def test_what_would_break_the_framing_is_an_error(messages: list[Message]) -> None:
    with pytest.raises(RuntimeError):
        await play(JoinedResponse, messages)


async def test_a_client_that_left_gets_nothing() -> None:
    made = cycle(JoinedResponse)
    await made.send(start())
    made.disconnected = True
    await made.send(body(b"x"))
    assert not made.transport.writes


async def test_a_full_buffer_is_waited_for() -> None:
    made = cycle(JoinedResponse)
    made.flow.pause_writing()
    sending = asyncio.create_task(made.send(start()))
    await asyncio.sleep(0)
    assert not made.response_started
    made.flow.resume_writing()
    await sending
    assert made.response_started
