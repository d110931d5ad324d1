from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_inference.engine.fake import FakeScript
from llm_inference.errors import ConfigError, EngineError
from llm_inference.tools.bench import BenchSettings, Lengths, Report, Slo, run, run_async
from tests.gateway.serving import serving
from tests.tools.bench.scripted import Script, scripted

SHORT = {"num_prompts": 6, "input_len": Lengths.parse("20:40"), "output_len": Lengths.parse("2:6"), "concurrency": 3}


async def measured(script: Script, **settings: Any) -> tuple[Report, list[dict[str, Any]]]:
    async with scripted(script) as server:
        report = await run_async(BenchSettings(url=server.url, **{**SHORT, **settings}))
        return report, server.bodies


async def test_known_delays_come_out() -> None:
    script = Script(first_delay_s=0.1, delay_s=0.03, tokenizer=True)
    report, _ = await measured(script, output_len=Lengths.fixed(4), slo=Slo.parse(["ttft:90"]))
    assert report.ok
    assert report.tokens.output_tokens == 24
    assert (report.tokens.output_from, report.tokens.per_chunk_from) == ("usage", "usage")
    assert report.latencies["ttft_s"].min >= 0.1
    assert report.latencies["ttft_s"].p50 < 2
    assert 0.028 <= report.latencies["itl_s"].mean < 1
    assert report.latencies["itl_s"].count == 18
    # Two rounds of three at 0.1 + 3 · 0.03 s.
    assert 0.38 <= report.duration_s < 6
    assert report.max_in_flight == 3
    assert report.requests_per_s == pytest.approx(6 / report.duration_s)
    assert report.goodput is not None
    assert report.goodput.num_good == 0
    assert report.server.model == "scripted"
    assert report.client.versions["aiohttp"]
    assert report.notes == ()


async def test_probe_and_warm_up_are_not_measured() -> None:
    report, bodies = await measured(Script(tokenizer=True), warmup=2)
    assert len(bodies) == 1 + 2 + 6
    assert report.num_requests == 6
    assert [row.index for row in report.requests] == list(range(6))


async def test_the_gateway_is_measured_on_both_endpoints() -> None:
    async with serving(FakeScript(answers=["abc"], first_delay_s=0.02)) as service:
        for endpoint in ("chat", "completions"):
            settings = BenchSettings(url=f"{service.url}/v1", endpoint=endpoint, **SHORT)  # type: ignore[arg-type]
            report = await asyncio.to_thread(run, settings)
            assert report.ok, report.failures
            lengths = SHORT["input_len"].draw(7, 0, 0)[:6]  # type: ignore[attr-defined]
            assert report.tokens.input_tokens == sum(lengths)
            assert report.tokens.output_tokens == sum(Lengths.parse("2:6").draw(7, 0, 1)[:6])
            assert report.tokens.per_chunk_from == "usage"
            assert all(row.counting == "usage" for row in report.requests)
            assert report.server.version is not None
            assert report.notes == ()
        measured_requests = service.engine.requests[-6:]
        assert all(request.sampling.ignore_eos for request in measured_requests)
        assert {request.sampling.temperature for request in measured_requests} == {0}


async def test_a_schedule_and_its_duration() -> None:
    report, _ = await measured(
        Script(tokenizer=True), num_prompts=None, concurrency=None, request_rate=40.0, duration_s=0.5
    )
    assert report.ok
    assert 5 <= report.num_requests <= 50
    assert all(row.scheduled_s < 0.5 for row in report.requests)
    assert {"ttft_scheduled_s", "e2el_scheduled_s", "queue_s"} <= set(report.latencies)
    assert report.latencies["e2el_scheduled_s"].mean >= report.latencies["e2el_s"].mean


async def test_a_closed_loop_with_a_duration() -> None:
    report, _ = await measured(Script(tokenizer=True, first_delay_s=0.05), num_prompts=50, duration_s=0.2)
    assert 3 <= report.num_requests < 50
    assert report.notes == ()
    report, _ = await measured(Script(tokenizer=True), num_prompts=2, duration_s=30.0)
    assert "raise --num-prompts" in report.notes[0]


