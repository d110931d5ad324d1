"""From a `model_type` to the class that runs it, and what kind of model that is. Built-ins and plugins come through the
same door. Torch-free until a class is asked for.

A package adds an architecture with an entry point in the group `llm_inference.models` (decoders) or
`llm_inference.encoders`:

    [project.entry-points."llm_inference.models"]
    my_model = "my_package.my_model:MyModelForCausalLM"
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from llm_inference.errors import UnsupportedModelError

if TYPE_CHECKING:
    from llm_inference.native.models.base import EncoderFactory, ModelFactory

#: A decoder generates text and can embed it; an encoder only embeds.
ModelKind = Literal["decoder", "encoder"]

GROUP: Final = "llm_inference.models"
ENCODER_GROUP: Final = "llm_inference.encoders"

#: model_type → "module:Class", imported when asked for.
BUILT_IN: Final = {
    "llama": "llm_inference.native.models.llama:LlamaForCausalLM",
    "mistral": "llm_inference.native.models.llama:LlamaForCausalLM",
    "qwen2": "llm_inference.native.models.llama:LlamaForCausalLM",
}
BUILT_IN_ENCODERS: Final = dict.fromkeys(
    ("bert", "roberta", "xlm-roberta", "distilbert"), "llm_inference.native.models.bert:BertEncoder"
)


def known_models() -> dict[str, str]:
    """Every decoder's model_type and where its class is. A plugin may add names, never replace a built-in one."""
    return {entry.name: entry.value for entry in entry_points(group=GROUP)} | BUILT_IN


def known_encoders() -> dict[str, str]:
    """The same of encoders."""
    return {entry.name: entry.value for entry in entry_points(group=ENCODER_GROUP)} | BUILT_IN_ENCODERS


def model_kind(model_type: str) -> ModelKind:
    """What a model of that type can do. An unknown one counts as a decoder: `model_class` says that it is unknown."""
    return "encoder" if model_type not in known_models() and model_type in known_encoders() else "decoder"


def model_class(model_type: str) -> ModelFactory:
    """A decoder's. Raises `UnsupportedModelError` for an unknown type, or a plugin that cannot be imported."""
    return cast("ModelFactory", _load(model_type, known_models(), GROUP))


def encoder_class(model_type: str) -> EncoderFactory:
    """An encoder's. Raises as `model_class`."""
    return cast("EncoderFactory", _load(model_type, known_encoders(), ENCODER_GROUP))


def _load(model_type: str, known: dict[str, str], group: str) -> Any:
    if model_type not in known:
        names = f"{', '.join(sorted(known_models()))} and, of encoders, {', '.join(sorted(known_encoders()))}"
        raise UnsupportedModelError(
            f"the native engine does not know the architecture {model_type!r}; it knows {names}. "
            f"Choose another engine (`engine:`), or install a package with an entry point in {group!r}."
        )
    module, _, name = known[model_type].partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as exc:
        raise UnsupportedModelError(
            f"the class {known[model_type]!r} for architecture {model_type!r} cannot be imported: {exc}"
        ) from exc
