"""One further gateway worker: attaches to engines that the parent owns, serves HTTP on the shared address.

python -m llm_inference.serve.worker RUN_DIR INDEX
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import uvloop

from llm_inference.engine.registry import EngineContext
from llm_inference.engine.supervisor import ChildSpec
from llm_inference.errors import StartupError
from llm_inference.serve.http import run_gateway
from llm_inference.serve.listener import bind
from llm_inference.serve.workforce import overseen
from llm_inference.telemetry.logging import configure_logging, pass_on


def worker_spec(run_dir: Path, index: int) -> ChildSpec:
    """How the parent runs worker `index`, which asks it at `run_dir` what to serve."""
    ready_file = run_dir / f"worker-{index}.ready"

    async def ready() -> None:
        ready_file.unlink(missing_ok=True)
        while not ready_file.exists():  # noqa: ASYNC110 - the event is a file of another process
            await asyncio.sleep(0.05)

    return ChildSpec(
        name=f"gateway worker {index}",
        argv=(sys.executable, "-m", "llm_inference.serve.worker", str(run_dir), str(index)),
        ready=ready,
        ready_timeout_s=60.0,
        on_line=pass_on,
    )


def main() -> int:
    run_dir, index = Path(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the parent reloads
    configure_logging("info", "auto", sys.stderr, worker=index)
    try:
        code: int = uvloop.run(_serve(run_dir, index))
        return code
    except StartupError as exc:
        print(f"error: {exc.message}", file=sys.stderr)
        return StartupError.exit_code


async def _serve(run_dir: Path, index: int) -> int:
    context = EngineContext(run_dir=run_dir, progress=False, owns_core=False)

    def end() -> None:
        """In order; the parent starts another one in its place."""
        os.kill(os.getpid(), signal.SIGTERM)

    async with overseen(run_dir, context, index, on_lost=end) as (config, desk, oversight):
        configure_logging(config.api.log_level, config.api.log_format, sys.stderr, worker=index)
        listener = bind(config.api, reuse_port=True)
        try:
            await run_gateway(
                config,
                desk,
                oversight,
                listener,
                run_dir,
                warm_up=index == 0,
                on_listening=(run_dir / f"worker-{index}.ready").touch,
                worker=index,
            )
        finally:
            listener.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
