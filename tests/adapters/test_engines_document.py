from __future__ import annotations

import runpy
from pathlib import Path


def test_the_document_is_what_the_tables_say(repository: Path) -> None:
    script = runpy.run_path(str(repository / "scripts" / "engines_document.py"))
    written = (repository / "docs" / "engines.md").read_text()
    assert written == script["render"](), "run: python scripts/engines_document.py"
