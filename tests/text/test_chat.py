from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from llm_inference.engine.types import ChatPrompt
from llm_inference.errors import InvalidRequestError, SourceError
from llm_inference.text.chat import ChatTemplate, encode_chat, normalize_messages, render_chat
from llm_inference.text.tokenizer import Tokenizer
from tests.text import templates

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": ' What is 2 < 3?\n\nSay "yes". '},
    {"role": "assistant", "content": "  yes é \n"},
    {"role": "user", "content": "Sure? 😀"},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "é<"}}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": TURNS[:1],
    "three": TURNS,
    "assistant last": TURNS[:2],
    "system": [{"role": "system", "content": "Be brief."}, *TURNS],
    "empty": [{"role": "user", "content": ""}],
    "unknown role": [{"role": "narrator", "content": "Once"}, *TURNS[:1]],
    "two users": [TURNS[0], TURNS[2]],
    "tools": [
        TURNS[0],
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        {"role": "tool", "content": "4", "tool_call_id": "c2"},
    ],
    "reasoning": [TURNS[0], {"role": "assistant", "content": "yes", "reasoning": "hm"}, TURNS[2]],
}
NESTED: list[Any] = []
for _ in range(500):
    NESTED = [NESTED]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "a <b>", "parameters": {"type": "object"}}}]


def peer(source: str, backend: Backend | None = None) -> PreTrainedTokenizerFast:
    from tokenizers import models

    reference = PreTrainedTokenizerFast(tokenizer_object=backend or Backend(models.BPE()), **SPECIAL)
    reference.chat_template = source
    return reference


def both(source: str, messages: list[dict[str, Any]], **options: Any) -> tuple[str | None, str | None]:
    """(our text, transformers' text); None where it refuses."""
    tools, kwargs = options.pop("tools", ()), options.pop("template_kwargs", {})
    ours: str | None
    theirs: str | None
    try:
        ours = ChatTemplate(source, special_tokens=SPECIAL).render(
            messages, tools=tools, template_kwargs=kwargs, **options
        )
    except InvalidRequestError:
        ours = None
    try:
        theirs = peer(source).apply_chat_template(
            messages, tools=list(tools) or None, tokenize=False, **options, **kwargs
        )
    except Exception:
        theirs = None
    return ours, theirs


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", templates.ALL)
def test_renders_as_transformers_does(name: str, conversation: str) -> None:
    messages = CONVERSATIONS[conversation]
    for add_generation_prompt in (True, False):
        ours, theirs = both(templates.ALL[name], messages, add_generation_prompt=add_generation_prompt)
        assert ours == theirs
        if conversation == "one":
            assert ours is not None
            assert "What is 2" in ours


@pytest.mark.parametrize("name", [name for name in templates.ALL if name != "tojson"])  # where transformers refuses it
def test_continues_the_last_message_as_transformers_does(name: str) -> None:
    for last in ("  yes é \n", "yes", "yes </s> no", ""):
        messages = [TURNS[0], {"role": "assistant", "content": last}]
        ours, theirs = both(templates.ALL[name], messages, add_generation_prompt=False, continue_final_message=True)
        assert ours == theirs


def test_continues_the_last_text_part() -> None:
    source = "{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "assistant", "content": parts}]
    ours, theirs = both(source, messages, add_generation_prompt=False, continue_final_message=True)
    assert ours == theirs == "[one][two"
    assert parts[1]["text"] == "two"  # the caller's messages stay as they are


@pytest.mark.parametrize("name", ["qwen", "reasoning"])
def test_tools_and_keywords_as_transformers(name: str) -> None:
    for kwargs in ({}, {"enable_thinking": False}, {"enable_thinking": True}, {"bos_token": "<other>"}):
        ours, theirs = both(
            templates.ALL[name],
            CONVERSATIONS["tools"][:1],
            tools=TOOLS,
            template_kwargs=kwargs,
            add_generation_prompt=True,
        )
        assert ours is not None
        assert ours == theirs


def test_template_that_raises_is_a_400_with_its_words() -> None:  # H1
    cases = [
        (templates.GEMMA, CONVERSATIONS["system"], "System role not supported"),
        (templates.LLAMA2, CONVERSATIONS["two users"], "Conversation roles must alternate"),
    ]
    for source, messages, words in cases:
        with pytest.raises(InvalidRequestError, match=words) as caught:
            ChatTemplate(source, special_tokens=SPECIAL).render(messages)
        assert caught.value.param == "messages"
        assert caught.value.status == 400


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ messages[0].nothing.more }}", "misses a value"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 'x' * 10 ** 9 }}", "stopped"),
        ("{{ messages.clear() }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_template_that_fails_is_a_400_too(source: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        ChatTemplate(source, special_tokens={}).render(TURNS)


def test_limits_can_be_set() -> None:
    loop = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
    with pytest.raises(InvalidRequestError, match=r"more than 0.05 s"):
        ChatTemplate(loop, special_tokens={}, max_cpu_s=0.05).render(TURNS)
    with pytest.raises(InvalidRequestError, match="more than 10 characters"):
        ChatTemplate(templates.CHATML, special_tokens={}, max_chars=10).render(TURNS)


@pytest.mark.parametrize("source", ["{% if %}", "{{ 'open }}", "{% endfor %}", "{{ 1 }}" * 200_000])
def test_template_that_does_not_compile_is_a_source_error(source: str) -> None:
    with pytest.raises(SourceError, match="chat template"):
        ChatTemplate(source, special_tokens={})


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"template_kwargs": {"x": object()}}, "messages"),
        ({"messages": [{"role": "user", "content": NESTED}]}, "messages"),
        ({"continue_final_message": True}, "continue_final_message"),
        (
            {"continue_final_message": True, "add_generation_prompt": False, "messages": [{"role": "x"}]},
            "continue_final_message",
        ),
        ({"messages": []}, "messages"),
    ],
)
def test_wrong_use_names_the_field(options: dict[str, Any], param: str) -> None:
    messages = options.pop("messages", TURNS)
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(templates.CHATML, special_tokens={}).render(messages, **options)
    assert caught.value.param == param


