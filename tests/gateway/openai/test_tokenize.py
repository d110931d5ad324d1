from __future__ import annotations

from typing import Any

import pytest

from llm_inference.engine.base import Capabilities
from llm_inference.engine.byte_tokens import BOS_TOKEN_ID
from llm_inference.engine.fake import FakeEngine
from llm_inference.gateway.openai.tokenize import MIN_DETOKENIZE_LIMIT
from tests.gateway.serving import MESSAGES, serving


async def test_there_and_back() -> None:
    async with serving() as service:
        for prefix in ("", "/v1"):
            reply = (await service.post(f"{prefix}/tokenize", {"prompt": "hé", "add_special_tokens": False})).json
            assert reply == {"count": 3, "max_model_len": 4096, "tokens": list("hé".encode())}
            back = (await service.post(f"{prefix}/detokenize", {"tokens": reply["tokens"]})).json
            assert back == {"prompt": "hé"}
        marked = (await service.post("/tokenize", {"prompt": "h", "return_token_strs": True, "model": "fake"})).json
        assert (marked["tokens"], marked["token_strs"]) == ([BOS_TOKEN_ID, 104], ["", "h"])
        assert (await service.post("/tokenize", {"prompt": ""})).json["count"] == 1
        chat = (await service.post("/tokenize", {"messages": MESSAGES})).json
        assert bytes(chat["tokens"]) == b"user: hello\n"
        assert (await service.chat()).json["usage"]["prompt_tokens"] == chat["count"]
        assert (await service.post("/detokenize", {"tokens": []})).json == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": 7}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {"tokens": [1] * (MIN_DETOKENIZE_LIMIT + 1)}, "tokens"),
    ],
)
async def test_what_is_refused(path: str, body: dict[str, Any], param: str) -> None:
    async with serving() as service:
        reply = await service.post(path, body)
        assert (reply.status, reply.error["param"]) == (400, param)


async def test_engine_without_a_tokenizer() -> None:
    async with serving(engine=FakeEngine("fake", capabilities=Capabilities())) as service:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
            reply = await service.post(path, body)
            assert (reply.status, reply.error["code"]) == (400, "unsupported_operation")
