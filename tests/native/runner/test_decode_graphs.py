"""Recorded decodes give what eager ones give. Recorded by a stand-in that runs the same code again on the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from llm_inference.errors import OutOfMemoryError
from llm_inference.native.attention.flash_attention import FlashAttention
from llm_inference.native.attention.flashinfer_attention import FlashInferAttention
from llm_inference.native.batch import ModelInput
from llm_inference.native.runner.torch_runner import TorchRunner
from tests.native.attention.fake_kernels import FakeFlashAttn, FakeFlashInfer
from tests.native.paging import PagedSequence, Pager, random_tokens
from tests.native.tiny_models import TinyModel, save_tiny

SIZES = (1, 2, 4)
MAX_MODEL_LEN = 256


class Replaying:
    """Records by keeping the function, which a replay runs again."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.replayed: list[int] = []

    def __call__(self, run: Callable[[], None]) -> Callable[[], object]:
        run()
        size = tuple(reversed(SIZES))[self.num_recorded]
        self.num_recorded += 1

        def replay() -> None:
            run()
            self.replayed.append(size)

        return replay


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("mistral"), "mistral", sliding_window=9)


@pytest.fixture(autouse=True)
def _small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_inference.native.attention.flashinfer_attention.WORKSPACE_BYTES", 1024)


def makers() -> Iterator[tuple[str, int, Callable[[], Any]]]:
    """Name, block size, and what makes the attention."""
    yield "flash_attn", 256, lambda: partial(FlashAttention, max_model_len=MAX_MODEL_LEN, function=FakeFlashAttn())
    yield (
        "flashinfer",
        16,
        lambda: partial(FlashInferAttention, max_model_len=MAX_MODEL_LEN, graph_sizes=SIZES, library=FakeFlashInfer()),
    )


@pytest.fixture(params=list(makers()), ids=lambda made: made[0])
def recorded(request: pytest.FixtureRequest, tiny: TinyModel) -> tuple[Pager, Replaying]:
    _, block_size, make = request.param
    capture = Replaying()
    runner = TorchRunner(tiny.load(), block_size=block_size, make_attention=make(), graph_sizes=SIZES, capture=capture)
    pager = Pager(runner, block_size=block_size, num_blocks=40)
    runner.record_graphs()
    return pager, capture


def test_decodes_are_replayed_and_equal_transformers(tiny: TinyModel, recorded: tuple[Pager, Replaying]) -> None:
    """Batches that fit, that are padded and that are too large; chunks between them; contexts across blocks."""
    pager, capture = recorded
    assert capture.num_recorded == 3
    lengths = [14, 30, 5, 60, 2]
    prompts = [random_tokens(length + 6, seed=length) for length in lengths]
    expected = [tiny.logits(prompt) for prompt in prompts]
    sequences = [pager.add(prompt) for prompt in prompts]
    at = dict.fromkeys(range(5), 0)

    def step(work: dict[int, int]) -> None:
        """So many more tokens of each sequence."""
        rows = pager.step([(sequences[i], at[i], at[i] + count) for i, count in work.items()])
        for (index, count), logits in zip(work.items(), rows, strict=True):
            torch.testing.assert_close(logits, expected[index][at[index] : at[index] + count], atol=1e-4, rtol=1e-4)
            at[index] += count

    for index, length in enumerate(lengths):
        step({index: length})
    assert capture.replayed == []
    step({0: 1, 1: 1})
    step({0: 1, 1: 1, 3: 1})  # padded to 4
    step({4: 1})
    step({0: 1, 1: 1, 2: 1, 3: 1})
    assert capture.replayed == [2, 4, 1, 4]
    step({0: 1, 2: 2})  # a chunk beside: eagerly
    step({0: 1, 1: 1, 2: 1, 3: 1, 4: 1})  # too many: eagerly
    assert capture.replayed == [2, 4, 1, 4]
    step({3: 1, 0: 1, 4: 1})
    assert capture.replayed == [2, 4, 1, 4, 4]


