"""What a model's files say of its vectors: pooling, normalization, longest input. The layout of sentence-transformers.

    modules.json                 Transformer ─► Pooling ─► Normalize
    1_Pooling/config.json        mean, cls or last token
    sentence_bert_config.json    max_seq_length

Without modules.json a decoder's vector is its last token's, an encoder's the mean, both of length 1. Prompts that are
written before queries and documents are the client's business. Torch-free.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from llm_inference.engine.types import Pooling
from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.model_spec.fields import JsonFields
from llm_inference.native.models.registry import ModelKind

_FLAGS: Final[dict[str, Pooling]] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_MODES: Final[dict[str, Pooling]] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
#: What each module of such a model must be called, by the last part of its type.
_KNOWN_MODULES: Final = ("Transformer", "Pooling", "Normalize")


class EmbeddingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """`size`: numbers in a whole vector. `max_tokens`: of one input; None: as many as the model has positions."""

    pooling: Pooling
    normalize: bool
    size: int
    max_tokens: int | None = None


def read_embedding_defaults(directory: Path, kind: ModelKind, size: int) -> EmbeddingDefaults:
    """Raises `SourceError` for files that are not what their names say, `UnsupportedModelError` for modules and pooling
    that would make other vectors than are made here.
    """
    max_tokens = _max_tokens(directory)
    path = directory / "modules.json"
    if not path.exists():
        pooling: Pooling = "last" if kind == "decoder" else "mean"
        return EmbeddingDefaults(pooling=pooling, normalize=True, size=size, max_tokens=max_tokens)
    pooling = "mean"
    normalize = False
    for module in _read_modules(path):
        name = str(module.get("type", "")).rpartition(".")[2]
        if name == "Pooling":
            pooling = _read_pooling(path, str(module.get("path", "")))
        elif name == "Normalize":
            normalize = True
        elif name not in _KNOWN_MODULES:
            raise UnsupportedModelError(
                f"{path}: the module {name!r} changes the vectors in a way that is not implemented; known are "
                f"{', '.join(_KNOWN_MODULES)}"
            )
    return EmbeddingDefaults(pooling=pooling, normalize=normalize, size=size, max_tokens=max_tokens)


def _read_modules(path: Path) -> list[dict[str, Any]]:
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read as JSON ({error}); fetch it again") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise SourceError(f"{path}: must hold a list of modules")
    return modules


def _read_pooling(modules: Path, folder: str) -> Pooling:
    if not folder or Path(folder).name != folder:
        raise SourceError(f"{modules}: the pooling module lies in {folder!r}, which is no folder beside it")
    config = JsonFields.read(modules.parent / folder / "config.json")
    if config.has("pooling_mode"):  # the newer form of the file
        mode = config.text("pooling_mode")
        if mode in _MODES:
            return _MODES[mode]
        chosen = [mode]
    else:
        chosen = [key for key in config.content if key.startswith("pooling_mode_") and config.boolean(key, False)]
        if len(chosen) == 1 and chosen[0] in _FLAGS:
            return _FLAGS[chosen[0]]
    raise UnsupportedModelError(
        f"{config.path}: pooling by {' and '.join(chosen) or 'nothing'} is not implemented; known are "
        f"{', '.join(_FLAGS)}, one at a time"
    )


def _max_tokens(directory: Path) -> int | None:
    for path in sorted(directory.glob("sentence_*_config.json")):
        return JsonFields.read(path).optional_integer("max_seq_length")
    return None
