"""Load for any OpenAI-compatible server with locust; the time to the first token is an entry of its own.

    pip install locust
    locust -f examples/locustfile.py --host http://127.0.0.1:8000 --users 16 --headless --run-time 60s

Every user waits for its answer before it asks again. locust's own entry `POST chat` ends with the headers of the
answer; `ttft chat` ends with the first token, `e2e chat` with the last. Environment: `BENCH_MODEL` (the first that the
server lists), `BENCH_MAX_TOKENS` (64), `BENCH_PROMPT_WORDS` (50).
"""

from __future__ import annotations

import json
import os
import random
import time

from locust import HttpUser, constant, task

MAX_TOKENS = int(os.environ.get("BENCH_MAX_TOKENS", "64"))
PROMPT_WORDS = int(os.environ.get("BENCH_PROMPT_WORDS", "50"))
WORDS = ("river", "stone", "window", "music", "market", "winter", "island", "train", "garden", "paper")


class ChatUser(HttpUser):
    """One client in a closed loop."""

    wait_time = constant(0)
    model = os.environ.get("BENCH_MODEL", "")

    def on_start(self) -> None:
        if not self.model:
            self.model = self.client.get("/v1/models").json()["data"][0]["id"]

    @task
    def chat(self) -> None:
        body = {
            "model": self.model,
            # Another prompt each time, so that no prefix cache has the answer's beginning.
            "messages": [{"role": "user", "content": " ".join(random.choices(WORDS, k=PROMPT_WORDS))}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "stream": True,
        }
        start = time.perf_counter()
        first = None
        finished = False
        with self.client.post(
            "/v1/chat/completions", json=body, stream=True, name="chat", catch_response=True
        ) as response:
            if response.status_code != 200:
                response.failure(f"{response.status_code}: {response.text[:200]}")
                return
            for line in response.iter_lines():
                if not line.startswith(b"data: ") or line == b"data: [DONE]":
                    continue
                chunk = json.loads(line[len(b"data: ") :])
                if "error" in chunk:
                    response.failure(str(chunk["error"])[:200])
                    return
                for choice in chunk["choices"]:
                    if first is None and choice["delta"].get("content"):
                        first = time.perf_counter()
                    finished = finished or choice["finish_reason"] is not None
            if first is None or not finished:
                response.failure("the stream ended without a token" if first is None else "the stream was cut off")
                return
            response.success()
        self._report("ttft", first - start)
        self._report("e2e", time.perf_counter() - start)

    def _report(self, kind: str, seconds: float) -> None:
        self.environment.events.request.fire(
            request_type=kind, name="chat", response_time=seconds * 1000, response_length=0, exception=None, context={}
        )
