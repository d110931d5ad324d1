"""Install other engines, each into a venv of its own, and see which engine would serve a model.

Only reads flags and prints; everything else is `llm_inference.adapters` and `llm_inference.serve.auto`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_inference.adapters.installs import EngineStore, Installed
    from llm_inference.adapters.recipes import Recipe

HELP = "install other engines, and see which would serve a model"
_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    install = commands.add_parser("install", help="install an engine into a venv of its own")
    install.add_argument("name", metavar="NAME", help="such as llama.cpp, openvino, onnx, vllm, transformers")
    install.add_argument("--dry-run", action="store_true", help="print the commands and run none")
    install.add_argument("--reinstall", action="store_true", help="make it anew, also where it is installed")
    install.set_defaults(run_engines=_install)
    listing = commands.add_parser("list", help="what is installed, and what each could serve here")
    listing.add_argument("model", nargs="?", metavar="MODEL", help="judge each engine by this model")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run_engines=_list)
    remove = commands.add_parser("remove", help="remove an engine that was installed from here")
    remove.add_argument("name", metavar="NAME")
    remove.set_defaults(run_engines=_remove)


def run(args: argparse.Namespace) -> int:
    code: int = args.run_engines(args)
    return code


def _install(args: argparse.Namespace) -> int:
    from llm_inference.adapters.installs import EngineStore, find_python
    from llm_inference.adapters.recipes import recipe
    from llm_inference.telemetry.devices import has_nvidia_gpu

    wanted, store, gpu = recipe(args.name), EngineStore.default(), has_nvidia_gpu()
    build, python = wanted.build(gpu=gpu), find_python(wanted)
    if args.dry_run:
        for command in store.plan(wanted, build, python, store.next_target(wanted.name)):
            print(command)
        return 0
    found = store.find(wanted)
    if found is not None and not args.reinstall:
        print(f"{_there(wanted, found)}; --reinstall makes it anew")
        return 0
    about = f"about {_size(build.download_bytes)} to download and {_size(build.disk_bytes)} of disk"
    _say(f"{wanted.name}: {wanted.what}, {about}, into {store.home(wanted.name)}")
    if not build.proven:
        _say("these versions were not run by the authors of llm-inference on such a machine")
    stamp = store.install(wanted, gpu=gpu, python=python, report=_Progress())
    version = next(
        stamp.versions[name] for name in (wanted.distribution, *wanted.also_known_as) if name in stamp.versions
    )
    print(f"{wanted.name} {version} is installed: {stamp.seconds:.0f} s, {_size(stamp.size_bytes)}")
    return 0


def _remove(args: argparse.Namespace) -> int:
    from llm_inference.adapters.installs import EngineStore
    from llm_inference.adapters.recipes import recipe
    from llm_inference.errors import ConfigError

    wanted, store = recipe(args.name), EngineStore.default()
    if not store.remove(wanted):
        raise ConfigError(f"{wanted.name} is not installed in {store.root}")
    print(f"{wanted.name} is removed")
    return 0


def _list(args: argparse.Namespace) -> int:
    from llm_inference.adapters.installs import EngineStore
    from llm_inference.adapters.recipes import RECIPES
    from llm_inference.telemetry.devices import has_nvidia_gpu

    store, gpu = EngineStore.default(), has_nvidia_gpu()
    rows = [_row(store, one, gpu) for one in RECIPES.values()]
    choice = None
    if args.model is not None:
        choice = _judge(args.model, rows)
    runners = _native_runners()
    if args.json:
        print(
            json.dumps(
                {"engines": rows, "runners": runners, **({"auto": choice} if choice is not None else {})}, indent=2
            )
        )
        return 0
    _print_rows(rows)
    print("\nrunners of the native engine on this CPU:")
    for name, state in runners.items():
        print(f"  {name.ljust(8)}  {state}")
    if choice is not None:
        print(f"\n{choice}")
    return 0


def _native_runners() -> dict[str, str]:
    from llm_inference.native.runner.choice import Machine, runner_states
    from llm_inference.native.runner.compiled.build import readiness

    return {str(name): state for name, state in runner_states(Machine.this(), readiness()).items()}


def _judge(source: str, rows: list[dict[str, Any]]) -> str:
    """Writes each row's obstacle, and returns what `engine: auto` would say."""
    from llm_inference.config.schema import ModelConfig
    from llm_inference.errors import UnsupportedModelError
    from llm_inference.serve import auto

    model = ModelConfig(model=source)
    verdicts = {one.candidate.engine: one.obstacle for one in auto.verdicts(model, progress=sys.stderr.isatty())}
    for row in rows:
        row["obstacle"] = verdicts.get(row["name"])
    try:
        return str(auto.decide(model, progress=False))
    except UnsupportedModelError as error:
        return error.message


def _row(store: EngineStore, recipe: Recipe, gpu: bool) -> dict[str, Any]:
    found, abilities = store.find(recipe), recipe.abilities
    fits = recipe.cpu is not None or (gpu and recipe.cuda is not None)
    return {
        "name": recipe.name,
        "what": recipe.what,
        "installed": found is not None,
        "version": found.version if found is not None else None,
        "how": found.how if found is not None else None,
        "where": str(found.where) if found is not None else None,
        "runs_here": fits,
        "formats": sorted(abilities.formats),
        "model_types": sorted(abilities.model_types) if abilities.model_types is not None else None,
        "quantized_checkpoints": sorted(abilities.checkpoints),
        "quantizations": sorted(abilities.online),
        "devices": sorted(abilities.devices),
        "install": f"llm-inference engines install {recipe.name}" if fits else None,
        "obstacle": None,
    }


def _print_rows(rows: list[dict[str, Any]]) -> None:
    from llm_inference.engine.choose import FORMAT_NAMES

    cells = [("ENGINE", "VERSION", "READS", "QUANTIZED", "DEVICES", "STATE")]
    for row in rows:
        quantized = ", ".join(row["quantized_checkpoints"] + [f"makes {name}" for name in row["quantizations"]])
        reads = ", ".join(FORMAT_NAMES[name] for name in row["formats"])
        if row["obstacle"] is not None:
            state = row["obstacle"]
        elif row["installed"]:
            state = {"installed": "installed", "by hand": "in a venv made by hand", "on PATH": "on PATH"}[row["how"]]
            state += f": {row['where']}"
        else:
            state = row["install"] or "needs an NVIDIA GPU"
        version = row["version"] or ("unknown" if row["installed"] else "-")
        cells.append((row["name"], version, reads, quantized or "-", ", ".join(row["devices"]), state))
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    for line in cells:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[5]]).rstrip())


def _there(recipe: Recipe, found: Installed) -> str:
    version = f" {found.version}" if found.version else ""
    how = {"installed": "is installed", "by hand": "is in a venv made by hand", "on PATH": "is on PATH"}[found.how]
    return f"{recipe.name}{version} {how} ({found.where})"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Progress:
    """Steps as lines; on a terminal pip's last line below them too, with the time since the step began."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._started = time.monotonic()

    def __call__(self, line: str, is_step: bool) -> None:
        if is_step:
            self._started = time.monotonic()
            _say(f"{self._clear()}{line}")
        elif self._live:
            seconds = int(time.monotonic() - self._started)
            text = f"  {seconds // 60}:{seconds % 60:02} {line.strip()}"[:_WIDTH]
            print(f"{self._clear()}{text}", end="", file=sys.stderr, flush=True)

    def _clear(self) -> str:
        return "\r\x1b[K" if self._live else ""
