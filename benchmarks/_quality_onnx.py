"""The part of `quality.py` that runs under ONNX Runtime GenAI's own Python: MODEL FOLDER → sums as JSON on stdout.

FOLDER holds `windows.json` and `reference.npy`, log-probabilities `[windows, places, vocabulary]` of the second half of
each window. One token at a time, as in an answer.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path


def main(model_directory: str, folder: Path) -> None:
    genai, np = import_module("onnxruntime_genai"), import_module("numpy")
    windows = json.loads((folder / "windows.json").read_text())
    reference = np.load(folder / "reference.npy", mmap_mode="r")
    model = genai.Model(model_directory)
    kl, same = 0.0, 0
    for window, rows in zip(windows, reference, strict=True):
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(max_length=len(window) + 1)
        generator = genai.Generator(model, parameters)
        first = len(window) - 1 - len(rows)
        generator.append_tokens(np.array(window[:first], dtype=np.int32))
        for token, row in zip(window[first:-1], rows, strict=True):
            generator.append_tokens(np.array([token], dtype=np.int32))
            logits = generator.get_logits().reshape(-1)[: len(row)].astype(np.float64)
            logits -= logits.max()
            ours, exact = logits - np.log(np.exp(logits).sum()), row.astype(np.float64)
            kl += float((np.exp(exact) * (exact - ours)).sum())
            same += int(exact.argmax() == ours.argmax())
    print(json.dumps([kl, same]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
