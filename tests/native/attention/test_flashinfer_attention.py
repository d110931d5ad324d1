"""What is handed to flashinfer gives what torch's own operators give, by a stand-in that follows its documentation."""

from __future__ import annotations

import pytest
import torch

from llm_inference.native.attention.base import AttentionShape, CapturableAttention
from llm_inference.native.attention.flashinfer_attention import WRAPPER_BYTES, FlashInferAttention, workspace_bytes
from llm_inference.native.transfer import StaticParcel
from tests.native.attention.fake_kernels import FakeFlashInfer
from tests.native.attention.steps import CPU, attend_all, by_sdpa, filled_cache, paged_step, random_qkv

BLOCK_SIZE, NUM_BLOCKS = 16, 40
SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=8, scale=0.5, windows=(None, 10, None, 16, 1))
WORK = {
    "decodes": [(1, 1), (1, 16), (1, 17), (1, 100)],
    "chunks": [(5, 5), (20, 90), (16, 16), (2, 33)],
    "both": [(1, 50), (1, 2), (1, 64), (7, 7), (30, 40)],
}


@pytest.fixture(autouse=True)
def _small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_inference.native.attention.flashinfer_attention.WORKSPACE_BYTES", 1024)


def make(num_scratch_blocks: int = 0) -> tuple[FlashInferAttention, FakeFlashInfer]:
    cache = filled_cache(SHAPE, NUM_BLOCKS, BLOCK_SIZE, num_scratch_blocks=num_scratch_blocks)
    fake = FakeFlashInfer()
    made = FlashInferAttention(SHAPE, cache, torch.float32, CPU, max_model_len=200, graph_sizes=(2, 4), library=fake)
    return made, fake


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("name", WORK)
def test_it_attends_as_sdpa_does(name: str, padding: int) -> None:
    step = paged_step(WORK[name], NUM_BLOCKS, BLOCK_SIZE)
    num_rows = len(step.token_ids) + padding
    attention, fake = make()
    attended = attend_all(attention, SHAPE, step, num_rows)
    expected, cache = by_sdpa(SHAPE, step, num_rows, NUM_BLOCKS, BLOCK_SIZE)
    torch.testing.assert_close(attended, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(attention.cache.data, cache)
    # Planned once a step and kind of window, whatever the number of layers.
    assert [wrapper.num_plans for wrapper in fake.decodes] == [int(step.num_decodes > 0)] * 4
    assert [wrapper.num_plans for wrapper in fake.prefills] == [int(name != "decodes")] * 4


def test_a_static_step_follows_the_plan_of_its_size() -> None:
    attention, fake = make(num_scratch_blocks=1)
    assert isinstance(attention, CapturableAttention)
    nothing = paged_step([], NUM_BLOCKS, BLOCK_SIZE)
    parcel = StaticParcel(attention.static_inputs(nothing, 4), CPU)
    qkv = random_qkv(SHAPE, 4)
    static = attention.static_step(4, parcel.tensors)
    for work in (WORK["decodes"][1:], WORK["decodes"]):
        step = paged_step(work, NUM_BLOCKS, BLOCK_SIZE)
        parcel.fill(attention.static_inputs(step, 4))
        static = attention.static_step(4, parcel.tensors)
        attended = torch.stack([static.attend(layer, qkv) for layer in range(SHAPE.num_layers)])
        fresh, _ = make()
        fresh.cache.data.copy_(attention.cache.data[:, :, :NUM_BLOCKS])
        prepared = fresh.prepare(step, len(work))
        eager = prepared.arrive(prepared.tensors)
        expected = torch.stack([eager.attend(layer, qkv[: len(work)]) for layer in range(SHAPE.num_layers)])
        assert torch.equal(attended[:, : len(work)], expected)
    bound = [wrapper for wrapper in fake.decodes if wrapper.use_cuda_graph]
    assert len(bound) == 4, "one for each kind of window, made once"
    assert all(wrapper.num_plans == 3 for wrapper in bound)


def test_sizes_share_one_array_of_pages_and_know_what_they_take() -> None:
    attention, fake = make(num_scratch_blocks=1)
    nothing = paged_step([], NUM_BLOCKS, BLOCK_SIZE)
    for size in (4, 2):
        attention.static_inputs(nothing, size)
    pages = {wrapper.buffers[1].data_ptr() for wrapper in fake.decodes if wrapper.use_cuda_graph}  # type: ignore[union-attr]
    assert len(pages) == 1
    # Four sequences of 13 blocks; two sizes and four kinds of windows.
    assert attention.static_bytes == 2 * 4 * WRAPPER_BYTES + 4 * 13 * 4


def test_a_plan_waits_until_the_last_one_has_left_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrappers' pinned memory is written by each plan, and read by a copy that the device makes later."""
    happened: list[str] = []

    class Noted:
        def __init__(self, device: torch.device) -> None: ...

        def set(self) -> None:
            happened.append("set")

        def wait(self) -> None:
            happened.append("wait")

    monkeypatch.setattr("llm_inference.native.attention.flashinfer_attention.Mark", Noted)
    attention, fake = make(num_scratch_blocks=1)
    for wrapper in (*fake.decodes, *fake.prefills):
        monkeypatch.setattr(wrapper, "plan", lambda *args, **options: happened.append("plan"))
    step = paged_step(WORK["both"], NUM_BLOCKS, BLOCK_SIZE)
    prepared = attention.prepare(step, len(step.token_ids))
    assert happened == []
    prepared.arrive(prepared.tensors)
    assert happened == ["wait", *["plan"] * 8, "set"]
    attention.static_inputs(paged_step(WORK["decodes"], NUM_BLOCKS, BLOCK_SIZE), 4)
    assert happened[10:] == ["wait", "set"]


@pytest.mark.parametrize(
    ("heads", "graph_sizes", "needed"),
    [
        # What the library asks for where 132 processors share a long prompt: 264 / kv heads tiles of 128 rows.
        ((32, 8, 128), (), 32 * 33 * 128 * 129 * 4),
        ((16, 2, 128), (), 16 * 132 * 128 * 129 * 4),
        ((64, 8, 128), (), 64 * 33 * 128 * 129 * 4),
        ((16, 1, 256), (), 16 * 264 * 64 * 257 * 4),
        # A recorded batch of 256 decodes: 256 · 8 / 16 + 255 tiles of 16 rows.
        ((64, 8, 128), (1, 256), 64 * 383 * 16 * 129 * 4),
        ((9, 3, 64), (1, 64), 0),
    ],
)
def test_the_workspace_takes_what_is_split(
    heads: tuple[int, int, int], graph_sizes: tuple[int, ...], needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommended = 128 * 2**20
    monkeypatch.setattr("llm_inference.native.attention.flashinfer_attention.WORKSPACE_BYTES", recommended)
    size = workspace_bytes(*heads, graph_sizes)
    assert max(needed, recommended) <= size <= max(2 * needed, recommended)


@pytest.mark.parametrize(("num_heads", "expected"), [(2, False), (4, False), (6, True), (16, True)])
def test_tensor_cores_for_all_but_small_groups(num_heads: int, expected: bool) -> None:
    shape = AttentionShape(num_heads, 2, 8, 1.0, (None,))
    fake = FakeFlashInfer()
    cache = filled_cache(shape, 2, BLOCK_SIZE)
    FlashInferAttention(shape, cache, torch.float32, CPU, max_model_len=32, library=fake)
    assert fake.decodes[0].use_tensor_cores is expected
