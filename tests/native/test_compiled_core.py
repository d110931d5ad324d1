"""The engine on the compiled runner: what a request says does not depend on company, chunks, preemption or guesses.

Its sums keep their order whatever else is in a step, so answers and log-probabilities are equal, not nearly equal. And
they are those of the same rounded weights under torch, as far as rounded activations let them be.
"""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

if shutil.which("cc") is None:
    pytest.skip("there is no C compiler", allow_module_level=True)

from llm_inference.model_spec import ModelSpec
from llm_inference.native.core import EngineCore
from llm_inference.native.request import CoreRequest
from llm_inference.native.runner.choice import BLOCK_SIZES
from llm_inference.native.runner.compiled.packing import round_weight
from llm_inference.native.runner.compiled_runner import CompiledRunner
from llm_inference.native.speculation import SpeculationSetup
from tests.native import test_speculation
from tests.native.cores import Outcome, make_core, make_request, run
from tests.native.paging import random_tokens
from tests.native.tiny_models import TinyModel, save_tiny

SPECULATION = SpeculationSetup(num_tokens=4, max_ngram=3, min_ngram=1)
NUM_REQUESTS = 20
BITS = {"int8": 8, "int4": 4}
Quantization = str | None


@pytest.fixture(scope="module", params=["int8", "int4", None], ids=str)
def quantization(request: pytest.FixtureRequest) -> Quantization:
    given: Quantization = request.param
    return given


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("tiny"), "qwen2")


def compiled_core(model: TinyModel, quantization: Quantization, *, num_threads: int = 2, **options: Any) -> EngineCore:
    runner = CompiledRunner(
        model.directory,
        ModelSpec.from_directory(model.directory),
        dtype=torch.float32,
        quantization=quantization,
        num_threads=num_threads,
    )
    return make_core(model, runner=runner, block_size=BLOCK_SIZES["compiled"], **options)


def said(outcomes: list[Outcome]) -> list[Any]:
    """Everything about the tokens of a request, log-probabilities to the bit."""
    return [[(token.token_id, token.logprob, token.top) for token in one.tokens] for one in outcomes]


@pytest.fixture(scope="module")
def alone(model: TinyModel, quantization: Quantization) -> dict[str, list[Outcome]]:
    """Each by itself: one thread, no guesses, no prefix cache, prompts in one piece."""
    core = compiled_core(model, quantization, num_threads=1, prefix_caching=False)
    return {str(number): run(core, [varied(number)])[str(number)] for number in range(NUM_REQUESTS)}


def varied(number: int) -> CoreRequest:
    """One of the kinds that `test_speculation` has, longer, and with log-probabilities; a third share a prefix."""
    request = test_speculation.varied(number)
    prefix = random_tokens(40, seed=1) if number % 3 == 0 else []
    sampling = request.sampling
    more: dict[str, Any] = {} if sampling.num_beams > 1 else {"max_tokens": 2 * sampling.max_tokens, "logprobs": 2}
    return msgspec.structs.replace(
        request,
        prompt_token_ids=(*prefix, *request.prompt_token_ids),
        sampling=msgspec.structs.replace(sampling, **more),
        eos_token_ids=(2,),
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_blocks": 9, "max_num_batched_tokens": 20},
        {"num_blocks": 9, "max_num_batched_tokens": 17, "prefix_caching": False, "num_threads": 3},
        {"speculation": SPECULATION},
        {"speculation": SPECULATION, "num_blocks": 9, "max_num_batched_tokens": 20},
    ],
    ids=["room", "pressure", "pressure-without-prefix-cache", "guesses", "guesses-under-pressure"],
)
def test_every_request_says_what_it_says_alone(
    model: TinyModel, quantization: Quantization, alone: dict[str, list[Outcome]], options: dict[str, Any]
) -> None:
    core = compiled_core(model, quantization, **options)
    together = run(core, [varied(number) for number in range(NUM_REQUESTS)])
    stats = core.stats()
    if "num_blocks" in options:
        assert stats.num_preemptions > 0
    if options.get("prefix_caching", True):
        assert stats.prefix_cache_hits > 0
    if "speculation" in options:
        assert 0 < stats.num_accepted_tokens < stats.num_drafted_tokens
    for number, expected in alone.items():
        assert said(together[number]) == said(expected), f"request {number}"
        assert [one.finish_reason for one in together[number]] == [one.finish_reason for one in expected]


def test_greedy_answers_are_those_of_the_rounded_weights(
    model: TinyModel, quantization: Quantization, tmp_path: Path
) -> None:
    """Teacher-forced: each token is the best of the reference, or as good as that within what rounding moves."""
    rounded = TinyModel(tmp_path, type(model.reference)(model.reference.config).eval())
    with torch.no_grad():
        for (name, ours), theirs in zip(
            rounded.reference.named_parameters(), model.reference.parameters(), strict=True
        ):
            # The embedding and the head are in 8 bits in either case.
            bits = 8 if "embed" in name or "lm_head" in name else BITS.get(quantization or "", 0)
            is_rounded = quantization is not None and theirs.dim() == 2
            ours.copy_(round_weight(theirs, bits).widen(theirs.shape[1]) if is_rounded else theirs)
    requests = [make_request(str(size), random_tokens(size, seed=size), max_tokens=24) for size in (1, 7, 33, 70)]
    answers = run(compiled_core(model, quantization), requests)
    num_equal = num_tokens = 0
    for request in requests:
        tokens = answers[request.request_id][0].token_ids
        prompt = list(request.prompt_token_ids)
        logits = rounded.logits([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        spread = logits.std(-1)
        for row, token, width in zip(logits, tokens, spread, strict=True):
            assert row.max() - row[token] < 0.1 * width
            num_equal += int(row.argmax() == token)
            num_tokens += 1
    assert num_equal > 0.9 * num_tokens


def test_an_aborted_request_leaves_the_others_as_they_are(
    model: TinyModel, quantization: Quantization, alone: dict[str, list[Outcome]]
) -> None:
    core = compiled_core(model, quantization)
    kept, dropped = varied(4), make_request("dropped", random_tokens(60, seed=2), max_tokens=100)
    core.add(dropped)
    core.add(kept)
    tokens: dict[int, list[int]] = {0: [], 1: []}
    for step in itertools.count():
        for output in core.step().outputs:
            if output.request_id == kept.request_id:
                tokens[output.index] += [token.token_id for token in output.tokens]
        if step == 3:
            core.abort("dropped")
        if not core.has_work:
            break
    assert list(tokens.values()) == [one.token_ids for one in alone["4"]]
    stats = core.stats()
    assert stats.num_free_kv_blocks == stats.num_kv_blocks


def test_choices_that_fork_share_blocks_and_then_part(model: TinyModel, quantization: Quantization) -> None:
    """A prompt that ends within a block: the block is copied, scales and all, when the first choice writes into it."""
    rng = random.Random(3)
    prompt = random_tokens(rng.choice([45, 50]), seed=3)
    request = make_request("r", prompt, n=4, temperature=1.0, seed=5, max_tokens=30, logprobs=0)
    together = run(compiled_core(model, quantization), [request])["r"]
    apart = run(compiled_core(model, quantization, prefix_caching=False, num_blocks=20), [request])["r"]
    assert said(together) == said(apart)
    assert len({tuple(one.token_ids) for one in together}) == 4
