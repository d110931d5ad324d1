"""A script in a process of its own, with a library that is made up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llm_inference.errors import EngineError, StartupError
from llm_inference.tools.compare.library_target import SCRIPTS, open_library
from llm_inference.tools.compare.measured import measure
from llm_inference.tools.compare.memory import resident_bytes, tree
from llm_inference.tools.compare.workloads import Request, Suite, Workload

LIBRARY = """
import sys
sys.path.insert(0, {scripts!r})
import loop

class Pipeline:
    def __init__(self, setup):
        if setup["how"] == "no model":
            raise SystemExit("error: the model is not there")
        self.how, self.left = setup["how"], {{}}
    def versions(self):
        return {{"made-up": "1.2"}}
    def add(self, key, token_ids, max_tokens):
        self.left[key] = max_tokens
    def step(self):
        if self.how == "fails" and len(self.left) > 1:
            raise ValueError("out of blocks")
        if self.how == "dies" and len(self.left) > 1:
            import os
            os._exit(9)
        news = []
        for key in list(self.left):
            self.left[key] -= 1
            news.append((key, 1, not self.left[key], None))
            if not self.left[key]:
                del self.left[key]
        return news
    def abort(self, key):
        self.left.pop(key)

def open_pipeline(setup):
    return Pipeline(setup)

if __name__ == "__main__":
    loop.main(sys.argv[1:])
"""


def request(max_tokens: int) -> Request:
    return Request(text="", token_ids=(1, 2, 3), num_tokens=3, max_tokens=max_tokens)


WORK = Workload(name="W2", title="", requests=(request(3), request(5), request(2)), concurrency=2)
SUITE = Suite((request(1),), (WORK,))


@pytest.fixture
def argv(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "made_up.py").write_text(LIBRARY.format(scripts=str(SCRIPTS)))
    return sys.executable, "-u", str(tmp_path / "made_up.py"), "made_up"


async def test_it_works_through_its_job(tmp_path: Path, argv: tuple[str, ...]) -> None:
    async with open_library("made up", argv, {"how": "well"}, SUITE, 20, tmp_path) as one:
        assert one.versions == {"made-up": "1.2"}
        result = measure(await one.target.run(WORK, 20))
        [pid] = one.pids
        assert resident_bytes(tree([pid])) > 10**6
    assert (result.num_requests, result.output_tokens, result.complete) == (3, 10, True)
    assert not Path(f"/proc/{pid}").exists()


async def test_no_model_no_start(tmp_path: Path, argv: tuple[str, ...]) -> None:
    with pytest.raises(StartupError, match="the model is not there"):
        async with open_library("made up", argv, {"how": "no model"}, SUITE, 20, tmp_path):
            pass


@pytest.mark.parametrize(("how", "words"), [("fails", "ValueError: out of blocks"), ("dies", "exited with 9")])
async def test_a_failure_in_the_middle(tmp_path: Path, argv: tuple[str, ...], how: str, words: str) -> None:
    async with open_library("made up", argv, {"how": how}, SUITE, 20, tmp_path) as one:
        with pytest.raises(EngineError, match=words):
            await one.target.run(WORK, 20)
        with pytest.raises(EngineError, match="not run, as the workload before failed"):
            await one.target.run(WORK, 20)


async def test_prompts_need_tokens(tmp_path: Path, argv: tuple[str, ...]) -> None:
    text = Request(text="a", token_ids=None, num_tokens=1, max_tokens=1)
    with pytest.raises(StartupError, match="say --tokenizer"):
        async with open_library("made up", argv, {}, Suite((text,), ()), 20, tmp_path):
            pass
