"""`engine: auto`: looks at the model, the machine and the installed engines, then lets `engine/choose.py` decide.

Here because it takes two rooms that know nothing of each other: what the native engine can load, and what others can.
"""

from __future__ import annotations

import logging
from pathlib import Path

from llm_inference.adapters.installs import EngineStore
from llm_inference.adapters.recipes import RECIPES, Recipe
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.choose import (
    NATIVE,
    Abilities,
    Candidate,
    Choice,
    Device,
    Format,
    Needs,
    Verdict,
    choose,
    judge,
)
from llm_inference.engine.registry import BUILT_IN, EngineContext, engine_factory
from llm_inference.errors import ConfigError, UnsupportedModelError
from llm_inference.model_spec.fields import JsonFields
from llm_inference.native.models.registry import known_encoders, known_models, model_kind
from llm_inference.native.plan import QUANTIZATIONS
from llm_inference.sources.resolve import resolve
from llm_inference.telemetry.devices import has_nvidia_gpu

logger = logging.getLogger(__name__)

CHOICE_FILE = "engine"
#: The file by which a directory that a library has made is known.
EXPORTED: dict[Format, str] = {"openvino": "openvino_model.xml", "onnx": "genai_config.json"}
#: After the native engine, which goes first: who is asked next, by device.
PREFERENCE: dict[Device, tuple[str, ...]] = {
    "cpu": ("openvino", "llama.cpp", "vllm", "onnx", "transformers"),
    "cuda": ("vllm", "sglang", "transformers"),
}


def create(model: ModelConfig, context: EngineContext) -> Engine:
    """The engine that serves `model`, chosen and planned. A further gateway worker takes what the owner has chosen."""
    file = context.run_dir / CHOICE_FILE
    if context.owns_core:
        choice = decide(model, progress=context.progress)
        logger.info("%s: %s", model.name, choice)
        file.write_text(choice.engine)
        engine = choice.engine
    else:
        engine = file.read_text()
    return engine_factory(engine)(model.model_copy(update={"engine": engine}), context)


def decide(model: ModelConfig, *, progress: bool = True, store: EngineStore | None = None) -> Choice:
    """Raises `UnsupportedModelError` naming engines that could serve it, and what `resolve` raises."""
    if model.url is not None:
        return Choice("openai", "a server runs at `url`, and `openai` is for any that speaks that API")
    if model.engine_args:
        raise ConfigError("engine_args: belong to one engine, and `engine: auto` may choose any; name it in `engine`")
    return choose(needs_of(model, progress=progress), candidates(_device(model), store))


def verdicts(model: ModelConfig, *, progress: bool = True, store: EngineStore | None = None) -> tuple[Verdict, ...]:
    """What every engine that is known here makes of `model`, those included that are never chosen on this machine."""
    device = _device(model)
    asked = candidates(device, store)
    rest = [_foreign(one, store) for name, one in RECIPES.items() if name not in {one.engine for one in asked}]
    return judge(needs_of(model, progress=progress), (*asked, *rest))


def candidates(device: Device, store: EngineStore | None = None) -> tuple[Candidate, ...]:
    """The native engine, then the others in order of preference."""
    others = (RECIPES[name] for name in PREFERENCE[device] if name in BUILT_IN)
    return (Candidate(abilities=native_abilities(), installed="built in"), *(_foreign(one, store) for one in others))


def native_abilities() -> Abilities:
    return Abilities(
        engine=NATIVE,
        formats=frozenset(("directory",)),
        devices=frozenset(("cpu", "cuda")),
        model_types=frozenset(known_models()),
        encoders=frozenset(known_encoders()),
        online=frozenset(QUANTIZATIONS),
    )


def needs_of(model: ModelConfig, *, progress: bool = True) -> Needs:
    """Resolves the model's files; a GGUF file that cannot be converted is no error here. Raises `SourceError`."""
    device = _device(model)
    exported = _exported(model)
    if exported is not None:
        return Needs(
            model_type=None,
            formats=frozenset((exported,)),
            device=device,
            quantization=model.resolved_quantization,
            tensor_parallel_size=model.tensor_parallel_size,
        )
    try:
        resolved = resolve(
            model.model,
            progress=progress,
            trust_remote_code=model.trust_remote_code,
            require_tokenizer=model.tokenizer is None,
        )
    except UnsupportedModelError as error:
        path = Path(model.model).expanduser()
        if path.suffix != ".gguf" or not path.is_file():
            raise
        return Needs(
            model_type=None,
            formats=frozenset(("gguf",)),
            device=device,
            quantization=model.resolved_quantization,
            tensor_parallel_size=model.tensor_parallel_size,
            conversion_problem=error.message,
        )
    config = JsonFields.read(resolved.directory / "config.json")
    model_type = str(config.content.get("model_type"))
    quantized = config.section("quantization_config")
    return Needs(
        model_type=model_type,
        formats=frozenset(("directory",) if resolved.gguf is None else ("directory", "gguf")),
        device=device,
        encoder=model_kind(model_type) == "encoder",
        checkpoint=None if quantized is None else str(quantized.content.get("quant_method", "unknown")),
        quantization=model.resolved_quantization,
        tensor_parallel_size=model.tensor_parallel_size,
    )


def _exported(model: ModelConfig) -> Format | None:
    """Which library has made this directory for itself; None where none has."""
    place = Path(model.model).expanduser()
    found: list[Format] = [kind for kind, name in EXPORTED.items() if (place / name).is_file()]
    return found[0] if found else None


def _foreign(recipe: Recipe, store: EngineStore | None) -> Candidate:
    found = (store or EngineStore.default()).find(recipe)
    installed = None if found is None else f"installed {found.version}" if found.version else found.how
    return Candidate(
        abilities=recipe.abilities, installed=installed, install=f"llm-inference engines install {recipe.name}"
    )


def _device(model: ModelConfig) -> Device:
    if model.device == "auto":
        return "cuda" if has_nvidia_gpu() else "cpu"
    return "cuda" if model.device.startswith("cuda") else "cpu"
