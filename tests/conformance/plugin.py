"""examples/custom-engine as a user would have it: installed beside the package, found by its entry point."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2] / "examples" / "custom-engine"


@contextmanager
def plugin_on_path() -> Iterator[Path]:
    """What an installer leaves behind: the package on the path, and a .dist-info with its entry points."""
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder) / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (info / "METADATA").write_text(head)
        lines = []
        for group, points in project["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        added = [folder, str(HOME / "src")]
        sys.path[:0] = added
        try:
            yield HOME
        finally:
            for path in added:
                sys.path.remove(path)
