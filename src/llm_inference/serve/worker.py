"""One further gateway worker: attaches to engines that the parent owns, serves HTTP on the shared address.

python -m llm_inference.serve.worker RUN_DIR INDEX
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import uvloop
from pydantic import SecretStr

from llm_inference.config.schema import ServerConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.supervisor import ChildSpec
from llm_inference.errors import StartupError
from llm_inference.serve.engines import start_engines
from llm_inference.serve.http import run_gateway
from llm_inference.serve.listener import bind
from llm_inference.telemetry.logging import configure_logging

CONFIG_FILE = "config.json"


def worker_spec(config: ServerConfig, run_dir: Path, index: int) -> ChildSpec:
    """How the parent runs worker `index`. Writes the configuration, keys included, into the private `run_dir`."""
    file = run_dir / CONFIG_FILE
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(json.dumps(config.model_dump(exclude_unset=True), default=_reveal))
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
        on_line=lambda line: print(line, file=sys.stderr, flush=True),
    )


def main() -> int:
    run_dir, index = Path(sys.argv[1]), int(sys.argv[2])
    config = ServerConfig.model_validate(json.loads((run_dir / CONFIG_FILE).read_text()))
    configure_logging(config.api.log_level, config.api.log_format, sys.stderr, worker=index)
    try:
        code: int = uvloop.run(_serve(config, run_dir, index))
        return code
    except StartupError as exc:
        print(f"error: {exc.message}", file=sys.stderr)
        return StartupError.exit_code


async def _serve(config: ServerConfig, run_dir: Path, index: int) -> int:
    context = EngineContext(
        run_dir=run_dir,
        progress=False,
        log_level=config.api.log_level,
        log_format=config.api.log_format,
        owns_core=False,
    )
    engines = await start_engines(tuple(config.models), context)
    listener = bind(config.api, reuse_port=True)
    try:
        await run_gateway(
            config,
            engines,
            listener,
            run_dir,
            warm_up=index == 0,
            on_listening=(run_dir / f"worker-{index}.ready").touch,
            worker=index,
        )
    finally:
        for engine in engines.values():
            await engine.stop(grace_s=0)
        listener.close()
    return 0


def _reveal(value: object) -> str:
    """A secret as text, for the private file alone."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    raise TypeError(f"cannot write {type(value).__name__} to a worker's configuration")


if __name__ == "__main__":
    sys.exit(main())
