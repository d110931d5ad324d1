"""A tokenizer of single bytes with a BOS and a chat template, and engines over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, pre_tokenizers, processors

from llm_inference.adapters.dialect import Dialect
from llm_inference.adapters.generate_api import GenerateAPIEngine
from llm_inference.adapters.generate_http import HttpBackend
from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.types import ModelInfo

TEMPLATE = (
    "<s>{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)

#: Shows tools, and teaches the model the format of the parser `hermes`.
TOOL_TEMPLATE = (
    "<s>{% for t in tools or [] %}[tool]{{ t.function.name }}{% endfor %}"
    "{% if tools %}[call with <tool_call>]{% endif %}"
) + TEMPLATE.removeprefix("<s>")
#: Lets the model think first.
THINK_TEMPLATE = TOOL_TEMPLATE + "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}"


def write_tokenizer(directory: Path, *, template: bool | str = True) -> Path:
    """Every byte is a token, `<s>` begins a text, `</s>` ends one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: token_id for token_id, token in enumerate(["<s>", "</s>", *alphabet])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    backend.add_special_tokens(["<s>", "</s>"])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    if template:
        (directory / "chat_template.jinja").write_text(TEMPLATE if template is True else template)
    return directory


def make_engine(dialect: Dialect, backend: HttpBackend, prompts: PromptSide | None, **more: Any) -> GenerateAPIEngine:
    """An engine over `backend`, with a context of 1000 tokens."""
    info = ModelInfo(name="m", max_model_len=1000, engine=dialect.name)
    return GenerateAPIEngine(dialect, backend, info, model="m", prompts=prompts, **more)


def configuration(directory: Path, url: str | None, engine: str, **more: Any) -> ModelConfig:
    return ModelConfig(
        **{"name": "m", "model": str(directory), "url": url, "engine": engine, "max_model_len": 1000, **more}
    )
