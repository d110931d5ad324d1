"""Every option of the Llama family that changes a logit: what `save_tiny` is to make, by a name for the test."""

from __future__ import annotations

from typing import Any

#: name → (family, overrides)
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "one kv head": ("llama", {"num_key_value_heads": 1}),
    "no grouping": ("llama", {"num_key_value_heads": 4}),
    "head_dim apart from hidden_size": ("llama", {"head_dim": 24}),
    "all biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "exact gelu": ("llama", {"hidden_act": "gelu"}),
    "relu": ("llama", {"hidden_act": "relu"}),
    "norm eps": ("llama", {"rms_norm_eps": 0.1}),
    "rope theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "rope linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "rope llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "rope yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "rope yarn, all parameters": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "mscale": 0.7,
                "mscale_all_dim": 0.4,
            }
        },
    ),
    "mistral": ("mistral", {}),
    "mistral, sliding": ("mistral", {"sliding_window": 7}),
    "qwen2": ("qwen2", {}),
    "qwen2, some layers sliding": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "llama ignores a window": ("llama", {"sliding_window": 4}),
}
