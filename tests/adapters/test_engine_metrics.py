"""What engines say at /metrics, in the form that each writes, and through a server of ours."""

from __future__ import annotations

import pytest

from llm_inference.adapters.engine_metrics import NAMES, read

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="a { b } c"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1e+03
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 400.0
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 5.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 9.0
"""
OTHERS = {
    "sglang": 'sglang:num_running_reqs{model_name="m"} 4.0\nsglang:num_queue_reqs{model_name="m"} 6.0\n'
    'sglang:token_usage{model_name="m"} 0.5\n',
    "tgi": "tgi_batch_current_size 4\ntgi_queue_size 6\n",
    "llama.cpp": "llamacpp:requests_processing 4\nllamacpp:requests_deferred 6\nllamacpp:tokens_predicted_total 12\n",
}


def test_vllm() -> None:
    stats = read("vllm", [VLLM])
    assert stats is not None
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (5, 7, 0.5)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.num_preemptions) == (1000, 400, 1)
    assert stats.num_steps == 9
    assert stats.known is not None
    assert "num_drafted_tokens" not in stats.known
    assert not stats.per_process


def test_vllms_cache_is_in_its_labels() -> None:
    labels = 'block_size="%s",cache_dtype="a,block_size=\\"9\\"",engine="0",num_gpu_blocks="%s"'
    line = f"vllm:cache_config_info{{{labels}}} 1.0\n"
    stats = read("vllm", [VLLM + line % (16, 100), line % (16, 50)])
    assert stats is not None
    assert (stats.num_kv_blocks, stats.kv_block_size) == (150, 16)
    assert stats.known is not None
    assert {"num_kv_blocks", "kv_block_size"} <= set(stats.known)
    for texts in ([line % (16, 100), line % (32, 50)], [line % (16, "None")], [line % ("", 5)]):
        other = read("vllm", [VLLM, *texts])
        assert other is not None
        assert other.num_kv_blocks is None


@pytest.mark.parametrize("engine", OTHERS)
def test_others(engine: str) -> None:
    stats = read(engine, [OTHERS[engine]])
    assert stats is not None
    assert (stats.num_running, stats.num_waiting) == (4, 6)
    assert stats.known is not None
    assert "prefix_cache_hits" not in stats.known


def test_older_names_and_prefixes() -> None:
    old = read("vllm", ['vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'])
    assert old is not None
    assert old.kv_cache_usage == 0.5
    new = read("sglang", ["sglang_num_running_reqs 2.0\n"])
    assert new is not None
    assert new.num_running == 2


def test_several_servers_are_added_up() -> None:
    stats = read("vllm", [VLLM, VLLM])
    assert stats is not None
    assert (stats.num_running, stats.kv_cache_usage) == (10, 0.5)


@pytest.mark.parametrize(
    "text", ["", "<html>not found</html>", "vllm:num_requests_running{} NaN\n", "vllm:num_requests_running +Inf\n", "{"]
)
def test_nothing_is_not_zero(text: str) -> None:
    assert read("vllm", [text]) is None


def test_an_engine_without_a_table() -> None:
    assert read("ollama", [VLLM]) is None
    assert "ollama" not in NAMES
