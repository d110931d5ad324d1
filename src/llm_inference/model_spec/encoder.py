"""Encoders of the BERT family in the words of `ModelSpec`: other keys, other positions, other sizes."""

from __future__ import annotations

from typing import Any, Final

from llm_inference.model_spec.fields import JsonFields

#: Model types that are read here.
ENCODER_MODEL_TYPES: Final = ("bert", "roberta", "xlm-roberta", "distilbert")
#: Families whose positions are counted from behind the padding token's id.
_SHIFTED_POSITIONS: Final = ("roberta", "xlm-roberta")
_DISTILBERT: Final = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "activation": "hidden_act",
}


def in_common_words(config: JsonFields) -> JsonFields:
    """`config` with the keys that decoders use, and `max_position_embeddings` as tokens that an input may have.

    Raises `SourceError` for wrong types.
    """
    content: dict[str, Any] = {"hidden_act": "gelu", **config.content, "tie_word_embeddings": False}
    if content.get("model_type") == "distilbert":
        content |= {ours: content[theirs] for theirs, ours in _DISTILBERT.items() if theirs in content}
    if content.get("model_type") in _SHIFTED_POSITIONS:
        rows = config.integer("max_position_embeddings")
        content["max_position_embeddings"] = rows - config.integer("pad_token_id", 1, minimum=0) - 1
    return JsonFields(config.path, content)


def encoder_parameters(shape: dict[str, Any], num_positions: int) -> int:
    """Parameters by the shapes alone: `(V + P) · h + L · (4·h² + 2·h·f + 9·h + f) + 2·h`, without types and heads."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    layer = 4 * hidden * hidden + 2 * hidden * inner + 9 * hidden + inner
    return int((shape["vocab_size"] + num_positions + 2) * hidden + shape["num_layers"] * layer)
