"""Carries out a Dockerfile without a container engine, where this machine lets us: its steps in a scratch root.

    python -m tests.deploy.replay CONTEXT DOCKERFILE WORK PORT CONFIG SECRET=VALUE …   (as root, in `unshare -m`)

Each stage is an overlay over this machine's own root, on a tmpfs; RUN runs in a chroot there, COPY copies, ENV and ARG
are filled in. What it is not: the base image is this machine, so a step that needs what only the image has, or works
only for what this machine has too much of, is not found out. Ends by starting ENTRYPOINT and CMD as the image's user,
asking HEALTHCHECK's own command, and stopping with SIGTERM. Prints a line for each.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def instructions(text: str) -> list[tuple[str, str]]:
    """(name, arguments) in order; comments are gone, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


class Stage:
    """One `FROM`: a root, its environment."""

    def __init__(self, place: Path) -> None:
        for name in ("upper", "work", "root"):
            (place / name).mkdir(parents=True)
        self.root = place / "root"
        #: What this stage itself has written.
        self.upper = place / "upper"
        self.env = {"PATH": PATH}
        options = f"lowerdir=/,upperdir={place / 'upper'},workdir={place / 'work'}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(self.root)], check=True)
        for name in ("proc", "dev"):
            subprocess.run(["mount", "--rbind", f"/{name}", str(self.root / name)], check=True)
        # The image's own temporary folder, not this machine's.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(self.root / "tmp")], check=True)

    def fill(self, text: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda match: self.env.get(match[1], ""), text)

    def run(self, *command: str, user: str | None = None) -> subprocess.Popen[bytes]:
        who = ["--userspec", user] if user else []
        return subprocess.Popen(["chroot", *who, str(self.root), *command], env=self.env | network())


def network() -> dict[str, str]:
    """What pip needs to find the index on this machine; an image's builder has settings of its own."""
    return {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}


def main(context: Path, dockerfile: Path, work: Path, port: str, config: Path, secrets: list[str]) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6g", "tmpfs", str(work)], check=True)
    stages: list[Stage] = []
    names: dict[str, Stage] = {}
    image: dict[str, list[str]] = {}
    user = None
    for name, rest in instructions(dockerfile.read_text()):
        if name == "FROM":
            stages.append(Stage(work / str(len(stages))))
            names[rest.rpartition(" AS ")[2]] = stages[-1]
        elif not stages:
            assert name == "ARG", name
            continue
        stage = stages[-1]
        if name in ("ENV", "ARG"):
            for pair in shlex.split(stage.fill(rest)):
                stage.env[pair.partition("=")[0]] = pair.partition("=")[2]
        elif name == "RUN":
            command = re.sub(r"^(--\S+ )+", "", rest)
            code = stage.run("/bin/sh", "-c", command).wait()
            assert code == 0, f"{code}: {command}"
        elif name == "COPY":
            copy(stage, context, names, rest.split())
        elif name == "USER":
            user = rest
        elif name in ("ENTRYPOINT", "CMD"):
            image[name] = json.loads(rest)
        elif name == "HEALTHCHECK":
            image[name] = json.loads(rest.partition("CMD ")[2])
        else:
            assert name in ("LABEL", "VOLUME", "EXPOSE", "FROM"), name
        print(name, rest[:90], flush=True)
    serve(stages[-1], user, image, port, config, secrets)


def copy(stage: Stage, context: Path, names: dict[str, Stage], words: list[str]) -> None:
    source = context
    if words[0].startswith("--from="):
        source = names[words.pop(0).partition("=")[2]].upper
    origin, target = source / words[0].lstrip("/"), stage.root / words[1].lstrip("/")
    if origin.is_dir():
        shutil.copytree(origin, target, symlinks=True, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(origin, target)


def serve(
    stage: Stage, user: str | None, image: dict[str, list[str]], port: str, config: Path, secrets: list[str]
) -> None:
    assert user is not None
    assert not user.startswith("0"), user
    shutil.copy(config, stage.root / "config" / "config.yaml")
    stage.env |= dict(pair.split("=", 1) for pair in secrets)
    server = stage.run(*image["ENTRYPOINT"], *image["CMD"], user=user)
    health = [word.replace("8000", port) for word in image["HEALTHCHECK"]]
    deadline = time.monotonic() + 90
    while stage.run(*health, user=user).wait() != 0:
        assert server.poll() is None, "it ended"
        assert time.monotonic() < deadline, "it is not healthy"
        time.sleep(0.5)
    owner = os.stat(f"/proc/{server.pid}").st_uid
    print("healthy, as user", owner, flush=True)
    assert owner == int(user.partition(":")[0])
    server.send_signal(signal.SIGTERM)
    print("stopped by SIGTERM with", server.wait(30), flush=True)


if __name__ == "__main__":
    main(*(Path(word) for word in sys.argv[1:4]), sys.argv[4], Path(sys.argv[5]), sys.argv[6:])  # type: ignore[misc]