def test_copies_and_fresh_blocks_come_before_a_replay(tiny: TinyModel, recorded: tuple[Pager, Replaying]) -> None:
    pager, capture = recorded
    block_size = pager.block_size
    length = min(block_size, 10)
    parent = pager.add(random_tokens(length, seed=3))
    pager.step([(parent, 0, length)])
    copy = pager.free.pop()
    child = PagedSequence([*parent.token_ids, 7], [copy])
    [logits] = pager.step([(child, length, length + 1)], copies=[(parent.table[0], copy)])
    torch.testing.assert_close(logits, tiny.logits(child.token_ids)[-1:], atol=1e-4, rtol=1e-4)
    assert capture.replayed == [1]
    if block_size == 16:
        tokens = random_tokens(17, seed=4)
        sequence = pager.add(tokens)
        pager.step([(sequence, 0, 16)])
        assert isinstance(pager.runner, TorchRunner)
        assert pager.runner._attention is not None
        pager.runner._attention.cache.data[:, :, sequence.table[1]] = float("nan")
        [logits] = pager.step([(sequence, 16, 17)])
        torch.testing.assert_close(logits, tiny.logits(tokens)[-1:], atol=1e-4, rtol=1e-4)
        assert capture.replayed == [1, 1]


def test_all_sizes_share_one_result(recorded: tuple[Pager, Replaying]) -> None:
    """Logits of every size kept apart would take gigabytes with a large vocabulary."""
    pager, _ = recorded
    assert isinstance(pager.runner, TorchRunner)
    results = [pager.runner.execute(decodes(count)) for count in (1, 2, 4)]
    assert [len(rows) for rows in results] == [1, 2, 4]
    assert {rows.untyped_storage().data_ptr() for rows in results} == {results[0].untyped_storage().data_ptr()}
    assert results[0].untyped_storage().nbytes() == SIZES[-1] * pager.runner.vocab_size * 4


def decodes(count: int, **changes: Any) -> ModelInput:
    usual: dict[str, Any] = {
        "token_ids": [0] * count,
        "positions": [0] * count,
        "slot_mapping": [0] * count,
        "query_lens": [1] * count,
        "context_lens": [1] * count,
        "block_tables": [[0]] * count,
        "logits_indices": list(range(count)),
        "block_copies": [],
        "num_decodes": count,
    }
    return ModelInput(**usual | changes)


def test_what_a_graph_takes(recorded: tuple[Pager, Replaying]) -> None:
    runner = recorded[0].runner
    assert isinstance(runner, TorchRunner)
    graphs = runner._graphs
    assert graphs is not None
    assert all(graphs.takes(decodes(count)) for count in (1, 2, 3, 4))
    assert not graphs.takes(decodes(0))
    assert not graphs.takes(decodes(5))
    assert not graphs.takes(decodes(2, logits_indices=[0]))
    assert not graphs.takes(decodes(2, hidden_indices=[1]))
    assert not graphs.takes(decodes(2, num_decodes=1))


def test_no_memory_for_graphs(tiny: TinyModel) -> None:
    def capture(run: Callable[[], None]) -> Callable[[], object]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    make = partial(FlashAttention, max_model_len=MAX_MODEL_LEN, function=FakeFlashAttn())
    runner = TorchRunner(tiny.load(), block_size=256, make_attention=make, graph_sizes=SIZES, capture=capture)
    runner.allocate_kv_cache(4)
    with pytest.raises(OutOfMemoryError, match=r"CUDA graphs of 3 batch sizes up to 4 .*`cuda_graphs: false`"):
        runner.record_graphs()


def test_without_sizes_nothing_is_recorded(tiny: TinyModel) -> None:
    runner = TorchRunner(tiny.load(), block_size=16, capture=Replaying())
    runner.allocate_kv_cache(4)
    runner.record_graphs()
    assert runner._graphs is None
