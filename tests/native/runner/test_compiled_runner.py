"""The compiled runner alone: against transformers with the same roundings, to the bit against itself, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llm_inference.errors import SourceError, StartupError, UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.precision import read_cpu_flags
from llm_inference.native.runner.compiled.build import HERE, compile_library, find_compiler, find_or_build
from llm_inference.native.runner.compiled.library import Library
from llm_inference.native.runner.compiled.packing import round_weight
from llm_inference.native.runner.compiled_runner import CompiledRunner
from tests.native.family_options import OPTIONS
from tests.native.paging import Pager, random_tokens
from tests.native.runner.compiled.rounded_reference import rounded_reference
from tests.native.runner.compiled.test_library import multiply
from tests.native.runner.test_openvino_runner import held_text, logits_of
from tests.native.runner.test_runners import step_of
from tests.native.tiny_models import save_tiny

QUANTIZATIONS = ("int8", "int4")
WITH_FLOATS: tuple[dict[str, Any], ...] = (
    {"quantization": None},
    {"quantization": None, "kv_cache_dtype": "int8"},
    {"quantization": "int8", "kv_cache_dtype": "float32"},
)


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    try:
        find_or_build()
    except StartupError as error:
        pytest.skip(error.message)


def runner_on(
    directory: Path, quantization: str | None = "int8", num_threads: int = 1, **options: Any
) -> CompiledRunner:
    return CompiledRunner(
        directory,
        ModelSpec.from_directory(directory),
        dtype=torch.float32,
        quantization=quantization,
        num_threads=num_threads,
        **options,
    )


def pager_on(
    directory: Path, quantization: str | None = "int8", num_threads: int = 1, num_blocks: int = 48, **options: Any
) -> Pager:
    return Pager(runner_on(directory, quantization, num_threads, **options), block_size=32, num_blocks=num_blocks)


def assert_near(ours: torch.Tensor, reference: torch.Tensor) -> None:
    """Equal, until one of hundreds of values falls on the other side of a step of its rounding; a half of what int8
    itself costs from there on."""
    off = (ours - reference).abs()
    most = reference.abs().max()
    assert off[0].max() < 1e-4 * most
    assert off.max() < 0.05 * most
    assert off.mean() < 0.006 * most


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_the_family(
    option: str, quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, overrides = OPTIONS[option]
    save_tiny(tmp_path, family, **overrides)
    token_ids = random_tokens(75, seed=20)
    ours = pager_on(tmp_path, quantization).run(token_ids, 20, 40, 41, 42, 64)
    assert_near(ours, rounded_reference(tmp_path, quantization, monkeypatch, family).logits(token_ids))


@pytest.mark.parametrize(
    "shape",
    [
        {"hidden_size": 72, "intermediate_size": 100, "head_dim": 16},
        {"head_dim": 80, "intermediate_size": 40},
        {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1},
        {"head_dim": 4, "hidden_size": 32},
        {"num_attention_heads": 32, "num_key_value_heads": 1, "head_dim": 16},
    ],
    ids=lambda shape: ", ".join(f"{key} {value}" for key, value in shape.items()),
)
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_shapes_that_are_no_multiples(
    shape: dict[str, int], quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path, **shape)
    token_ids = random_tokens(40, seed=21)
    ours = pager_on(tmp_path, quantization, num_threads=2).run(token_ids, 33)
    assert_near(ours, rounded_reference(tmp_path, quantization, monkeypatch).logits(token_ids))


@pytest.mark.parametrize("window", [None, 5, 100, 150])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_long_contexts_and_windows(
    window: int | None, num_threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several partitions, computed apart by decodes and one after the other by chunks."""
    save_tiny(tmp_path, "mistral", sliding_window=window, max_position_embeddings=1024)
    token_ids = random_tokens(430, seed=22)
    ours = pager_on(tmp_path, num_threads=num_threads).run(token_ids, 300, 301, 304, 429)
    assert_near(ours, rounded_reference(tmp_path, "int8", monkeypatch, "mistral").logits(token_ids))


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"quantization": "int4"}, *WITH_FLOATS], ids=str)
@pytest.mark.parametrize("window", [None, 40, 150])
def test_a_token_gets_the_same_bits_alone_in_company_and_in_any_chunk(
    window: int | None, options: dict[str, Any], tmp_path: Path
) -> None:
    save_tiny(tmp_path, "mistral", sliding_window=window, max_position_embeddings=1024, hidden_size=96)
    pager = pager_on(tmp_path, num_threads=2, num_blocks=160, **options)
    lengths = (1, 2, 31, 64, 130, 300, 410)
    sequences = [pager.add(random_tokens(length + 3, seed=length)) for length in lengths]
    alone = [pager.run(sequence.token_ids) for sequence in sequences]
    for sequence, length in zip(sequences, lengths, strict=True):
        pager.step([(sequence, 0, length)])
    for offset, whole in ((0, 1), (1, 3)):  # decodes, then chunks of two
        results = pager.step([(s, n + offset, n + whole) for s, n in zip(sequences, lengths, strict=True)])
        for length, logits, expected in zip(lengths, results, alone, strict=True):
            assert torch.equal(logits, expected[length + offset : length + whole])
    for cuts in ((100,), (7, 8, 9, 300), tuple(range(1, 413, 37))):
        assert torch.equal(pager.run(sequences[-1].token_ids, *cuts), alone[-1])


