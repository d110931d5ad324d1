"""Write the golden files anew: `python -m tests.deploy.golden`. Read the difference before you keep it."""

from __future__ import annotations

import shutil
from pathlib import Path

from llm_inference.deploy.output import write
from llm_inference.deploy.render import render
from tests.deploy.cases import CASES, GOLDEN, SPECIAL

FOLDER = Path(__file__).parent / "golden"


def rendered(case: str, target: str) -> dict[str, str]:
    """Dashboards and alert rules are the same in every form: they are kept once, in `monitoring`."""
    files = render(target, (CASES | SPECIAL)[case]())
    if target == "monitoring":
        return files
    return {
        path: text for path, text in files.items() if "/dashboards/" not in path and not path.endswith("rules.yaml")
    }


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for case, target in GOLDEN:
        write(rendered(case, target), FOLDER / case / target)


if __name__ == "__main__":
    main()
