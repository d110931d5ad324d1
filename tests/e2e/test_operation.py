"""What an operator sees: refusals, shutdown, a dying core, memory, several workers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest

from tests.e2e.server import RunningServer, command, running_server, wait_ready

pytestmark = pytest.mark.e2e

MODEL = "SmolLM2-135M-Instruct"


def serve(*arguments: str, timeout_s: float = 60) -> tuple[int, str]:
    done = subprocess.run(
        command("serve", "--port", "0", *arguments), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return done.returncode, done.stderr


def refusal(*arguments: str) -> str:
    """The one line with which the command refuses; it must exit with 2 and never listen."""
    code, stderr = serve(*arguments)
    assert code == 2, stderr
    assert "serving" not in stderr
    assert "Traceback" not in stderr
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, stderr
    return stderr


@pytest.fixture
def broken_model(default_model_dir: Path, tmp_path: Path) -> Path:
    """A copy of the default model that a test may damage; the weights are a link until it does."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in default_model_dir.iterdir():
        if file.suffix == ".safetensors":
            (copy / file.name).symlink_to(file)
        else:
            shutil.copy(file, copy / file.name)
    return copy


def test_wrong_path() -> None:
    assert "/nowhere/at-all" in refusal("/nowhere/at-all")


def test_truncated_weights_are_named(broken_model: Path) -> None:
    weights = next(broken_model.glob("*.safetensors"))
    with weights.open("rb") as file:
        head = file.read(1000)
    weights.unlink()
    weights.write_bytes(head)
    assert weights.name in refusal(str(broken_model))


def test_no_tokenizer(broken_model: Path) -> None:
    for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"):
        (broken_model / name).unlink(missing_ok=True)
    assert "tokenizer" in refusal(str(broken_model))


def test_unknown_architecture(broken_model: Path) -> None:
    config = broken_model / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"perceiver"').replace("LlamaForCausalLM", "Perceiver"))
    message = refusal("--engine", "native", str(broken_model))  # `auto` would try an engine that is installed
    assert "perceiver" in message.lower()
    assert "llama" in message


def test_dtype_and_quantization_against_each_other(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("precision: bfloat16\nquantization: int8\n")
    message = refusal("--config", str(config))
    assert "precision" in message
    assert "quantization" in message


def test_too_little_memory(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("kv_cache_memory: 10MiB\n")
    message = refusal("--config", str(config))
    assert "max_model_len" in message


def test_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(command("serve", "--port", port), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "in use" in done.stderr


def test_the_gateway_is_light_and_torch_free(server: RunningServer) -> None:
    pid = server.process.pid
    status = Path(f"/proc/{pid}/status").read_text()
    rss_kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert rss_kib < 250 * 1024
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def test_the_core_socket_is_private(server: RunningServer) -> None:
    [core] = [pid for pid in server.children() if "native.server" in Path(f"/proc/{pid}/cmdline").read_text()]
    setup = Path(Path(f"/proc/{core}/cmdline").read_text().split("\0")[-2])
    socket_path = setup.with_name("core.sock")
    assert socket_path.stat().st_mode & 0o777 == 0o600
    assert socket_path.parent.parent.stat().st_mode & 0o777 == 0o700


async def test_sigterm_lets_running_requests_finish() -> None:
    with running_server() as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            stream = await client.completions.create(
                model=MODEL,
                prompt="Count: 1 2 3",
                max_tokens=60,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            chunks = [await anext(stream)]
            server.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"{server.url}/ready", timeout=5)
            assert caught.value.code == 503
            caught.value.close()
            with pytest.raises(openai.InternalServerError):
                await client.completions.create(model=MODEL, prompt="late", max_tokens=1)
            chunks += [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "length"
        assert server.process.wait(20) == 0


async def test_a_killed_core_comes_back() -> None:
    """kill -9 of the core under load: one error each, service back soon, health truthful throughout."""
    with running_server() as server:
        [core] = [pid for pid in server.children() if "native.server" in Path(f"/proc/{pid}/cmdline").read_text()]
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=60) as client:

            async def doomed() -> str:
                try:
                    stream = await client.completions.create(
                        model=MODEL,
                        prompt="Count: 1 2 3",
                        max_tokens=2000,
                        stream=True,
                        extra_body={"ignore_eos": True},
                    )
                    async for _ in stream:
                        pass
                except openai.APIError as exc:
                    return type(exc).__name__
                return "finished"

            running = [asyncio.create_task(doomed()) for _ in range(6)]
            await asyncio.sleep(1.5)
            begun = time.monotonic()
            os.kill(core, signal.SIGKILL)
            outcomes = await asyncio.wait_for(asyncio.gather(*running), 10)
            assert "finished" not in outcomes
            with urllib.request.urlopen(f"{server.url}/health", timeout=5) as reply:
                assert reply.status == 200
            await asyncio.to_thread(wait_ready, server, 30)
            assert time.monotonic() - begun < 10
            reply = await client.completions.create(
                model=MODEL, prompt="The capital of France is", max_tokens=8, temperature=0
            )
            assert "Paris" in reply.choices[0].text


async def test_two_workers_share_one_core() -> None:
    with running_server(["--workers", "2"]) as server:
        cores = [pid for pid in server.children() if "native.server" in Path(f"/proc/{pid}/cmdline").read_text()]
        workers = [
            pid for pid in server.children() if "llm_inference.serve.worker" in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        assert len(cores) == 1
        assert len(workers) == 2

        async def one(number: int) -> str:
            # A connection each, so that the kernel spreads them over the workers.
            async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
                reply = await client.completions.create(
                    model=MODEL, prompt="The capital of France is", max_tokens=8, temperature=0
                )
                return str(reply.choices[0].text)

        texts = await asyncio.gather(*(one(number) for number in range(16)))
        assert len(set(texts)) == 1
        assert "Paris" in texts[0]
