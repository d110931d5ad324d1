"""examples/plugin as a user would have it: installed beside the package, found by its entry points."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from transformers import GraniteConfig, GraniteForCausalLM

from llm_inference.engine.types import LogitsProcessorCall, SamplingParams
from llm_inference.errors import InvalidRequestError, SourceError
from llm_inference.llm import LLM
from tests.native.tiny_models import VOCAB_SIZE

tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on

#: A Llama with these scalings and no others is what the example's architecture is.
SCALES = {"embedding_multiplier": 3.0, "logits_scaling": 2.5}


@pytest.fixture(scope="module")
def plugin(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What an installer leaves behind: the package on the path, and a .dist-info with its entry points."""
    home = repository / "examples" / "plugin"
    project = tomllib.loads((home / "pyproject.toml").read_text())["project"]
    site = tmp_path_factory.mktemp("site")
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    added = [str(site), str(home / "src")]
    sys.path[:0] = added
    yield home
    for path in added:
        sys.path.remove(path)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scaled")
    torch.manual_seed(0)
    config = GraniteConfig(
        vocab_size=VOCAB_SIZE, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=None, eos_token_id=None,
        tie_word_embeddings=False, attention_multiplier=16**-0.5, residual_multiplier=1.0, **SCALES,
    )  # fmt: skip
    model = GraniteForCausalLM(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.12 + (1 if parameter.dim() == 1 else 0))
    model.save_pretrained(path)
    tokenizer = tokenizers.Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB_SIZE)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    set_keys(path, model_type="scaled_llama")
    return path


def set_keys(directory: Path, **keys: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def greedy(directory: Path, prompt: list[int], max_tokens: int) -> list[int]:
    model = GraniteForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(max_tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_the_architecture_equals_transformers_and_the_rule_holds(plugin: Path, directory: Path) -> None:
    prompt = [5, 6, 7, 8, 9]
    set_keys(directory, model_type="granite")
    expected = greedy(directory, prompt, 24)
    set_keys(directory, model_type="scaled_llama")
    with LLM(str(directory), device="cpu", kv_cache_memory="16MiB", progress=False) as llm:
        params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
        assert list(llm.generate([prompt], params)[0].token_ids) == expected
        plain = [*prompt, *expected]
        assert len(ngrams(plain, 2)) < len(plain) - 1, "the model repeats itself, else the rule has nothing to do"
        rule = (LogitsProcessorCall("no_repeat_ngram", {"size": 2}),)
        ruled = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, logits_processors=rule)
        tokens = [*prompt, *llm.generate([prompt], ruled)[0].token_ids]
        assert len(ngrams(tokens, 2)) == len(tokens) - 1
        wrong = SamplingParams(max_tokens=2, logits_processors=(LogitsProcessorCall("no_repeat_ngram", {"size": 0}),))
        with pytest.raises(InvalidRequestError, match="whole number of at least 1, not 0"):
            llm.generate([prompt], wrong)
        unknown = SamplingParams(max_tokens=2, logits_processors=(LogitsProcessorCall("no_repeat"),))
        with pytest.raises(InvalidRequestError, match="no logits processor 'no_repeat'; known are no_repeat_ngram"):
            llm.generate([prompt], unknown)


def ngrams(tokens: list[int], size: int) -> set[tuple[int, ...]]:
    return {tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)}


def test_the_rule_counts_prompt_and_output_as_asked(plugin: Path) -> None:
    from llm_inference_example_plugin.no_repeat_ngram import NoRepeatNgram

    def banned(rule: NoRepeatNgram, token_ids: list[int], num_prompt_tokens: int) -> list[int]:
        logits = torch.zeros(10)
        rule(token_ids, num_prompt_tokens, logits)
        return torch.isinf(logits).nonzero()[:, 0].tolist()

    assert banned(NoRepeatNgram(2), [1, 2, 3, 1], 3) == [2]
    assert banned(NoRepeatNgram(2, include_prompt=False), [1, 2, 3, 1], 3) == []
    assert banned(NoRepeatNgram(1), [1, 2], 1) == [1, 2]
    assert banned(NoRepeatNgram(3), [1, 2, 5, 1, 2, 6, 1, 2], 2) == [5, 6]
    assert banned(NoRepeatNgram(4), [1, 2], 2) == []


def test_a_wrong_scale_is_named(plugin: Path, directory: Path) -> None:
    set_keys(directory, logits_scaling=0)
    try:
        with pytest.raises(SourceError, match="'logits_scaling' must be a number above 0, not 0"):
            LLM(str(directory), device="cpu", kv_cache_memory="16MiB", progress=False)
    finally:
        set_keys(directory, logits_scaling=SCALES["logits_scaling"])


def test_the_document_shows_what_is_there(repository: Path) -> None:
    """Every block in docs/adding-a-model.md under the name of a file of the example is part of that file."""
    text = (repository / "docs" / "adding-a-model.md").read_text()
    blocks = re.findall(r"^`([\w/]+\.\w+)`:\n\n```text\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for name, block in blocks:
        assert block in (repository / "examples" / "plugin" / name).read_text(), f"{name}:\n{block}"
