"""The OpenVINO runner alone: the real model, its quantized and its bfloat16 form, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ov = pytest.importorskip("openvino", reason="the package openvino is not installed (extra `cpu`)")

from llm_inference.errors import UnsupportedModelError  # noqa: E402
from llm_inference.model_spec import ModelSpec  # noqa: E402
from llm_inference.native.runner.kv_format import kv_format  # noqa: E402
from llm_inference.native.runner.openvino import compile as compile_module  # noqa: E402
from llm_inference.native.runner.openvino.weights import GROUP_SIZE  # noqa: E402
from llm_inference.native.runner.openvino_runner import OpenVINORunner  # noqa: E402
from tests.native.paging import Pager, random_tokens  # noqa: E402
from tests.native.runner.runners import pager_on  # noqa: E402
from tests.native.tiny_models import TinyModel, reload, save_tiny  # noqa: E402

PROMPTS = (
    "The capital of France is",
    "def factorial(n):\n",
    "One, two, three, four, five, six, " * 8,
    "Water boils at",
    "Once upon a time, in a small village by the sea,",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "The quick brown fox",
    "1 + 1 =",
)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    tiny = save_tiny(tmp_path_factory.mktemp("tiny"))
    directory = tmp_path_factory.mktemp("half")
    tiny.reference.to(torch.bfloat16).save_pretrained(directory)
    return TinyModel(directory, reload(directory))


def held_text(repository: Path, directory: Path, num_windows: int, length: int) -> Iterator[list[int]]:
    """Windows of tokens of this repository's own documents: prose and tables."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    documents = [*sorted((repository / "docs").glob("*.md")), repository / "LICENSE", repository / "README.md"]
    for file in documents[:num_windows]:
        token_ids = tokenizer.encode(file.read_text()).ids
        yield token_ids[100 : 100 + length]


