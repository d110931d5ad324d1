"""What a model is, read from its config.json and the headers of its weights: shapes, sizes, generation defaults.

Torch-free and without a weight in memory. Knows nothing of where files come from, engines or requests.
"""

from __future__ import annotations

from llm_inference.model_spec.generation import GenerationConfig, read_generation_config
from llm_inference.model_spec.rope import RopeSpec
from llm_inference.model_spec.safetensors import TensorHeader, read_safetensors_header
from llm_inference.model_spec.spec import DTYPE_BYTES, ModelSpec

__all__ = [
    "DTYPE_BYTES",
    "GenerationConfig",
    "ModelSpec",
    "RopeSpec",
    "TensorHeader",
    "read_generation_config",
    "read_safetensors_header",
]
