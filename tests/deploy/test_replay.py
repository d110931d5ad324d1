"""The CPU image's steps, carried out in a scratch root (`replay.py`), for want of a container engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llm_inference.deploy.output import write
from llm_inference.deploy.render import render
from tests.deploy.cases import fake
from tests.deploy.replay import instructions
from tests.deploy.test_start import free_port


def test_instructions() -> None:
    text = "# a\nFROM x AS build\nRUN a \\\n    && b\n# c\nCMD [1]\n"
    assert instructions(text) == [("FROM", "x AS build"), ("RUN", "a && b"), ("CMD", "[1]")]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_step_of_the_image(repository: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a scratch root needs root and unshare")
    files = render("docker", fake())
    context = tmp_path / "context"
    write(files, context)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(context / "wheels"), str(repository)]
    subprocess.run(build, check=True, timeout=300)
    port = str(free_port())
    config = tmp_path / "config.yaml"
    config.write_text(files["config/config.yaml"].replace("port: 8000", f"port: {port}"))
    config.chmod(0o644)
    (tmp_path / "work").mkdir()
    command = [sys.executable, "-m", "tests.deploy.replay", str(context), str(context / "Dockerfile.cpu")]
    done = subprocess.run(
        ["unshare", "-m", *command, str(tmp_path / "work"), port, str(config), "LLM_INFERENCE_API_KEYS_1=k"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "healthy, as user 10001" in done.stdout
    assert re.search(
        r"^/opt/llm-inference/.+/runner/compiled/step-\w+-(x86-64-v3|aarch64)\.so$", done.stdout, flags=re.MULTILINE
    )
    assert "stopped by SIGTERM with 0" in done.stdout