def test_tool_template_is_used_with_tools() -> None:
    template = ChatTemplate("plain", special_tokens={}, tool_source="tools {{ tools | length }}")
    assert template.render(TURNS) == "plain"
    assert template.render(TURNS, tools=TOOLS) == "tools 1"


def chat(messages: list[dict[str, Any]], **options: Any) -> ChatPrompt:
    return ChatPrompt(messages=tuple(messages), **options)


def loaded(backend: Backend, source: str | None) -> Tokenizer:
    template = None if source is None else ChatTemplate(source, special_tokens=SPECIAL)
    return Tokenizer(backend, special_tokens=SPECIAL, chat_template=template)


@pytest.mark.parametrize("name", ["llama3", "llama2", "mistral", "gemma"])
def test_exactly_one_bos(llama_like: Backend, name: str) -> None:  # H4
    tokenizer = loaded(llama_like, templates.ALL[name])
    assert tokenizer.encode("hi")[0] == tokenizer.bos_token_id  # the tokenizer adds one by itself
    ids = encode_chat(tokenizer, chat(TURNS[:1]))
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(1) == 1
    reference = peer(templates.ALL[name], llama_like)
    assert ids == reference.apply_chat_template(TURNS[:1], add_generation_prompt=True)["input_ids"]


def test_special_tokens_of_the_template_are_tokens(byte_level: Backend) -> None:
    tokenizer = loaded(byte_level, templates.CHATML)
    ids = encode_chat(tokenizer, chat(TURNS))
    assert ids.count(tokenizer.token_id("<|im_end|>") or -1) == 3
    assert ids.count(tokenizer.token_id("<|im_start|>") or -1) == 4
    assert tokenizer.decode(ids, skip_special_tokens=False) == render_chat(tokenizer, chat(TURNS))


@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
def test_list_content_gives_the_tokens_of_the_string(byte_level: Backend, role: str) -> None:  # H3
    tokenizer = loaded(byte_level, templates.CHATML)
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert encode_chat(tokenizer, chat([{"role": role, "content": parts}])) == encode_chat(
        tokenizer, chat([{"role": role, "content": "Hello"}])
    )


@pytest.mark.parametrize("tool_calls", [None, []])
def test_empty_tool_calls_render_as_a_plain_message(byte_level: Backend, tool_calls: Any) -> None:  # H2
    tokenizer = loaded(byte_level, templates.QWEN_TOOLS)
    message = {"role": "assistant", "content": "hi"}
    plain = render_chat(tokenizer, chat([TURNS[0], message, TURNS[2]]))
    assert render_chat(tokenizer, chat([TURNS[0], {**message, "tool_calls": tool_calls}, TURNS[2]])) == plain
    assert "<|im_start|>assistant\nhi<|im_end|>" in plain


def test_arguments_reach_templates_of_both_kinds(byte_level: Backend) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    prompt = chat([{"role": "assistant", "content": None, "tool_calls": [call]}])
    wants_object = "{% for c in messages[0].tool_calls %}{{ c.function.arguments.a }}{% endfor %}"
    wants_text = "{% for c in messages[0].tool_calls %}{{ '!' + c.function.arguments }}{% endfor %}"
    assert render_chat(loaded(byte_level, wants_object), prompt) == "1"
    assert render_chat(loaded(byte_level, wants_text), prompt) == '!{"a":1}'
    with pytest.raises(InvalidRequestError, match="TypeError"):
        render_chat(loaded(byte_level, "{{ 'a' + 1 }}"), prompt)


def test_model_without_template_says_what_to_do(byte_level: Backend) -> None:
    with pytest.raises(InvalidRequestError, match=r"/v1/completions.*chat_template:") as caught:
        encode_chat(loaded(byte_level, None), chat(TURNS))
    assert caught.value.param == "messages"


def test_special_tokens_in_messages_are_parsed_or_refused(byte_level: Backend) -> None:
    tokenizer = loaded(byte_level, templates.CHATML)
    prompt = chat([TURNS[0], {"role": "user", "content": [{"type": "text", "text": "a<|im_end|>b"}]}])
    assert encode_chat(tokenizer, prompt).count(tokenizer.token_id("<|im_end|>") or -1) == 3
    with pytest.raises(InvalidRequestError, match=r"<\|im_end\|>") as caught:
        encode_chat(tokenizer, prompt, allow_special_tokens=False)
    assert caught.value.param == "messages[1]"
    assert encode_chat(tokenizer, chat(TURNS), allow_special_tokens=False) == encode_chat(tokenizer, chat(TURNS))


def test_default_model_s_template_as_transformers(default_model_dir: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = Tokenizer.load(default_model_dir)
    reference = AutoTokenizer.from_pretrained(default_model_dir)
    for name in ("one", "three", "system", "empty", "assistant last"):
        messages = CONVERSATIONS[name]
        ids = encode_chat(tokenizer, chat(messages))
        assert ids == reference.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert normalize_messages(messages) == messages
