"""A child that dies at start, hangs at start, dies under load, is slow to stop, leaves grandchildren."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from llm_inference.engine.supervisor import Child, ChildSpec, ChildState, RestartPolicy, in_public
from llm_inference.errors import StartupError

FAST = RestartPolicy(max_restarts=3, window_s=60, backoff_s=0.01, max_backoff_s=0.05)


def make_child(
    code: str,
    ready_file: Path | None = None,
    *,
    ready: Callable[[], Awaitable[None]] | None = None,
    ready_timeout_s: float = 60,
    policy: RestartPolicy = FAST,
    on_exit: Callable[[str], None] = lambda reason: None,
) -> Child:
    async def file_is_there() -> None:
        assert ready_file is not None
        while not ready_file.exists():
            await asyncio.sleep(0.01)

    return Child(
        ChildSpec(
            name="the test child",
            argv=(sys.executable, "-c", code),
            ready=ready or file_is_there,
            ready_timeout_s=ready_timeout_s,
            env={"READY_FILE": str(ready_file)},
            policy=policy,
            on_exit=on_exit,
        )
    )


TOUCH = "import os, pathlib, signal, subprocess, sys, time; pathlib.Path(os.environ['READY_FILE']).touch(); "


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


async def until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)


async def test_starts_and_stops_and_leaves_nothing(tmp_path: Path) -> None:
    child = make_child(TOUCH + "time.sleep(60)", tmp_path / "ready")
    await child.start()
    assert child.state is ChildState.READY
    pid = child.pid
    assert pid is not None
    assert alive(pid)
    await child.stop(grace_s=5)
    assert child.state is ChildState.STOPPED
    assert not alive(pid)
    await child.stop(grace_s=5)  # twice does no harm


async def test_death_at_start_tells_the_last_lines() -> None:
    child = make_child("import sys; print('weights are missing', file=sys.stderr); sys.exit(3)", Path("/nonexistent"))
    with pytest.raises(StartupError, match=r"exited with 3 before it was ready(.|\n)*weights are missing"):
        await child.start()
    assert child.state is ChildState.STOPPED


async def test_a_reason_that_lies_before_the_last_lines_is_told() -> None:
    code = (
        "print('ValueError: Free memory is less than desired'); "
        "[print(f'  File {i}, line 1') for i in range(60)]; raise SystemExit('RuntimeError: see above')"
    )
    with pytest.raises(StartupError) as caught:
        await make_child(code, Path("/nonexistent")).start()
    lines = caught.value.message.splitlines()
    assert lines[1:3] == ["  ValueError: Free memory is less than desired", "  …"]
    assert lines[-1] == "  RuntimeError: see above"
    assert len(lines) == 13


async def test_program_that_does_not_exist() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    child = Child(ChildSpec(name="ghost", argv=("/nonexistent/program",), ready=never))
    with pytest.raises(StartupError, match="cannot run /nonexistent/program"):
        await child.start()


async def test_hanging_at_start_is_killed(tmp_path: Path) -> None:
    child = make_child(
        "import os, pathlib, time; pathlib.Path(os.environ['READY_FILE'] + '.pid').write_text(str(os.getpid()));"
        "time.sleep(60)",
        tmp_path / "ready",
        ready_timeout_s=3.0,
    )
    with pytest.raises(StartupError, match="was not ready after 3 s"):
        await child.start()
    assert not alive(int((tmp_path / "ready.pid").read_text()))


async def test_error_of_ready_is_raised_as_it_is() -> None:
    async def refuse() -> None:
        raise StartupError("no such model")

    child = make_child("import time; time.sleep(60)", ready=refuse)
    with pytest.raises(StartupError, match=r"^no such model$"):
        await child.start()


async def test_death_under_load_is_told_and_mended(tmp_path: Path) -> None:
    exits: list[str] = []
    child = make_child(TOUCH + "time.sleep(60)", tmp_path / "ready", on_exit=exits.append)
    await child.start()
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: child.state is ChildState.READY and child.pid != first)
    assert child.num_restarts == 1
    assert len(exits) == 1
    assert "was killed by SIGKILL" in exits[0]
    await child.stop(grace_s=1)


async def test_restart_budget_is_spent_at_last(tmp_path: Path) -> None:
    child = make_child(TOUCH + "time.sleep(0.05); print('boom'); sys.exit(9)", tmp_path / "ready")
    await child.start()
    await until(lambda: child.state is ChildState.FAILED, 20)
    assert child.num_restarts == FAST.max_restarts
    assert "given up" in child.reason
    assert "boom" in child.reason
    assert child.pid is None
    await child.stop(grace_s=1)


async def test_deaf_to_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    child = make_child(TOUCH.replace("pathlib.Path", code + "pathlib.Path", 1) + "time.sleep(60)", tmp_path / "ready")
    await child.start()
    pid = child.pid
    assert pid is not None
    begun = time.monotonic()
    await child.stop(grace_s=0.5)
    assert 0.4 < time.monotonic() - begun < 5
    assert not alive(pid)


async def test_slow_to_drain_may_finish_within_the_grace(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys, time\n"
        "ready = pathlib.Path(os.environ['READY_FILE'])\n"
        "def drain(*args):\n"
        "    time.sleep(0.5)\n"
        "    ready.with_suffix('.drained').touch()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, drain)\n"
        "ready.touch()\n"
        "time.sleep(60)\n"
    )
    child = make_child(code, tmp_path / "ready")
    await child.start()
    begun = time.monotonic()
    await child.stop(grace_s=10)
    assert (tmp_path / "ready.drained").exists()
    assert time.monotonic() - begun < 8


async def test_a_stopped_process_is_killed_all_the_same(tmp_path: Path) -> None:
    child = make_child(TOUCH + "time.sleep(60)", tmp_path / "ready")
    await child.start()
    pid = child.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await child.stop(grace_s=0.2)
    assert not alive(pid)


async def test_stop_while_it_is_brought_back(tmp_path: Path) -> None:
    """The second start never gets ready; stop ends it and what it has started."""
    code = (
        "import os, pathlib, subprocess, time\n"
        "ready = pathlib.Path(os.environ['READY_FILE'])\n"
        "p = subprocess.Popen(['sleep', '60'])\n"
        "with open(str(ready) + '.pids', 'a') as f: print(os.getpid(), p.pid, file=f)\n"
        "time.sleep(60)\n"
    )
    pids = tmp_path / "ready.pids"
    starts = 0

    async def first_time_only() -> None:
        nonlocal starts
        starts += 1
        while starts > 1 or not pids.exists():
            await asyncio.sleep(0.01)

    child = make_child(code, tmp_path / "ready", ready=first_time_only)
    await child.start()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: len(pids.read_text().split()) == 4)
    assert child.state is ChildState.RESTARTING
    await child.stop(grace_s=0.2)
    assert child.state is ChildState.STOPPED
    await until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))


async def test_a_restart_that_hangs_is_tried_again(tmp_path: Path) -> None:
    starts = 0

    async def hang_at_the_second() -> None:
        nonlocal starts
        starts += 1
        if starts == 2:
            await asyncio.Event().wait()

    child = make_child(TOUCH + "time.sleep(60)", tmp_path / "ready", ready=hang_at_the_second, ready_timeout_s=0.5)
    await child.start()
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: child.state is ChildState.READY and starts == 3)
    assert child.num_restarts == 2
    await child.stop(grace_s=0.2)


async def test_a_start_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, subprocess, time\n"
        "p = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "pathlib.Path(os.environ['READY_FILE'] + '.pids').write_text(f'{os.getpid()} {p.pid}')\n"
        "time.sleep(60)\n"
    )
    child = make_child(code, tmp_path / "ready")
    pids = tmp_path / "ready.pids"
    starting = asyncio.create_task(child.start())
    await until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert child.state is ChildState.STOPPED
    await until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))


async def test_grandchildren_of_a_death_at_start_go_too(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, subprocess, sys\n"
        "p = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "pathlib.Path(os.environ['READY_FILE'] + '.pid').write_text(str(p.pid))\n"
        "sys.exit(4)\n"
    )
    with pytest.raises(StartupError, match="exited with 4 before it was ready"):
        await make_child(code, tmp_path / "ready").start()
    await until(lambda: not alive(int((tmp_path / "ready.pid").read_text())))


@pytest.mark.parametrize("own_session", [False, True])
async def test_grandchildren_go_with_the_child(tmp_path: Path, own_session: bool) -> None:
    code = (
        "import os, pathlib, subprocess, sys, time\n"
        f"p = subprocess.Popen(['sleep', '60'], start_new_session={own_session})\n"
        "pathlib.Path(os.environ['READY_FILE'] + '.pid').write_text(str(p.pid))\n"
        "pathlib.Path(os.environ['READY_FILE']).touch()\n"
        "time.sleep(60)\n"
    )
    child = make_child(code, tmp_path / "ready")
    await child.start()
    grandchild = int((tmp_path / "ready.pid").read_text())
    assert alive(grandchild)
    await child.stop(grace_s=1)
    await until(lambda: not alive(grandchild))


@pytest.mark.parametrize("environment", [None, {}], ids=["with the mark", "without it"])
async def test_grandchildren_of_a_crashed_child_go_before_the_restart(
    tmp_path: Path, environment: dict[str, str] | None
) -> None:
    """A process that writes a title of its own over its environment is known by its session alone."""
    code = (
        "import os, pathlib, subprocess, time\n"
        f"p = subprocess.Popen(['/bin/sleep', '60'], env={environment})\n"
        "with open(os.environ['READY_FILE'] + '.pids', 'a') as f: print(p.pid, file=f)\n"
        "pathlib.Path(os.environ['READY_FILE']).touch()\n"
        "time.sleep(60)\n"
    )
    child = make_child(code, tmp_path / "ready")
    await child.start()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    pids = tmp_path / "ready.pids"
    await until(lambda: len(pids.read_text().split()) == 2)
    first, second = map(int, pids.read_text().split())
    assert not alive(first)
    await child.stop(grace_s=1)
    await until(lambda: not alive(second))


async def test_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, pathlib\n"
        "from llm_inference.engine.supervisor import Child, ChildSpec\n"
        "async def main():\n"
        "    async def ready():\n"
        "        await asyncio.sleep(0.2)\n"
        "    child = Child(ChildSpec(name='x', argv=('sleep', '60'), ready=ready))\n"
        "    await child.start()\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    pid_file = tmp_path / "pid"
    await until(lambda: pid_file.exists() and pid_file.read_text() != "")
    pid = int(pid_file.read_text())
    assert alive(pid)
    parent.kill()
    parent.wait()
    await until(lambda: not alive(pid))


async def test_last_lines_are_kept_and_long_ones_do_not_block(tmp_path: Path) -> None:
    code = (
        TOUCH
        + "[print('line', i) for i in range(1000)]; print('x' * 3_000_000); print('end', flush=True); time.sleep(60)"
    )
    child = make_child(code, tmp_path / "ready")
    await child.start()
    await until(lambda: child.last_lines[-1:] == ["end"])
    assert "line 999" in child.last_lines
    await child.stop(grace_s=1)


async def test_a_kept_line_is_short(tmp_path: Path) -> None:
    child = make_child(TOUCH + "print('x' * 500_000, flush=True); time.sleep(60)", tmp_path / "ready")
    await child.start()
    await until(lambda: bool(child.last_lines))
    assert len(child.last_lines[0]) == 2000
    await child.stop(5)


async def test_a_child_is_brought_back_once_files_can_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = make_child(TOUCH + "time.sleep(60)", tmp_path / "ready")
    await child.start()
    real, failures = os.pipe, iter([OSError(24, "Too many open files")])

    def pipe() -> tuple[int, int]:
        for failure in failures:
            raise failure
        return real()

    monkeypatch.setattr("llm_inference.engine.supervisor.os.pipe", pipe)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: child.num_restarts == 2 and child.state is ChildState.READY)
    await child.stop(5)


def test_the_last_lines_of_a_child_stay_in_the_log() -> None:
    """`/health` needs no key; a traceback may hold paths, and parts of requests."""
    died = "the engine of m was killed by SIGKILL"
    assert in_public(died) == died
    assert in_public(f"{died}; its last lines:\n  Traceback …\n  ValueError: secret") == died
    given_up = f"the engine of m was restarted 5 times in 600 s and is given up; last: {died}"
    assert in_public(f"{given_up}; its last lines:\n  secret") == given_up
