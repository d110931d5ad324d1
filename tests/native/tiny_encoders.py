"""Small random encoders made by transformers, and its hidden states: the reference that ours must equal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from llm_inference.model_spec import ModelSpec
from llm_inference.native.loader import load_encoder
from llm_inference.native.models.base import Encoder
from tests.native.tiny_models import CPU

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(96))]
MAX_TOKENS = 64

_SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (BertConfig, BertModel, {**_SHAPE, "max_position_embeddings": MAX_TOKENS}),
    "roberta": (RobertaConfig, RobertaModel, {**_SHAPE, "max_position_embeddings": MAX_TOKENS + 2, "pad_token_id": 1}),
    "xlm-roberta": (
        XLMRobertaConfig,
        XLMRobertaModel,
        {**_SHAPE, "max_position_embeddings": MAX_TOKENS + 2, "type_vocab_size": 1, "pad_token_id": 1},
    ),
    "distilbert": (
        DistilBertConfig,
        DistilBertModel,
        {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": MAX_TOKENS},
    ),
}
FAMILIES = tuple(_FAMILIES)


@dataclass(frozen=True)
class TinyEncoder:
    """A model directory, and the model in it as transformers runs it."""

    directory: Path
    reference: PreTrainedModel

    def load(self, **options: Any) -> Encoder:
        options = {"dtype": torch.float32, "device": CPU} | options
        return load_encoder(self.directory, ModelSpec.from_directory(self.directory), **options)

    @torch.inference_mode()
    def hidden(self, token_ids: list[int]) -> torch.Tensor:
        """`[tokens, hidden]` of one input alone, without padding."""
        return self.reference(torch.tensor([token_ids])).last_hidden_state[0]


def save_tiny_encoder(directory: Path, family: str = "bert", **overrides: Any) -> TinyEncoder:
    config_class, model_class, settings = _FAMILIES[family]
    torch.manual_seed(0)
    model = model_class(config_class(vocab_size=len(VOCAB), **settings | overrides)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if name.lower().endswith(("norm.weight", "norm.bias")) else 0.2
            parameter.copy_(torch.randn_like(parameter) * scale + (1 if name.lower().endswith("norm.weight") else 0))
    model.save_pretrained(directory)
    return TinyEncoder(directory, model_class.from_pretrained(directory, dtype=torch.float32).eval())


def add_files(directory: Path, *, pooling: str = "pooling_mode_mean_tokens", max_tokens: int | None = None) -> None:
    """A WordPiece tokenizer, and the layout of sentence-transformers."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece({word: i for i, word in enumerate(VOCAB)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(VOCAB[:5])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", VOCAB.index("[CLS]")), ("[SEP]", VOCAB.index("[SEP]"))]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    (directory / "modules.json").write_text(
        json.dumps([{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in modules])
    )
    (directory / "1_Pooling").mkdir(exist_ok=True)
    flags = {name: name == pooling for name in ("pooling_mode_mean_tokens", "pooling_mode_cls_token")}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({**flags, pooling: True}))
    if max_tokens is not None:
        (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_tokens}))
