"""Install what drives the browser: `python -m tests.ui.install_tools FOLDER`. The browser itself is the system's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NPM = ("playwright-core@1.65.1",)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(folder), *NPM]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