@pytest.mark.slow
def test_greedy_tokens_of_the_default_model_are_those_of_transformers(default_model_dir: Path) -> None:
    """Ours side by side, step by step; theirs asked at every position what follows what ours has written so far."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(default_model_dir)
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    num_new = 64
    pager = pager_on("openvino", default_model_dir, num_blocks=64, num_threads=2)
    sequences = [pager.add([*prompt, *[0] * num_new]) for prompt in prompts]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        del sequence.token_ids[len(prompt) :]
    pager.step([(s, 0, len(s.token_ids) - 1) for s in sequences if len(s.token_ids) > 1])
    for _ in range(num_new):
        logits = pager.step([(s, len(s.token_ids) - 1, len(s.token_ids)) for s in sequences])
        for sequence, row in zip(sequences, logits, strict=True):
            sequence.token_ids.append(int(row[0].argmax()))
    tiny = TinyModel(default_model_dir, reload(default_model_dir))
    for sequence, prompt in zip(sequences, prompts, strict=True):
        theirs = tiny.logits(sequence.token_ids[:-1]).argmax(-1)[len(prompt) - 1 :].tolist()
        assert sequence.token_ids[len(prompt) :] == theirs


@pytest.mark.slow
def test_int8_is_close_to_float32_on_held_text(repository: Path, default_model_dir: Path) -> None:
    texts = list(held_text(repository, default_model_dir, num_windows=12, length=128))
    assert len(texts) == 12
    exact, quantized = (
        torch.cat([logits_of(pager, text) for text in texts]).log_softmax(-1)
        for pager in (
            pager_on("openvino", default_model_dir, num_threads=2),
            pager_on("openvino", default_model_dir, num_threads=2, quantization="int8"),
        )
    )
    divergence = (exact.exp() * (exact - quantized)).sum(-1).mean()
    agreement = (exact.argmax(-1) == quantized.argmax(-1)).float().mean()
    print(f"divergence {divergence:.4f}, agreement {agreement:.1%}")
    assert divergence <= 0.02
    assert agreement >= 0.93


def logits_of(pager: Pager, token_ids: list[int]) -> torch.Tensor:
    sequence = pager.add(token_ids)
    logits = pager.step([(sequence, 0, len(token_ids))])[0]
    pager.free += sequence.table
    return logits


def test_int8_is_near_transformers_with_rounded_weights(tmp_path: Path) -> None:
    """The activations are rounded too, to 8 bits in groups of 32: what that may cost is bounded, no more."""
    tiny = save_tiny(tmp_path, "qwen2")
    pager = pager_on("openvino", tmp_path, quantization="int8")
    with torch.no_grad():
        for parameter in tiny.reference.parameters():
            if parameter.dim() == 2:
                size = GROUP_SIZE if parameter.shape[1] % GROUP_SIZE == 0 else parameter.shape[1]
                groups = parameter.reshape(-1, size)
                scale = groups.abs().amax(1, keepdim=True) / 127
                parameter.copy_(((groups / scale).round() * scale).view_as(parameter))
    token_ids = random_tokens(50, seed=3)
    expected = tiny.logits(token_ids)
    assert (pager.run(token_ids, 33, 34) - expected).abs().max() < 0.05 * expected.abs().max()


def test_int8_keeps_keys_and_values_in_8_bits_with_a_scale_beside_each(tmp_path: Path) -> None:
    """Blocks are copied with their scales, and decoding reads what a chunk has written."""
    tiny = save_tiny(tmp_path)
    pager = pager_on("openvino", tmp_path, quantization="int8")
    expected_bytes = kv_format("openvino", "float32", "int8").bytes_per_token(ModelSpec.from_directory(tmp_path)) * 32
    assert pager.runner.kv_block_bytes == expected_bytes
    parent = pager.add(random_tokens(60, seed=9))
    pager.step([(parent, 0, 60)])
    destination = pager.free.pop()
    child = pager.add([*parent.token_ids, 7, 8], shared=[parent.table[0], destination])
    copied = pager.step([(child, 60, 61)], copies=[(parent.table[1], destination)])[0]
    decoded = torch.cat([copied, pager.step([(child, 61, 62)])[0]])
    expected = tiny.logits(child.token_ids)[60:]
    assert (decoded - expected).abs().max() < 0.1 * expected.abs().max()
    whole = pager.run(child.token_ids)[60:]
    assert (decoded - whole).abs().max() < 0.02 * expected.abs().max()


def test_keys_and_values_in_8_bits_under_float32_weights(tmp_path: Path) -> None:
    """What rounding them costs is bounded, and chunks, decodes and company find the same in the cache."""
    tiny = save_tiny(tmp_path)
    pager = pager_on("openvino", tmp_path, kv_cache_dtype="int8")
    spec = ModelSpec.from_directory(tmp_path)
    assert pager.runner.kv_block_bytes == kv_format("openvino", "float32", None, "int8").bytes_per_token(spec) * 32
    token_ids = random_tokens(70, seed=21)
    expected = tiny.logits(token_ids)
    ours = pager.run(token_ids, 33, 34, 35)
    assert 0 < (ours - expected).abs().max() < 0.02 * expected.abs().max()
    assert (ours - pager.run(token_ids)).abs().max() < 0.01 * expected.abs().max()


def test_keys_and_values_in_float32_under_int8_weights(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    pager = pager_on("openvino", tmp_path, quantization="int8", kv_cache_dtype="float32")
    assert pager.runner.kv_block_bytes == ModelSpec.from_directory(tmp_path).kv_bytes_per_token("float32") * 32
    assert pager.run(random_tokens(40, seed=22), 33).isfinite().all()


def test_bfloat16(half: TinyModel) -> None:
    if "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this CPU does not compute in bfloat16")
    pager = pager_on("openvino", half.directory, dtype=torch.bfloat16)
    assert pager.runner.kv_block_bytes == 2 * 2 * 2 * 16 * 32 * 2
    parent = pager.add(random_tokens(40, seed=4))
    expected = half.logits(parent.token_ids)
    logits = torch.cat([pager.step([(parent, a, b)])[0] for a, b in ((0, 39), (39, 40))])
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().max() < 0.05 * expected.abs().max()
    destination = pager.free.pop()
    child = pager.add([*parent.token_ids, 5], shared=[parent.table[0], destination])
    copied = pager.step([(child, 40, 41)], copies=[(parent.table[1], destination)])[0]
    expected = half.logits(child.token_ids)[40:]
    assert (copied - expected).abs().max() < 0.05 * expected.abs().max()


def test_the_weights_are_reported_as_they_are_held(half: TinyModel) -> None:
    # Two layers of 64 × (64 + 2 · 32 + 64) and 3 · 64 × 96, and two ends of 101 × 64, two bytes each.
    matrices = 2 * (64 * 192 + 3 * 64 * 96) + 2 * 101 * 64

    runner = OpenVINORunner(
        half.directory, ModelSpec.from_directory(half.directory), dtype=torch.float32, num_threads=1
    )
    assert runner.weight_bytes == 2 * matrices


def test_what_the_library_cannot_compile_says_so(half: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*args: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(compile_module.ov.Core, "compile_model", refusing)
    with pytest.raises(UnsupportedModelError, match=r"cannot compile this model: no such kernel.*runner: torch"):
        pager_on("openvino", half.directory)
