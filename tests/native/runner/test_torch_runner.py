"""Paged, chunked, batched execution gives each sequence what it gets alone in transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from llm_inference.errors import OutOfMemoryError
from llm_inference.native.batch import ModelInput
from llm_inference.native.models.base import CausalLM
from llm_inference.native.runner.base import Runner
from llm_inference.native.runner.torch_runner import TorchRunner, round_up_rows
from tests.native.paging import random_tokens, torch_pager
from tests.native.tiny_models import TinyModel, save_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> CausalLM:
    return tiny.load()


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("mistral"), "mistral", sliding_window=9)


def assert_equal(ours: torch.Tensor, reference: torch.Tensor) -> None:
    torch.testing.assert_close(ours, reference, atol=1e-4, rtol=1e-4)


def test_chunk_boundary_at_every_position(tiny: TinyModel, model: CausalLM) -> None:
    token_ids = random_tokens(13, seed=1)
    expected = tiny.logits(token_ids)
    for cut in range(1, 13):
        assert_equal(torch_pager(model, num_blocks=8, seed=cut).run(token_ids, cut), expected)


@pytest.mark.parametrize("name", ["tiny", "sliding"])
def test_decodes_and_chunks_mixed_in_one_step(name: str, request: pytest.FixtureRequest) -> None:
    tiny: TinyModel = request.getfixturevalue(name)
    pager = torch_pager(tiny.load())
    lengths = [5, 40, 23, 9, 31, 1]
    prompts = [random_tokens(length + 3, seed=length) for length in lengths]
    expected = [tiny.logits(prompt) for prompt in prompts]
    sequences = [pager.add(prompt) for prompt in prompts]
    for index, length in enumerate(lengths[:3]):
        pager.step([(sequences[index], 0, length)])
    # Three decodes of very different lengths, two whole prompts and a chunk of one, then everything decodes.
    first = pager.step(
        [(sequences[i], lengths[i], lengths[i] + 1) for i in range(3)]
        + [(sequences[3], 0, 9), (sequences[4], 0, 20), (sequences[5], 0, 2)]
    )
    for index in range(3):
        assert_equal(first[index], expected[index][lengths[index] : lengths[index] + 1])
    assert_equal(first[3], expected[3][:9])
    assert_equal(first[4], expected[4][:20])
    assert_equal(first[5], expected[5][:2])
    second = pager.step(
        [(sequences[i], lengths[i] + 1, lengths[i] + 2) for i in range(3)]
        + [(sequences[3], 9, 10), (sequences[4], 20, 31), (sequences[5], 2, 3)]
    )
    starts = [lengths[0] + 1, lengths[1] + 1, lengths[2] + 1, 9, 20, 2]
    for index, start in enumerate(starts):
        assert_equal(second[index], expected[index][start : start + len(second[index])])


def test_short_and_long_prompt_equal_their_solo_runs(tiny: TinyModel, model: CausalLM) -> None:
    """Case D6: nothing is padded with a token, so no pad token can matter."""
    pager = torch_pager(model)
    short, long = random_tokens(2, seed=5), [*random_tokens(60, seed=6)[:-3], 2, 2, 2]  # ends in EOS ids
    results = pager.step([(pager.add(short), 0, 2), (pager.add(long), 0, 60)])
    assert_equal(results[0], tiny.logits(short))
    assert_equal(results[1], tiny.logits(long))


def test_a_shared_prefix_is_read_not_computed(tiny: TinyModel, model: CausalLM) -> None:
    pager = torch_pager(model)
    prefix = random_tokens(12, seed=7)
    first = pager.add(prefix + random_tokens(5, seed=8))
    pager.step([(first, 0, 17)])
    second = pager.add(prefix + random_tokens(6, seed=9), shared=first.table[:3])
    assert_equal(pager.step([(second, 12, 18)])[0], tiny.logits(second.token_ids)[12:])


def test_block_copies_come_before_the_step(tiny: TinyModel, model: CausalLM) -> None:
    pager = torch_pager(model)
    parent = pager.add(random_tokens(10, seed=10))
    pager.step([(parent, 0, 10)])
    source, destination = parent.table[-1], pager.free.pop()
    left, right = random_tokens(2, seed=11)
    child = pager.add([*parent.token_ids, left], shared=[*parent.table[:-1], destination])
    parent.token_ids.append(right)
    results = pager.step([(child, 10, 11), (parent, 10, 11)], copies=[(source, destination)])
    assert_equal(results[0], tiny.logits(child.token_ids)[10:])
    assert_equal(results[1], tiny.logits(parent.token_ids)[10:])


def test_only_wanted_rows_get_logits(tiny: TinyModel, model: CausalLM) -> None:
    pager = torch_pager(model)
    sequence = pager.add(random_tokens(6, seed=12))
    model_input = ModelInput(
        token_ids=sequence.token_ids,
        positions=list(range(6)),
        slot_mapping=[sequence.table[p // 4] * 4 + p % 4 for p in range(6)],
        query_lens=[6],
        context_lens=[6],
        block_tables=[sequence.table],
        logits_indices=[1, 5],
        block_copies=[],
        num_decodes=0,
    )
    assert_equal(pager.runner.execute(model_input), tiny.logits(sequence.token_ids)[[1, 5]])
    model_input.logits_indices = []
    assert pager.runner.execute(model_input).shape == (0, model.vocab_size)


def test_what_an_earlier_owner_left_in_a_block_does_no_harm(tiny: TinyModel, model: CausalLM) -> None:
    pager = torch_pager(model)
    assert pager.runner._attention is not None
    pager.runner._attention.cache.data.fill_(float("nan"))
    token_ids = random_tokens(9, seed=13)
    other = pager.add(random_tokens(30, seed=14))
    pager.step([(other, 0, 29)])
    sequence = pager.add(token_ids)
    pager.step([(sequence, 0, 8)])
    results = pager.step([(sequence, 8, 9), (other, 29, 30)])  # padded to the longer one
    assert_equal(results[0], tiny.logits(token_ids)[8:])
    assert_equal(results[1], tiny.logits(other.token_ids)[29:])


def test_a_row_does_not_depend_on_the_batch(model: CausalLM) -> None:
    """Case S2 needs more than closeness: the same bits alone and in company, as far as the products go."""
    pager = torch_pager(model)
    sequences = [pager.add(random_tokens(12, seed=seed)) for seed in range(6)]
    for sequence in sequences:
        pager.step([(sequence, 0, 11)])
    alone = pager.step([(sequences[2], 11, 12)])[0]
    together = pager.step([(sequence, 11, 12) for sequence in sequences])[2]
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=1e-5)
    assert alone.argmax() == together.argmax()


def test_sizes_and_contract(model: CausalLM) -> None:
    runner: Runner = TorchRunner(model, block_size=16)
    assert runner.vocab_size == 101
    # 2 layers × keys and values × 2 heads × 16 × 16 tokens × 4 bytes
    assert runner.kv_block_bytes == 2 * 2 * 2 * 16 * 16 * 4
    with pytest.raises(OutOfMemoryError, match=r"KV cache of 1000000000000 blocks .* lower"):
        runner.allocate_kv_cache(10**12)


def test_default_model_continues_as_transformers_does(default_model_dir: Path) -> None:
    """Greedy tokens of the real model, prompts of several lengths side by side, prefilled in chunks."""
    from transformers import AutoTokenizer

    from tests.native.tiny_models import reload

    tiny = TinyModel(default_model_dir, reload(default_model_dir))
    tokenizer = AutoTokenizer.from_pretrained(default_model_dir)
    prompts = [
        tokenizer(text)["input_ids"]
        for text in ("The capital of France is", "def factorial(n):\n", "One, two, three, four, five, six, " * 8)
    ]
    num_new = 12
    expected = [
        tiny.reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=num_new,
            min_new_tokens=num_new,
            do_sample=False,
            repetition_penalty=1.0,
        )[0].tolist()
        for prompt in prompts
    ]
    pager = torch_pager(tiny.load(), block_size=16, num_blocks=64)
    sequences = [pager.add(prompt + [0] * num_new) for prompt in prompts]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        del sequence.token_ids[len(prompt) :]
        pager.step([(sequence, 0, len(prompt) - 1)]) if len(prompt) > 1 else None
    for _ in range(num_new):
        logits = pager.step([(s, len(s.token_ids) - 1, len(s.token_ids)) for s in sequences])
        for sequence, row in zip(sequences, logits, strict=True):
            sequence.token_ids.append(int(row[0].argmax()))
    assert [sequence.token_ids for sequence in sequences] == expected


def test_steps_come_in_few_sizes() -> None:
    """Each size costs a CPU's kernels memory and a pause; none is much larger than asked for."""
    sizes = [round_up_rows(n) for n in range(1, 513)]
    assert sizes == sorted(sizes)
    assert sizes[:16] == list(range(1, 17))
    assert all(n <= size <= 1.25 * n for n, size in enumerate(sizes, start=1))
    assert len(set(sizes)) < 50
    assert round_up_rows(512) == 512
