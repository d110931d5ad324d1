"""One profile at a time in a core's process; what goes wrong with it ends it alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from llm_inference.native.core import EngineCore
from llm_inference.native.encoder_core import EncoderCore
from llm_inference.native.profile_turn import ProfileTurn
from llm_inference.native.request import PoolingParams
from llm_inference.native.step_profiler import StepProfiler
from llm_inference.native.wire import Profiled, ProfileSteps
from llm_inference.telemetry.profiling.figures import ProfileOrder
from llm_inference.telemetry.profiling.trace import read_trace
from llm_inference.telemetry.stages import quiet
from tests.native.cores import make_core, make_request
from tests.native.tiny_encoders import save_tiny_encoder
from tests.native.tiny_models import save_tiny


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> EngineCore:
    return make_core(save_tiny(tmp_path_factory.mktemp("tiny")))


def order(file: Path, name: str = "a") -> ProfileSteps:
    return ProfileSteps(name, ProfileOrder(num_wait=1, num_warmup=1, num_steps=3, max_s=60.0), str(file))


def play(core: EngineCore, turn: ProfileTurn, num_steps: int) -> tuple[bytes, Profiled] | None:
    core.add(make_request("r", range(3, 9), max_tokens=40))
    ended = None
    for _ in range(num_steps):
        core.step()
        turn.after_step()
        ended = turn.ended()
        if ended is not None:
            break
    core.abort("r")
    return ended


def test_from_the_order_to_the_figures(core: EngineCore, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    turn = ProfileTurn(core, "torch on cpu")
    assert turn.stages is quiet
    assert turn.begin(b"front", order(file)) is None
    assert turn.stages is not quiet
    refusal = turn.begin(b"other", order(tmp_path / "no.json", "b"))
    assert refusal is not None
    assert (refusal.profile_id, refusal.error, refusal.steps) == ("b", "OverloadedError", None)
    assert turn.ended() is None
    ended = play(core, turn, 20)
    assert ended is not None
    front, message = ended
    assert (front, message.profile_id, message.error) == (b"front", "a", "")
    assert message.steps is not None
    assert (message.steps.num_steps, message.steps.num_sequences, message.steps.num_tokens) == (3, 3, 3)
    assert message.steps.runner == "torch on cpu"
    assert file.stat().st_mode & 0o077 == 0
    figures = read_trace(file.read_bytes())
    assert figures is not None
    assert {"attention", "linear", "sampling", "scheduler"} <= figures.seconds.keys()
    assert turn.stages is quiet
    assert turn.ended() is None
    assert turn.begin(b"front", order(tmp_path / "again.json", "c")) is None
    assert play(core, turn, 20) is not None


def test_an_encoder(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("encoder")
    encoder = save_tiny_encoder(folder).load()
    core = EncoderCore(encoder, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64)
    turn = ProfileTurn(core, "torch on cpu")
    assert turn.begin(b"front", order(folder / "trace.json")) is None
    for number in range(5):
        request = make_request(f"r{number}", (5, 6, 7), max_tokens=0)
        core.add(msgspec.structs.replace(request, pooling=PoolingParams(mode="mean", group="r")))
        assert core.step().outputs
        turn.after_step()
    ended = turn.ended()
    assert ended is not None
    assert ended[1].steps is not None
    assert (ended[1].steps.num_steps, ended[1].steps.num_tokens) == (3, None)
    figures = read_trace((folder / "trace.json").read_bytes())
    assert figures is not None
    assert {"linear", "attention", "python", "scheduler"} <= figures.seconds.keys()


def test_the_time_is_up_before_a_step(core: EngineCore, tmp_path: Path) -> None:
    turn = ProfileTurn(core, "torch on cpu")
    wanted = ProfileSteps("a", ProfileOrder(max_s=0.0), str(tmp_path / "trace.json"))
    assert turn.begin(b"front", wanted) is None
    ended = turn.ended()
    assert ended is not None
    assert ended[1].steps is not None
    assert ended[1].steps.num_steps == 0
    assert not (tmp_path / "trace.json").exists()


def test_it_ends_early_with_what_there_is(core: EngineCore, tmp_path: Path) -> None:
    turn = ProfileTurn(core, "torch on cpu")
    assert turn.begin(b"front", order(tmp_path / "trace.json")) is None
    assert play(core, turn, 4) is None  # two of three are recorded
    assert turn._profiler is not None
    turn._profiler._deadline = 0.0
    ended = turn.ended()
    assert ended is not None
    assert ended[1].steps is not None
    assert ended[1].steps.num_steps == 2
    assert read_trace((tmp_path / "trace.json").read_bytes()) is not None


def test_a_trace_that_cannot_be_written(core: EngineCore, tmp_path: Path) -> None:
    turn = ProfileTurn(core, "torch on cpu")
    assert turn.begin(b"front", order(tmp_path / "absent" / "trace.json")) is None
    ended = play(core, turn, 20)
    assert ended is not None
    assert turn.stages is quiet  # whether torch says so or not, the core goes on


def test_a_profiler_that_cannot_end_leaves_the_core_unobserved(
    core: EngineCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace.json"
    file.write_text("of an earlier one")
    turn = ProfileTurn(core, "torch on cpu")
    assert turn.begin(b"front", order(file)) is None
    assert not file.exists()
    assert core._stages is not quiet
    profiler = turn._profiler
    assert profiler is not None
    stop = profiler._profiler.stop

    def fail() -> None:
        stop()
        raise RuntimeError("it broke")

    monkeypatch.setattr(profiler._profiler, "stop", fail)
    ended = play(core, turn, 20)
    assert ended is not None
    assert ended[1].error == "EngineError"
    assert core._stages is quiet


def test_a_profiler_that_fails(core: EngineCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: StepProfiler) -> None:
        raise RuntimeError("it broke")

    turn = ProfileTurn(core, "torch on cpu")
    assert turn.begin(b"front", order(tmp_path / "trace.json")) is None
    monkeypatch.setattr(StepProfiler, "after_step", fail)
    ended = play(core, turn, 20)
    assert ended is not None
    assert (ended[1].error, ended[1].message) == ("EngineError", "the profile failed: it broke")
    assert turn.stages is quiet
    monkeypatch.setattr(StepProfiler, "__init__", fail)
    refusal = turn.begin(b"front", order(tmp_path / "trace.json"))
    assert refusal is not None
    assert refusal.error == "EngineError"
