"""From hidden states to one vector for each input: mean, last or first token, then cut and brought to length 1.

Knows neither schedulers nor models; a prompt that is computed in chunks is accumulated in float32 here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llm_inference.errors import EngineError
from llm_inference.native.batch import Batch
from llm_inference.native.request import PoolingParams


@dataclass(slots=True)
class _Sum:
    """What has been pooled of one input."""

    total: torch.Tensor  # [hidden] float32
    num_rows: int


class Pooler:
    """The vectors of decoder requests, chunk by chunk. Holds a sum for each request between two of its chunks."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}

    @torch.inference_mode()
    def take(self, batch: Batch, hidden: torch.Tensor) -> dict[str, bytes | EngineError]:
        """`hidden [rows, hidden_size]` float32: the rows that `ModelInput.hidden_indices` asks for, in that order.

        Returns, by request id, the vectors of those whose last chunk this was. A chunk that begins at position 0
        begins anew: the request was preempted, and is computed again.
        """
        done: dict[str, bytes | EngineError] = {}
        next_row = 0
        for item in batch.scheduled:
            pooling = item.sequence.request.pooling
            if pooling is None:
                continue
            request_id = item.sequence.request.request_id
            num_rows = len(item.pooled_rows)
            rows = hidden[next_row : next_row + num_rows]
            next_row += num_rows
            if item.start == 0:
                self.forget(request_id)
            if num_rows:
                known = self._sums.setdefault(request_id, _Sum(torch.zeros_like(rows[0]), 0))
                known.total += rows.sum(0)
                known.num_rows += num_rows
            if item.end == len(item.sequence.token_ids):
                known = self._sums.pop(request_id)
                done[request_id] = finish(known.total / known.num_rows, pooling, request_id)
        return done

    def forget(self, request_id: str) -> None:
        """Drop what is held for a request. Unknown ones are ignored."""
        self._sums.pop(request_id, None)


def pool(hidden: torch.Tensor, params: PoolingParams, request_id: str) -> bytes | EngineError:
    """The vector of one input that was computed whole: `hidden [tokens, hidden_size]`."""
    if params.mode == "mean":
        return finish(hidden.float().mean(0), params, request_id)
    return finish(hidden[0 if params.mode == "cls" else -1].float(), params, request_id)


def finish(vector: torch.Tensor, params: PoolingParams, request_id: str) -> bytes | EngineError:
    """Cut `vector [hidden_size]` float32 to `dimensions`, then normalize it (Matryoshka, arXiv:2205.13147).

    Little-endian float32, or the error of an input whose vector is not a number.
    """
    vector = vector[: params.dimensions]
    if params.normalize:
        vector = vector / vector.norm().clamp_min(1e-12)
    if not bool(torch.isfinite(vector).all()):
        return EngineError(
            f"the model's vector for request {request_id!r} is not a number; `precision: float32` avoids overflows of "
            "half precision"
        )
    return vector.cpu().numpy().astype("<f4").tobytes()