async def test_a_dataset_decides_how_many(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one two"}\n{"prompt": "three"}\n')
    for load in ({}, {"request_rate": 50.0, "concurrency": None}):
        report, _ = await measured(Script(), dataset=file, num_prompts=None, warmup=0, **load)
        assert (report.num_requests, report.tokens.input_tokens) == (2, 2 * 5 + 3)


async def test_failures_are_counted_by_kind_and_the_rest_is_measured() -> None:
    mishaps: Any = {2: "http_503", 4: "truncate", 5: "http_503", 1: "error_event"}
    report, _ = await measured(Script(tokenizer=True, mishaps=mishaps), concurrency=1)
    assert not report.ok
    assert (report.num_requests, report.num_failed) == (6, 3)
    assert {kind: one.count for kind, one in report.failures.items()} == {"http_503": 2, "truncated": 1}
    assert report.failures["http_503"].example == "full"
    assert report.latencies["ttft_s"].count == 3
    assert report.notes == ("1 of 1 warm-up requests failed: error_event: the engine died",)


async def test_a_server_without_extras_is_measured_and_said() -> None:
    refused = {"ignore_eos": "unknown field ignore_eos", "continuous_usage_stats": "unknown continuous_usage_stats"}
    report, bodies = await measured(Script(refused=refused, num_tokens=2), output_len=Lengths.fixed(5))
    assert report.ok
    assert "ignore_eos" not in bodies[-1]
    assert bodies[-1]["stream_options"] == {"include_usage": True}
    assert report.tokens.per_chunk_from == "chunks"
    assert report.tokens.output_tokens == 12
    assert len(report.notes) == 3
    assert any("fewer tokens" in note for note in report.notes)


async def test_what_is_switched_off_is_not_sent() -> None:
    _, bodies = await measured(Script(tokenizer=True), ignore_eos=False, continuous_usage=False)
    assert all("ignore_eos" not in body for body in bodies)
    assert all(body["stream_options"] == {"include_usage": True} for body in bodies)


@pytest.mark.parametrize(
    ("script", "settings", "words"),
    [
        (Script(key="k"), {}, "answers 401"),
        (Script(key="k"), {"model": "m"}, "answers 401"),
        (Script(models_status=404), {}, "answers 404; .* say --model"),
        (Script(models={"object": "error"}), {}, "no list of models"),
        (Script(models={"data": []}), {}, "lists no model"),
        (Script(mishaps={0: "not_streamed"}), {}, None),
    ],
)
async def test_a_server_that_cannot_be_measured(script: Script, settings: dict[str, Any], words: str | None) -> None:
    if words is None:
        with pytest.raises(EngineError, match="not_streamed"):
            await measured(script, **settings)
    else:
        with pytest.raises(ConfigError, match=words):
            await measured(script, **settings)


@pytest.mark.parametrize(
    "script",
    [
        Script(models_status=404),
        Script(models={"object": "error"}),
        Script(models={"data": [{"id": "another"}]}),
        Script(models={"data": [{"id": "another"}, {"id": "mine"}]}),
    ],
)
async def test_a_model_is_taken_at_the_callers_word(script: Script) -> None:
    script.tokenizer = True
    report, bodies = await measured(script, model="mine")
    assert report.ok
    assert {body["model"] for body in bodies} == {"mine"}


async def test_nobody_there_says_how_to_start_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="llm-inference serve"):
            await run_async(BenchSettings(url=url))


async def test_a_schedule_without_a_request_is_refused() -> None:
    with pytest.raises(ConfigError, match="no request is due"):
        await run_async(BenchSettings(url="http://h", request_rate=0.001, duration_s=0.1))


async def test_progress_is_drawn_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    async with scripted(Script(tokenizer=True, mishaps={3: "http_503"})) as server:
        await run_async(BenchSettings(url=server.url, **SHORT), progress=True)  # type: ignore[arg-type]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "6/6" in captured.err
    assert "failed=1" in captured.err


def test_no_torch() -> None:
    program = "import sys, llm_inference.tools.bench; print(sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
