from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.sglang_generate import SGLangDialect
from llm_inference.engine.types import GenerationDefaults, Grammar, Usage
from llm_inference.errors import ContextLengthError, EngineError, InvalidRequestError
from tests.adapters.generate_model import make_engine
from tests.adapters.replay import CutBackend, chat, many_cuts, one_cut, outcome, request, run, usage_of

NAMES = ("generate_length", "generate_length_newer_fields", "generate_cjk_length")


def load(shared_dir: Path, name: str) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads((shared_dir / "fixtures" / "sglang" / f"{name}.json").read_text())
    # The token count of one file was left as recorded while its lists were shortened.
    reply["meta_info"]["completion_tokens"] = len(reply["output_ids"])
    return reply


def as_stream(reply: dict[str, Any], *, ids: str = "cumulative") -> bytes:
    """Cumulative frames, one for each token, whose texts are beginnings of the whole; then [DONE]."""
    text, output_ids, frames = reply["text"], reply["output_ids"], []
    for count in range(1, len(output_ids) + 1):
        last = count == len(output_ids)
        frames.append(
            {
                "text": text if last else text[: len(text) * count // len(output_ids)],
                "output_ids": output_ids[:count] if ids == "cumulative" else output_ids[count - 1 : count],
                "meta_info": {
                    **reply["meta_info"],
                    "completion_tokens": count,
                    "finish_reason": reply["meta_info"]["finish_reason"] if last else None,
                },
            }
        )
    lines = [b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in frames]
    return b"".join(lines) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ids", ["cumulative", "incremental"])
async def test_recorded_replies_streamed_and_whole(shared_dir: Path, prompts: PromptSide, name: str, ids: str) -> None:
    reply = load(shared_dir, name)
    whole = CutBackend([json.dumps(reply).encode()], content_type="application/json")
    deltas = await run(make_engine(SGLangDialect(), whole, prompts, stream=False), request())
    got = outcome(deltas)
    assert (got.text, got.token_ids, got.finish_reason) == (reply["text"], tuple(reply["output_ids"]), "length")
    meta = reply["meta_info"]
    usage = Usage(meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"])
    assert usage_of(deltas) == usage
    for chunks in many_cuts(as_stream(reply, ids=ids), times=20):
        streamed = await run(make_engine(SGLangDialect(), CutBackend(chunks), prompts), request())
        assert outcome(streamed) == got
        assert usage_of(streamed) == usage


async def test_a_stream_cut_at_every_place(shared_dir: Path, prompts: PromptSide) -> None:
    reply = load(shared_dir, "generate_cjk_length")
    for chunks in one_cut(as_stream(reply)):
        deltas = await run(make_engine(SGLangDialect(), CutBackend(chunks), prompts), request())
        assert outcome(deltas).text == reply["text"]


def frame(text: str, count: int, reason: Any = None, **meta: Any) -> bytes:
    meta_info = {"completion_tokens": count, "prompt_tokens": 3, "finish_reason": reason, **meta}
    return b"data: " + json.dumps({"text": text, "meta_info": meta_info}).encode() + b"\n\n"


async def test_an_unfinished_character_waits(prompts: PromptSide) -> None:
    body = [
        frame("a\ufffd", 1),
        frame("a\ufffd\ufffd", 2),
        frame("a€", 3),
        frame("a€", 4, {"type": "stop", "matched": 2}),
    ]
    deltas = await run(make_engine(SGLangDialect(), CutBackend(body), prompts), request())
    assert [delta.text for delta in deltas if delta.text] == ["a", "€"]
    assert (outcome(deltas).finish_reason, outcome(deltas).stop_reason) == ("stop", None)
    cut = [frame("a\ufffd", 1), frame("a\ufffd", 1, {"type": "length", "length": 1})]
    assert outcome(await run(make_engine(SGLangDialect(), CutBackend(cut), prompts), request())).text == "a\ufffd"


async def test_an_asked_for_stop_token_is_the_reason(prompts: PromptSide) -> None:
    backend = CutBackend([frame("a", 2, {"type": "stop", "matched": 7})])
    deltas = await run(make_engine(SGLangDialect(), backend, prompts), request(stop_token_ids=(7,)))
    assert outcome(deltas).stop_reason == 7
    assert backend.posted[0][1]["sampling_params"]["stop_token_ids"] == [7]


@pytest.mark.parametrize("cumulative", [True, False])
async def test_logprobs(prompts: PromptSide, cumulative: bool) -> None:
    entries = [[-0.5, 10, "a"], [-1.5, 11, "b"]]
    tops = [[[-0.5, 10, "a"], [-3.0, 12, "c"]], [[-0.1, 13, "d"], [-1.5, 11, "b"]]]
    second = slice(0, 2) if cumulative else slice(1, 2)
    body = [
        frame("a", 1, output_token_logprobs=entries[:1], output_top_logprobs=tops[:1]),
        frame(
            "ab",
            2,
            {"type": "length", "length": 2},
            output_token_logprobs=entries[second],
            output_top_logprobs=tops[second],
        ),
    ]
    backend = CutBackend(body)
    deltas = await run(make_engine(SGLangDialect(), backend, prompts), request(logprobs=2))
    told = [entry for delta in deltas for entry in delta.logprobs or ()]
    assert [(entry.token_id, entry.token, entry.logprob, entry.text_offset) for entry in told] == [
        (10, "a", -0.5, 0),
        (11, "b", -1.5, 1),
    ]
    assert [other[0] for other in told[1].top] == [13, 11]
    assert backend.posted[0][1]["top_logprobs_num"] == 2


async def test_echo_with_the_prompts_logprobs(prompts: PromptSide) -> None:
    body = frame(
        "c", 1, {"type": "length", "length": 1}, input_token_logprobs=[[None, 1, "a"], [-2.0, 2, "b"]],
        output_token_logprobs=[[-0.5, 3, "c"]], output_top_logprobs=[None],
    )  # fmt: skip
    backend = CutBackend([body])
    deltas = await run(
        make_engine(SGLangDialect(), backend, prompts), request("ab", echo=True, logprobs=0, prompt_logprobs=0)
    )
    assert outcome(deltas).text == "abc"
    assert outcome(deltas).logprobs == (None, -2.0, -0.5)
    assert backend.posted[0][1]["logprob_start_len"] == 0


async def test_prompts_go_as_token_ids_and_unsaid_fields_are_left_to_the_server(prompts: PromptSide) -> None:
    backend = CutBackend([frame("", 1, {"type": "length"})])
    engine = make_engine(SGLangDialect(), backend, prompts, defaults=GenerationDefaults(top_k=9))
    await run(engine, request(chat("Hi")))
    await run(engine, request((5, 6), temperature=0.0, top_k=0, logit_bias={4: -100.0}, grammar=Grammar("regex", "a+")))
    (path, first), (_, second) = backend.posted
    assert path == "/generate"
    assert prompts.tokenizer.decode(first["input_ids"], skip_special_tokens=False) == "<s>[user]Hi[a]"
    assert first["sampling_params"] == {
        "max_new_tokens": 1000 - len(first["input_ids"]),
        "top_k": 9,
        "skip_special_tokens": True,
    }
    assert second["input_ids"] == [5, 6]
    assert second["sampling_params"]["temperature"] == 0.0
    assert second["sampling_params"]["top_k"] == -1
    assert second["sampling_params"]["logit_bias"] == {"4": -100.0}
    assert second["sampling_params"]["regex"] == "a+"


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b'data: {"error": {"message": "boom"}}\n\n', EngineError, "boom"),
        (
            b'data: {"error": {"message": "The input (9 tokens) is longer than the context length (4)"}}\n\n',
            ContextLengthError,
            "9 tokens",
        ),
        (frame("a", 1) + b'data: {"error": {"message": "context length"}}\n\n', EngineError, "context"),
        (frame("a", 1, {"type": "abort", "message": "out of memory"}), EngineError, "out of memory"),
        (frame("ab", 1) + frame("xy", 2), EngineError, "changed text"),
        (frame("ab", 1) + b"data: [DONE]\n\n", EngineError, "ended before"),
        (b"data: {nonsense\n\n", EngineError, "no valid JSON"),
        (b'data: {"text": "a"}\n\n', EngineError, "no known form"),
    ],
)
async def test_what_goes_wrong_in_a_stream(prompts: PromptSide, body: bytes, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        await run(make_engine(SGLangDialect(), CutBackend([body]), prompts), request())
    assert type(caught.value) is kind


async def test_lark_grammars_are_refused(prompts: PromptSide) -> None:
    with pytest.raises(InvalidRequestError, match="Lark"):
        await run(make_engine(SGLangDialect(), CutBackend([b""]), prompts), request(grammar=Grammar("grammar", "x")))
