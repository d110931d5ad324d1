"""Write the golden files anew: `python -m tests.deploy.golden`. Read the difference before you keep it."""

from __future__ import annotations

import shutil
from pathlib import Path

from llm_inference.deploy.output import write
from llm_inference.deploy.render import render
from tests.deploy.cases import CASES, GOLDEN

FOLDER = Path(__file__).parent / "golden"


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for case, target in GOLDEN:
        write(render(target, CASES[case]()), FOLDER / case / target)


if __name__ == "__main__":
    main()
