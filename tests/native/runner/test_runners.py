"""One suite for all runners: whatever the paging, chunks and company, each token gets what transformers gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from llm_inference.errors import OutOfMemoryError, SourceError, UnsupportedModelError
from llm_inference.native.batch import ModelInput
from tests.native.cores import make_request, run
from tests.native.family_options import OPTIONS
from tests.native.paging import PagedSequence, Pager, random_tokens
from tests.native.runner.runners import BLOCK_SIZE, RUNNERS, make_runner, pager_on
from tests.native.tiny_models import TinyModel, reload, save_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("llama"))


@pytest.fixture(params=RUNNERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=RUNNERS)
def pager(request: pytest.FixtureRequest, tiny: TinyModel) -> Pager:
    return pager_on(request.param, tiny.directory, num_blocks=128)


def assert_equal(ours: torch.Tensor, reference: torch.Tensor) -> None:
    torch.testing.assert_close(ours, reference, atol=2e-4, rtol=2e-4)


def step_of(sequence: PagedSequence, start: int, end: int, logits: list[int], hidden: list[int]) -> ModelInput:
    """Tokens `start … end` of one sequence; the rows are counted from `start`."""
    table = sequence.table[: -(-end // BLOCK_SIZE)]
    return ModelInput(
        token_ids=sequence.token_ids[start:end],
        positions=list(range(start, end)),
        slot_mapping=[table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start, end)],
        query_lens=[end - start],
        context_lens=[end],
        block_tables=[table],
        logits_indices=logits,
        block_copies=[],
        num_decodes=int(end - start == 1),
        hidden_indices=hidden,
    )


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_the_family(name: str, option: str, tmp_path: Path) -> None:
    family, overrides = OPTIONS[option]
    tiny = save_tiny(tmp_path, family, **overrides)
    token_ids = random_tokens(75, seed=20)
    assert_equal(pager_on(name, tmp_path).run(token_ids, 20, 40, 41, 42, 64), tiny.logits(token_ids))


def test_chunk_boundaries(pager: Pager, tiny: TinyModel) -> None:
    token_ids = random_tokens(70, seed=1)
    expected = tiny.logits(token_ids)
    for cut in (1, 2, 15, 16, 31, 32, 33, 63, 64, 65, 69):
        sequence = pager.add(token_ids)
        parts = [pager.step([(sequence, a, b)])[0] for a, b in ((0, cut), (cut, 70))]
        assert_equal(torch.cat(parts), expected)
        pager.free += sequence.table


@pytest.mark.parametrize("window", [None, 9])
def test_decodes_and_chunks_mixed_in_one_step(name: str, window: int | None, tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path, "mistral", sliding_window=window)
    pager = pager_on(name, tmp_path, num_blocks=40)
    lengths = [5, 140, 63, 33, 90, 1]
    prompts = [random_tokens(length + 3, seed=length) for length in lengths]
    expected = [tiny.logits(prompt) for prompt in prompts]
    sequences = [pager.add(prompt) for prompt in prompts]
    for index, length in enumerate(lengths[:3]):
        pager.step([(sequences[index], 0, length)])
    # Three decodes of very different lengths, a whole prompt and chunks of two; then everything decodes or goes on.
    steps = [
        [(0, 5, 6), (1, 140, 141), (2, 63, 64), (3, 0, 33), (4, 0, 50), (5, 0, 2)],
        [(0, 6, 7), (1, 141, 142), (2, 64, 65), (3, 33, 34), (4, 50, 90), (5, 2, 3)],
        [(2, 65, 66), (4, 90, 93)],
    ]
    for work in steps:
        results = pager.step([(sequences[index], start, end) for index, start, end in work])
        for (index, start, end), logits in zip(work, results, strict=True):
            assert_equal(logits, expected[index][start:end])


def test_a_shared_prefix_is_read_not_computed(pager: Pager, tiny: TinyModel) -> None:
    prefix = random_tokens(64, seed=7)
    first = pager.add(prefix + random_tokens(5, seed=8))
    pager.step([(first, 0, 69)])
    others = [pager.add(prefix + random_tokens(4, seed=seed), shared=first.table[:2]) for seed in (9, 10)]
    results = pager.step([(other, 64, 68) for other in others])
    for other, logits in zip(others, results, strict=True):
        assert_equal(logits, tiny.logits(other.token_ids)[64:])


def test_a_partly_filled_block_is_copied_before_the_step(pager: Pager, tiny: TinyModel) -> None:
    parent = pager.add(random_tokens(42, seed=10))
    pager.step([(parent, 0, 42)])
    source, destination = parent.table[-1], pager.free.pop()
    left, right = random_tokens(2, seed=11)
    child = pager.add([*parent.token_ids, left], shared=[*parent.table[:-1], destination])
    parent.token_ids.append(right)
    results = pager.step([(child, 42, 43), (parent, 42, 43)], copies=[(source, destination)])
    assert_equal(results[0], tiny.logits(child.token_ids)[42:])
    assert_equal(results[1], tiny.logits(parent.token_ids)[42:])


def test_copies_of_one_step_are_made_as_if_at_the_same_time(pager: Pager, tiny: TinyModel) -> None:
    """Two sequences change blocks with each other."""
    sequences = [pager.add(random_tokens(12, seed=seed)) for seed in (12, 13)]
    for sequence in sequences:
        pager.step([(sequence, 0, 11)])
    (a,), (b,) = (sequence.table for sequence in sequences)
    sequences[0].table, sequences[1].table = [b], [a]
    results = pager.step([(sequence, 11, 12) for sequence in sequences], copies=[(a, b), (b, a)])
    for sequence, logits in zip(sequences, results, strict=True):
        assert_equal(logits, tiny.logits(sequence.token_ids)[11:])


def test_what_an_earlier_owner_left_in_a_block_does_no_harm(name: str, tiny: TinyModel) -> None:
    pager = pager_on(name, tiny.directory)
    cache = pager.runner._attention.cache if name == "torch" else pager.runner._cache  # type: ignore[attr-defined]
    cache.data.fill_(float("nan"))
    long, short = pager.add(random_tokens(100, seed=14)), pager.add(random_tokens(9, seed=15))
    pager.step([(long, 0, 99), (short, 0, 8)])
    results = pager.step([(short, 8, 9), (long, 99, 100)])
    assert_equal(results[0], tiny.logits(short.token_ids)[8:])
    assert_equal(results[1], tiny.logits(long.token_ids)[99:])


def test_only_wanted_rows_get_logits_and_hidden_states(pager: Pager, tiny: TinyModel) -> None:
    sequence = pager.add(random_tokens(40, seed=16))
    expected = tiny.logits(sequence.token_ids)
    with torch.inference_mode():
        states = tiny.reference(torch.tensor([sequence.token_ids]), output_hidden_states=True).hidden_states[-1][0]
    runner = pager.runner
    for logits_rows, hidden_rows in ([[1, 5], []], [[], []], [[], [0, 39]], [[39], [39]], [[3, 4, 39], [0, 4, 5, 38]]):
        logits, hidden = runner.execute_with_hidden(step_of(sequence, 0, 40, logits_rows, hidden_rows))
        assert logits.dtype == hidden.dtype == torch.float32
        assert_equal(logits, expected[logits_rows])
        assert_equal(hidden, states[hidden_rows])
    assert runner.execute(step_of(sequence, 0, 40, [], [])).shape == (0, runner.vocab_size)
    assert_equal(runner.execute(step_of(sequence, 39, 40, [0], [])), expected[39:])


def test_a_row_does_not_depend_on_the_batch(pager: Pager) -> None:
    sequences = [pager.add(random_tokens(12, seed=seed)) for seed in range(6)]
    for sequence in sequences:
        pager.step([(sequence, 0, 11)])
    alone = pager.step([(sequences[2], 11, 12)])[0]
    together = pager.step([(sequence, 11, 12) for sequence in sequences])[2]
    torch.testing.assert_close(alone, together, atol=2e-5, rtol=2e-5)


def test_sizes_and_contract(name: str, tiny: TinyModel) -> None:
    runner = make_runner(name, tiny.directory)
    assert runner.vocab_size == 101
    # 2 layers × keys and values × 2 heads × 16 × 32 tokens × 4 bytes
    assert runner.kv_block_bytes == 2 * 2 * 2 * 16 * 32 * 4
    with pytest.raises(OutOfMemoryError, match=r"KV cache of 1000000000000 blocks .* lower"):
        runner.allocate_kv_cache(10**12)


def test_the_core_gives_the_same_tokens_on_each(tmp_path: Path) -> None:
    """Prompts that share beginnings, and choices that fork off in the middle of a block."""
    tiny = save_tiny(tmp_path)
    prefix = random_tokens(70, seed=17)
    prompts = [prefix + random_tokens(size, seed=size) for size in (3, 9, 27, 40)] + [random_tokens(5, seed=4)]
    outcomes = {}
    for name in RUNNERS:
        core = make_core_on(name, tmp_path)
        requests = [
            make_request(str(index), prompt, n=3, max_tokens=20, min_tokens=20, temperature=t, seed=index)
            for index, prompt in enumerate(prompts)
            for t in [0.0 if index % 2 else 0.7]
        ]
        first = run(core, requests)
        again = run(core, [make_request("again", prompts[0], max_tokens=20, min_tokens=20)])
        assert again["again"][0].num_cached_tokens == 64
        outcomes[name] = {key: [choice.token_ids for choice in value] for key, value in (first | again).items()}
    assert outcomes["openvino"] == outcomes["compiled"] == outcomes["torch"]
    greedy = prompts[1]
    for token in outcomes["torch"]["1"][0]:
        assert token == int(tiny.logits(greedy)[-1].argmax())
        greedy = [*greedy, token]


def make_core_on(name: str, directory: Path) -> Any:
    from llm_inference.native.core import EngineCore
    from llm_inference.native.kv_cache import KVCacheManager
    from llm_inference.native.sampler import Sampler
    from llm_inference.native.scheduler import Scheduler
    from llm_inference.native.scheduler_config import SchedulerConfig

    num_blocks = 18
    runner = make_runner(name, directory)
    runner.allocate_kv_cache(num_blocks)
    limits = {"max_num_seqs": 16, "max_num_batched_tokens": 64, "max_model_len": 256}
    scheduler = Scheduler(
        SchedulerConfig(block_size=BLOCK_SIZE, **limits), KVCacheManager(num_blocks, BLOCK_SIZE, True)
    )
    return EngineCore(runner, scheduler, Sampler(runner.vocab_size, torch.device("cpu")), None, block_size=BLOCK_SIZE)


def test_a_head_that_differs_though_the_configuration_ties_it(name: str, tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path, tie_word_embeddings=False)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    token_ids = random_tokens(10, seed=18)
    assert_equal(pager_on(name, tmp_path).run(token_ids), tiny.logits(token_ids))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_checkpoint_in_half_precision_computed_in_float32(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path, "qwen2", tie_word_embeddings=True)
    half = tmp_path / "half"
    tiny.reference.to(dtype).save_pretrained(half)
    token_ids = random_tokens(40, seed=19)
    assert_equal(pager_on(name, half).run(token_ids, 33), TinyModel(half, reload(half)).logits(token_ids))


def test_refusals(name: str, tmp_path: Path) -> None:
    save_tiny(tmp_path / "a", hidden_act="mish")
    with pytest.raises(UnsupportedModelError, match="'mish' is not known"):
        make_runner(name, tmp_path / "a")
    save_tiny(tmp_path / "b")
    config = tmp_path / "b" / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(SourceError, match=r"the weights lack model\.layers\.2\."):
        make_runner(name, tmp_path / "b")
