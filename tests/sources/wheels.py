"""Small wheels in a folder that the real pip serves from, without a network."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest


def write_wheel(folder: Path, package: str, version: str, files: dict[str, bytes]) -> Path:
    """A pure wheel whose archive holds `files` under their names as given, however malicious."""
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/licenses/LICENSE", "Apache-2.0")
        archive.writestr(f"{info}/LICENSE", "Apache-2.0")
        archive.writestr(f"{info}/RECORD", "")
    return path


def serve_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip's own settings, as a user would make them."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
