"""lm-eval's own client against the running server gives the scores that lm-eval computes from the model's directory.

    lm_eval --model local-completions ─► /v1/completions (echo, logprobs, max_tokens=1) ─┐
                                                                                          ├─► equal, item by item
    lm_eval --model hf ─► transformers, float32, the directory that the server loads ─────┘

The tasks are local (`lm_eval_task/`): scores of four answers each, the flag "greedy decoding would say this", and whole
texts, one of them longer than a window. Nothing is fetched. lm-eval comes with the extra `eval`; it may live in an
environment of its own, whose interpreter the variable LM_EVAL_PYTHON names.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import RunningServer, running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TASK_DIR = Path(__file__).with_name("lm_eval_task")
TASKS = ("local_choice", "local_words", "local_prose")
PYTHON = os.environ.get("LM_EVAL_PYTHON", sys.executable)
MODEL = "SmolLM2-135M-Instruct"
#: Tokens that a window of the rolling task predicts; its longest text has more than twice as many.
WINDOW = 256
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Scores:
    """What a run wrote: metrics by task and name, and (log-likelihood, is greedy) by task, item and answer."""

    metrics: dict[tuple[str, str], float]
    answers: dict[tuple[str, int, int], tuple[float, bool | None]]


def evaluate(model: str, arguments: dict[str, Any], batch_size: int, output: Path) -> Scores:
    """Run the command on all tasks. Fails with its last lines."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(output / "datasets"),
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [
            PYTHON, "-m", "lm_eval", "run", "--model", model,
            "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items()),
            "--tasks", ",".join(TASKS), "--include_path", ".",
            "--device", "cpu", "--batch_size", str(batch_size), "--output_path", str(output / "out"), "--log_samples",
        ],
        cwd=TASK_DIR,  # the tasks name their data relative to it
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, "\n".join(done.stderr.splitlines()[-30:])
    return read(output / "out")


def read(output: Path) -> Scores:
    [results] = output.rglob("results_*.json")
    metrics = {
        (task, name.removesuffix(",none")): float(value)
        for task, values in json.loads(results.read_text())["results"].items()
        for name, value in values.items()
        if name.endswith(",none") and "stderr" not in name
    }
    answers: dict[tuple[str, int, int], tuple[float, bool | None]] = {}
    for task in TASKS:
        [samples] = output.rglob(f"samples_{task}_*.jsonl")
        for line in samples.read_text().splitlines():
            sample = json.loads(line)
            for number, [answer] in enumerate(sample["resps"]):
                # A rolling task gives a number, the others a pair; lm-eval writes both as text.
                loglikelihood, greedy = answer if isinstance(answer, list) else (answer, None)
                flag = None if greedy is None else {"True": True, "False": False}[greedy]
                answers[task, sample["doc_id"], number] = (float(loglikelihood), flag)
    return Scores(metrics, answers)


@pytest.fixture(scope="module", autouse=True)
def lm_eval() -> None:
    found = subprocess.run([PYTHON, "-c", "import lm_eval"], capture_output=True, check=False)
    if found.returncode != 0:
        pytest.skip(
            f"lm-eval is not installed for {Path(PYTHON).name}: pip install -e '.[eval]', or set LM_EVAL_PYTHON"
        )


@pytest.fixture(scope="module")
def reference(lm_eval: None, default_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Scores:
    arguments = {"pretrained": default_model_dir, "dtype": "float32", "max_length": WINDOW}
    scores = evaluate("hf", arguments, 1, tmp_path_factory.mktemp("hf"))  # one by one: no padding
    show("hf", scores)
    return scores


@pytest.fixture(scope="module")
def server(lm_eval: None) -> Iterator[RunningServer]:
    with running_server() as running:
        yield running


@pytest.mark.parametrize("tokenized", [True, False], ids=["token-ids", "texts"])
def test_scores_equal_transformers(
    server: RunningServer, reference: Scores, default_model_dir: Path, tokenized: bool, tmp_path: Path
) -> None:
    served = evaluate(
        "local-completions",
        {
            "model": MODEL,
            "base_url": f"{server.base_url}/completions",
            "tokenizer_backend": "huggingface",
            "tokenizer": default_model_dir,
            "tokenized_requests": tokenized,
            "num_concurrent": 4,
            "max_retries": 1,
            # This client counts the token that leads a window, and the one to be generated.
            "max_length": WINDOW + 2,
        },
        3,
        tmp_path,
    )
    show("token ids" if tokenized else "texts", served)

    assert served.answers.keys() == reference.answers.keys()
    assert len(reference.answers) > 190
    assert {flag for _, flag in reference.answers.values()} == {True, False, None}
    worst = 0.0
    for key, (expected, greedy) in reference.answers.items():
        loglikelihood, flag = served.answers[key]
        assert flag == greedy, key
        worst = max(worst, abs(loglikelihood - expected))
    print(f"largest difference of a log-likelihood: {worst:.2e} of {len(reference.answers)}")
    assert worst < TOLERANCE

    assert served.metrics.keys() == reference.metrics.keys()
    for name, expected in reference.metrics.items():
        if name[1].startswith("acc"):
            assert served.metrics[name] == expected, name
        else:
            assert math.isclose(served.metrics[name], expected, rel_tol=TOLERANCE), name


def show(label: str, scores: Scores) -> None:
    print(f"\n{label}: " + ", ".join(f"{task} {name} {value:.4f}" for (task, name), value in scores.metrics.items()))