@pytest.mark.parametrize("quantization", ["int8", None])
def test_the_number_of_threads_changes_no_bit(quantization: str | None, tmp_path: Path) -> None:
    save_tiny(tmp_path, intermediate_size=200)
    token_ids = random_tokens(200, seed=23)
    first, *others = [pager_on(tmp_path, quantization, n).run(token_ids, 150, 151) for n in (1, 2, 3, 5)]
    for other in others:
        assert torch.equal(first, other)


@pytest.mark.parametrize("flags", [(), pytest.param(("-march=x86-64-v3",), marks=pytest.mark.slow)], ids=str)
def test_kernels_for_other_machines_compute_the_same(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Without what this CPU has beyond the least of its kind. Sums of floats take another order there."""
    if flags and "avx2" not in read_cpu_flags():
        pytest.skip("a CPU with AVX2 is needed")
    files = sorted([*HERE.glob("*.c"), *HERE.glob("*.h")])
    compile_library(find_compiler(), files, flags, tmp_path / "step.so")
    broken = torch.ones(64, 64)
    broken[::2, 3] = float("nan")
    for bits in (8, 4):
        product = multiply(Library(tmp_path / "step.so"), round_weight(broken, bits), 64, np.ones((1, 64), np.float32))
        assert np.isnan(product[0, ::2]).all()
        np.testing.assert_allclose(product[0, 1::2], 64, rtol=1e-3)
    save_tiny(tmp_path, "mistral", sliding_window=100, max_position_embeddings=1024, intermediate_size=200)
    token_ids = random_tokens(300, seed=24)
    for quantization in (*QUANTIZATIONS, None):
        pager = pager_on(tmp_path, quantization, num_threads=2, library=tmp_path / "step.so")
        whole = pager.run(token_ids)
        assert torch.equal(pager.run(token_ids, 200, 201), whole)
        assert_near(whole, pager_on(tmp_path, quantization).run(token_ids))


def test_blocks_are_shared_and_copied(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    pager = pager_on(tmp_path)
    parent = pager.add(random_tokens(60, seed=9))
    pager.step([(parent, 0, 60)])
    destination = pager.free.pop()
    child = pager.add([*parent.token_ids, 7, 8], shared=[parent.table[0], destination])
    copied = pager.step([(child, 60, 61)], copies=[(parent.table[1], destination)])[0]
    decoded = torch.cat([copied, pager.step([(child, 61, 62)])[0]])
    assert torch.equal(decoded, pager.run(child.token_ids)[60:])


@pytest.mark.parametrize(
    "shape",
    [
        {"hidden_size": 72, "intermediate_size": 100, "head_dim": 16},
        {"head_dim": 80, "intermediate_size": 40},
        {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1},
        {"num_attention_heads": 32, "num_key_value_heads": 1, "head_dim": 52},
        {"head_dim": 4, "hidden_size": 32},
    ],
    ids=lambda shape: ", ".join(f"{key} {value}" for key, value in shape.items()),
)
@pytest.mark.parametrize("window", [None, 5, 150])
def test_float32_is_transformers_own_in_long_contexts_and_odd_shapes(
    shape: dict[str, int], window: int | None, tmp_path: Path
) -> None:
    tiny = save_tiny(tmp_path, "mistral", sliding_window=window, max_position_embeddings=1024, **shape)
    token_ids = random_tokens(430, seed=27)
    expected = tiny.logits(token_ids)
    ours = pager_on(tmp_path, None, num_threads=2).run(token_ids, 300, 301, 304, 429)
    torch.testing.assert_close(ours, expected, atol=2e-4, rtol=2e-4)
    rounded = pager_on(tmp_path, None, num_threads=2, kv_cache_dtype="int8").run(token_ids, 300, 301, 304, 429)
    assert (rounded - expected).abs().max() < 0.05 * expected.abs().max()


def test_a_float32_cache_under_rounded_weights(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    token_ids = random_tokens(90, seed=28)
    pager = pager_on(tmp_path, "int8", kv_cache_dtype="float32")
    assert pager.runner.kv_block_bytes == 2 * 2 * 2 * 32 * 16 * 4
    exact, rounded = pager.run(token_ids, 60, 61), pager_on(tmp_path, "int8").run(token_ids, 60, 61)
    assert 0 < (exact - rounded).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("filling", [0, 255])
def test_what_an_earlier_owner_left_in_a_block_does_no_harm(filling: int, tmp_path: Path) -> None:
    """Bytes of 255 are scales that are no numbers."""
    save_tiny(tmp_path, max_position_embeddings=1024)
    token_ids = random_tokens(200, seed=14)
    expected = pager_on(tmp_path).run(token_ids)
    pager = pager_on(tmp_path)
    cache: Any = pager.runner
    cache._cache.data.fill_(filling)
    assert torch.equal(pager.run(token_ids, 100, 131, 132, 199), expected)


def test_only_wanted_rows_get_logits_and_hidden_states(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path)
    pager = pager_on(tmp_path, num_threads=2)
    sequence = pager.add(random_tokens(40, seed=16))
    runner = pager.runner
    expected, states = (
        rows.clone() for rows in runner.execute_with_hidden(step_of(sequence, 0, 40, list(range(40)), list(range(40))))
    )
    assert states.shape == (40, 64)
    with torch.inference_mode():
        theirs = tiny.reference(torch.tensor([sequence.token_ids]), output_hidden_states=True).hidden_states[-1][0]
    assert (states - theirs).abs().max() < 0.1 * theirs.abs().max()
    for logits_rows, hidden_rows in ([[1, 5], []], [[], []], [[], [0, 39]], [[39], [39]], [[3, 4, 39], [0, 4, 5, 38]]):
        logits, hidden = runner.execute_with_hidden(step_of(sequence, 0, 40, logits_rows, hidden_rows))
        assert logits.dtype == hidden.dtype == torch.float32
        assert torch.equal(logits, expected[logits_rows])
        assert torch.equal(hidden, states[hidden_rows])
    assert runner.execute(step_of(sequence, 0, 40, [], [])).shape == (0, runner.vocab_size)
    assert torch.equal(runner.execute(step_of(sequence, 39, 40, [0], [])), expected[39:])


def test_sizes_and_contract(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    runner = runner_on(tmp_path)
    assert runner.vocab_size == 101
    # 2 layers × keys and values × 2 heads × 32 tokens × 16 bytes, a scale and a minimum
    assert runner.kv_block_bytes == 2 * 2 * 2 * 32 * (16 + 8)
    # In whole panels of 32 rows and groups of 64 inputs: 2112 bytes each.
    panels = 2 * ((4 + 2 + 6) * 1 + 2 * 2) + 2 * 4
    vectors = (2 * 2 + 1) * 64 * 4 + 8 * 4
    assert runner.weight_bytes == 2112 * panels + vectors


def test_refusals(tmp_path: Path) -> None:
    save_tiny(tmp_path / "a", hidden_act="mish")
    with pytest.raises(UnsupportedModelError, match="'mish' is not known"):
        runner_on(tmp_path / "a")
    save_tiny(tmp_path / "b")
    with pytest.raises(UnsupportedModelError, match=r"weights in float32, int8 and int4, not fp8; set `runner: open"):
        runner_on(tmp_path / "b", "fp8")
    config = tmp_path / "b" / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(SourceError, match=r"the weights lack model\.layers\.2\."):
        runner_on(tmp_path / "b")
    save_tiny(tmp_path / "c", head_dim=18)
    with pytest.raises(UnsupportedModelError, match=r"'head_dim' is 18; set `runner: torch`"):
        runner_on(tmp_path / "c")


@pytest.mark.slow
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_it_is_close_to_float32_on_held_text(quantization: str, repository: Path, default_model_dir: Path) -> None:
    from tests.native.runner.runners import pager_on as other_pager_on

    texts = list(held_text(repository, default_model_dir, num_windows=12, length=128))
    exact_pager = other_pager_on("torch", default_model_dir)
    exact = torch.cat([logits_of(exact_pager, text) for text in texts]).log_softmax(-1)
    pager = pager_on(default_model_dir, quantization, num_threads=2)
    rounded = torch.cat([logits_of(pager, text) for text in texts]).log_softmax(-1)
    divergence = (exact.exp() * (exact - rounded)).sum(-1).mean()
    agreement = (exact.argmax(-1) == rounded.argmax(-1)).float().mean()
    print(f"{quantization}: divergence {divergence:.4f}, agreement {agreement:.1%}")
    assert divergence <= 0.02
    assert agreement >= 0.93
