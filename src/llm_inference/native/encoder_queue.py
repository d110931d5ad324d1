"""Which inputs an encoder computes next. No tensors, no clock of its own (`now` is given).

Inputs of one client's request wait in a line of their own. A step takes one input of each line in turn, the line first
that has waited longest since it was last served; a priority level is worth as much as `ageing_s` seconds of waiting. So
a request of one text does not wait for all of a request of two thousand, and no line starves.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from dataclasses import dataclass, field

from llm_inference.native.request import CoreRequest


@dataclass(slots=True)
class Waiting:
    """An input that has not been computed."""

    request: CoreRequest
    arrival_s: float

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_token_ids)


@dataclass(slots=True)
class _Line:
    inputs: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)


class EncoderQueue:
    """`add`, `abort` and `take` at any time. Not thread-safe."""

    def __init__(self, *, ageing_s: float = 30.0) -> None:
        self._ageing_s = ageing_s
        self._lines: dict[str, _Line] = {}
        self._group_of: dict[str, str] = {}
        self._turns: list[tuple[float, int, str, _Line]] = []  # a heap; lines that ran empty are passed over
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._group_of

    def add(self, request: CoreRequest, now: float) -> None:
        """Let an input wait in its group's line. Its id must not be waiting yet."""
        assert request.request_id not in self._group_of
        group = request.request_id if request.pooling is None else request.pooling.group or request.request_id
        line = self._lines.get(group)
        if line is None:
            line = self._lines[group] = _Line()
            self._push(group, line, request.priority, now)
        line.inputs[request.request_id] = Waiting(request, now)
        self._group_of[request.request_id] = group

    def abort(self, request_id: str) -> bool:
        """Forget an input. False if it does not wait (any more)."""
        group = self._group_of.pop(request_id, None)
        if group is None:
            return False
        line = self._lines[group]
        del line.inputs[request_id]
        if not line.inputs:
            del self._lines[group]
        return True

    def take(self, max_inputs: int, max_tokens: int, now: float) -> list[Waiting]:
        """The next inputs in turn, at most `max_inputs` of at most `max_tokens` together, but at least one."""
        taken: list[Waiting] = []
        room = max_tokens
        while self._turns and len(taken) < max_inputs:
            _, _, group, line = self._turns[0]
            if not line.inputs:
                heapq.heappop(self._turns)
                continue
            waiting = next(iter(line.inputs.values()))
            if taken and waiting.num_tokens > room:
                break
            heapq.heappop(self._turns)
            self.abort(waiting.request.request_id)
            taken.append(waiting)
            room -= waiting.num_tokens
            if line.inputs:
                self._push(group, line, next(iter(line.inputs.values())).request.priority, now)
        return taken

    def _push(self, group: str, line: _Line, priority: int, now: float) -> None:
        heapq.heappush(self._turns, (priority + now / self._ageing_s, next(self._numbers), group, line))
