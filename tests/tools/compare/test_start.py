"""Every way of reaching a contender: our server with the fake engine, and each committed peer that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.adapters.installs import EngineStore
from llm_inference.adapters.recipes import RECIPES
from llm_inference.tools.compare.contender import find_contenders
from llm_inference.tools.compare.run import Comparer, CompareSettings
from llm_inference.tools.compare.start import started
from llm_inference.tools.compare.workloads import make_suite

PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"
#: It takes minutes to start.
SLOW = ("vllm-fp32",)


async def test_our_server(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("engine: fake\nmodel: fake-a\n")
    [contender] = find_contenders(["a"], tmp_path)
    suite = make_suite(None, ["W2"], quick=True)
    folder = tmp_path / "run"
    folder.mkdir()
    async with started(contender, suite, None, 20, folder) as one:
        [pid] = one.pids
        assert Path(f"/proc/{pid}").exists()
        assert one.versions["llm-inference"]
        await one.target.warm_up(suite.warmup)
        outcome = await one.target.run(suite.workloads[0], 20)
    by_index = sorted(outcome.timelines, key=lambda one: one.index)  # they come as they end
    assert [one.output_tokens for one in by_index] == [one.max_tokens for one in suite.workloads[0].requests]
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.live_engine
@pytest.mark.parametrize("name", sorted(path.stem for path in PEERS.glob("*.yaml") if path.stem not in SLOW))
async def test_a_peer(name: str) -> None:
    [contender] = find_contenders([name], PEERS)
    assert contender.model is not None
    recipe = RECIPES.get(contender.model.engine)
    if recipe is not None and EngineStore.default().find(recipe) is None:
        pytest.skip(f"{contender.model.engine} is not installed")
    settings = CompareSettings(workloads=contender.bench.workloads, rounds=1, quick=True, limit_s=60)
    result = await Comparer([contender], settings, lambda line: None, lambda result: None).run()
    [run] = result.entries[0].runs
    assert (run.error, run.errors) == (None, {})
    assert set(run.measured) == set(contender.bench.workloads)
    assert all(one.complete or one.num_cut for one in run.measured.values()), run
    assert result.entries[0].versions
