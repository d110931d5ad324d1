"""Whether decodes run as CUDA graphs, for which batch sizes, and the reason that the log says. Torch-free.

A graph is recorded for a batch size; a smaller batch is padded up to the next one:

    1  2  4  8  16  24  32 … 256        at most 7 rows of padding from 8 on
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from llm_inference.errors import ConfigError
from llm_inference.native.attention.choice import AttentionName

#: Above it a step's kernels take longer than their launches, and nothing is gained.
MAX_GRAPH_SIZE: Final = 256
_STEP: Final = 8
#: What the driver and the library keep of one graph, by experience of others an upper bound; the log says the truth.
GRAPH_BYTES: Final = 8 * 2**20


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """`sizes`: ascending; empty: every step runs eagerly."""

    sizes: tuple[int, ...]
    reason: str


def choose_graphs(
    requested: Literal["auto"] | bool, *, device: str, attention: AttentionName, max_num_seqs: int
) -> GraphChoice:
    """Raises `ConfigError` when they are asked for and cannot be had."""
    if requested is False:
        return GraphChoice((), "the configuration says so")
    obstacle = None
    if not device.startswith("cuda"):
        obstacle = f"CUDA graphs need an NVIDIA GPU, and the device is {device}"
    elif attention == "sdpa":
        obstacle = "with attention sdpa the shapes of a step follow its contexts; flash_attn and flashinfer can"
    if obstacle is None:
        return GraphChoice(graph_sizes(max_num_seqs), "decoding is bound by launches without them")
    if requested is True:
        raise ConfigError(f"cuda_graphs: true cannot be had: {obstacle}. Set `cuda_graphs: auto`, or leave it out.")
    return GraphChoice((), obstacle)


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes to record, the last one not above what is needed for `max_num_seqs` sequences."""
    most = min(max_num_seqs, MAX_GRAPH_SIZE)
    sizes = [size for size in (1, 2, 4) if size < most]
    sizes += range(_STEP, most, _STEP)
    return (*sizes, most)


def graph_bytes(sizes: tuple[int, ...], *, vocab_size: int, hidden_size: int, intermediate_size: int) -> int:
    """What graphs of `sizes` take: they share one pool and one result, so those of the largest count once."""
    if not sizes:
        return 0
    # Logits of the head, in float32, and in the result; hidden states, the inner ones twice; all in four bytes.
    row = vocab_size * 12 + (6 * hidden_size + 3 * intermediate_size) * 4
    return len(sizes) * GRAPH_BYTES + sizes[-1] * row
