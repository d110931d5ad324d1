"""A worker without a library, for `serving.py`: answers a prompt with its own tokens, one a step. Standard library.

`setup["stub"]` says how it misbehaves: "refuse" and "crash" while loading; "die", "hang" and "fail" in the step after
so many tokens; "reject" a request with its first token.
"""

from __future__ import annotations

import os
import time
from typing import Any


class StubWorker:
    def __init__(self, setup: dict[str, Any]) -> None:
        self.habits: dict[str, Any] = setup.get("stub", {})
        if "refuse" in self.habits:
            raise ValueError(self.habits["refuse"])
        if "crash" in self.habits:
            print("the library has crashed", flush=True)
            os._exit(3)
        self.requests: dict[str, tuple[list[int], dict[str, Any], int]] = {}
        self.num_steps = 0
        self.num_tokens = 0

    def report(self) -> dict[str, Any]:
        return {"precision": "stub"}

    def add(self, request_id: str, token_ids: list[int], sampling: dict[str, Any]) -> None:
        if token_ids[0] == self.habits.get("reject"):
            raise ValueError("no such prompt here", "prompt")
        if token_ids[0] == self.habits.get("reject_oddly"):
            raise KeyError("odd")
        self.requests[request_id] = (token_ids, sampling, 0)

    def abort(self, request_id: str) -> None:
        self.requests.pop(request_id, None)

    def has_work(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[dict[str, Any]]:
        time.sleep(0.005)
        self.num_steps += 1
        news = []
        for request_id, (prompt, sampling, done) in list(self.requests.items()):
            self._misbehave()
            self.num_tokens += 1
            ends = done == len(prompt) and not sampling["ignore_eos"]
            token = sampling["eos_token_ids"][0] if ends else prompt[done % len(prompt)]
            reason = "stop" if ends else "length" if done + 1 == sampling["max_tokens"] else None
            logprobs = None if sampling["logprobs"] is None else [[-0.5, [[token, -0.5]]]]
            message = {"type": "tokens", "id": request_id, "index": 0, "ids": [token], "logprobs": logprobs}
            news.append({**message, "finish_reason": reason, "last": reason is not None})
            self.requests[request_id] = (prompt, sampling, done + 1)
            if reason is not None:
                del self.requests[request_id]
        return news

    def stats(self) -> dict[str, Any]:
        return {"num_running": len(self.requests), "num_steps": self.num_steps}

    def _misbehave(self) -> None:
        if self.num_tokens == self.habits.get("die"):
            os._exit(9)
        if self.num_tokens == self.habits.get("hang"):
            time.sleep(3600)
        if self.num_tokens == self.habits.get("fail"):
            self.num_tokens += 1
            raise RuntimeError("a step went wrong")
        if "fail_always" in self.habits:
            raise RuntimeError("every step goes wrong")


def open_worker(setup: dict[str, Any]) -> StubWorker:
    return StubWorker(setup)
