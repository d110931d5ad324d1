"""Rendered files onto disk: all of them or none, and never over somebody's changes unasked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llm_inference.errors import ConfigError


def write(files: Mapping[str, str], directory: Path, *, force: bool = False) -> list[str]:
    """Write what is new or different; the paths that were written. Raises `ConfigError` naming files that differ from
    what would be written, unless `force`, and when the directory cannot be written.
    """
    changed = []
    try:
        for name, text in files.items():
            target = directory / name
            if not target.exists():
                changed.append(name)
            elif not target.is_file():
                raise ConfigError(f"{target} is in the way: it is no file")
            elif target.read_bytes() != text.encode():
                if not force:
                    _refuse(files, directory)
                changed.append(name)
        for name in changed:
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(files[name], encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename or directory}: cannot be written: {error.strerror}") from error
    return changed


def _refuse(files: Mapping[str, str], directory: Path) -> None:
    paths = {name: directory / name for name in files}
    different = [
        str(path) for name, path in paths.items() if path.is_file() and path.read_bytes() != files[name].encode()
    ]
    raise ConfigError(
        f"{', '.join(different)}: there already, and different; nothing was written. --force overwrites, another "
        "--output keeps both, --dry-run shows what would be written"
    )
