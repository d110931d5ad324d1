"""The command line, `llm_inference.cli.bench`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from llm_inference.cli.main import main
from tests.tools.bench.scripted import Script, scripted

FLAGS = ("--num-prompts", "4", "--input-len", "20:30", "--output-len", "3", "--concurrency", "2")


async def invoke(script: Script, *flags: str) -> int:
    async with scripted(script) as server:
        return await asyncio.to_thread(main, ["bench", "serve", "--url", server.url, *FLAGS, *flags])


async def test_a_table_on_stdout_and_everything_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    code = await invoke(
        Script(tokenizer=True), "--json", str(file), "--save-requests", "--slo", "ttft:5000", "tpot:5000"
    )
    assert code == 0
    captured = capsys.readouterr()
    assert "requests              4 done, 0 failed" in captured.out
    assert "goodput               4 of 4 requests (100.0%)" in captured.out
    assert captured.err == ""
    report = json.loads(file.read_text())
    assert report["num_requests"] == len(report["requests"]) == 4
    assert report["settings"]["concurrency"] == 2
    assert report["settings"]["slo"] == "ttft:5000 tpot:5000"


async def test_a_failed_request_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert await invoke(Script(tokenizer=True, mishaps={3: "truncate"})) == 1
    assert "1 × truncated" in capsys.readouterr().out


async def test_a_result_that_cannot_be_written_is_printed_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await invoke(Script(tokenizer=True), "--json", str(tmp_path)) == 2
    captured = capsys.readouterr()
    assert "4 done" in captured.out
    assert captured.err == f"error: {tmp_path} cannot be written: Is a directory\n"


async def test_a_wrong_start_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, words in (
        (("--input-len", "x"), "--input-len"),
        (("--slo", "x"), "--slo"),
        (("--save-requests",), "--save-requests would have no effect"),
        (("--json", str(tmp_path / "absent" / "x.json")), "does not exist"),
        (("--plot", str(tmp_path / "x.gif")), "must end in"),
        (("--model", "", "--duration", "-1"), "--duration"),
    ):
        assert await invoke(Script(), *flags) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert words in captured.err


async def test_a_picture_that_cannot_be_drawn_is_refused_before_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert await invoke(Script(), "--plot", str(tmp_path / "x.png")) == 2
    assert "llm-inference[plot]" in capsys.readouterr().err


async def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "x.svg"
    assert await invoke(Script(tokenizer=True), "--plot", str(file)) == 0
    assert "<svg" in file.read_text()


async def test_every_flag_reaches_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from llm_inference.cli.bench import _settings
    from llm_inference.cli.main import build_parser

    data = tmp_path / "d.jsonl"
    argv = ["bench", "serve", "--url", "http://h", "--model", "m", "--api-key", "k", "--endpoint", "completions"]
    argv += ["--num-prompts", "3", "--input-len", "5", "--output-len", "6:7", "--seed", "9", "--dataset", str(data)]
    argv += ["--no-ignore-eos", "--no-continuous-usage", "--concurrency", "4", "--request-rate", "2.5"]
    argv += ["--burstiness", "0.5", "--warmup", "0", "--duration", "8", "--timeout", "11", "--slo", "tpot:20"]
    settings = _settings(build_parser().parse_args(argv))
    assert settings.api_key == "k"
    assert settings.shown() == {
        "url": "http://h", "model": "m", "endpoint": "completions", "num_prompts": 3, "input_len": "5",
        "output_len": "6:7", "prefix_len": 0, "seed": 9, "dataset": str(data), "ignore_eos": False,
        "continuous_usage": False, "concurrency": 4, "request_rate": 2.5, "burstiness": 0.5, "warmup": 0,
        "duration_s": 8.0, "timeout_s": 11.0, "slo": "tpot:20", "temperature": 0,
    }  # fmt: skip


def test_a_benchmark_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench"])
    assert end.value.code == 2
    assert "BENCHMARK" in capsys.readouterr().err
