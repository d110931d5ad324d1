"""The model cache: directories that are either complete or not there.

    <root>/<kind>/<key>/            a finished entry, with `.entry.json` listing its files and sizes
    <root>/<kind>/.<key>.partial/   work in progress, thrown away if its maker died
    <root>/<kind>/.<key>.lock       held while an entry is made, so that two starts do not make it twice

Knows nothing of what the entries hold.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llm_inference.errors import SourceError

_log = logging.getLogger(__name__)

_MANIFEST: Final = ".entry.json"
_ADVICE: Final = "set LLM_INFERENCE_CACHE to a directory that can be written"


def default_cache_dir() -> Path:
    """`LLM_INFERENCE_CACHE`, else `llm-inference` under `XDG_CACHE_HOME` or `~/.cache`."""
    own = os.environ.get("LLM_INFERENCE_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "llm-inference"


@dataclass(frozen=True, slots=True)
class ModelCache:
    """Entries under one root directory. Nothing is created before the first `entry`."""

    root: Path

    def find(self, kind: str, key: str) -> Path | None:
        """The finished and undamaged entry, or None."""
        path = self.root / kind / key
        return path if _is_complete(path) else None

    def keys(self, kind: str) -> list[str]:
        """The keys of all finished entries of a kind."""
        parent = self.root / kind
        if not parent.is_dir():
            return []
        return sorted(path.name for path in parent.iterdir() if not path.name.startswith(".") and _is_complete(path))

    def entry(self, kind: str, key: str, build: Callable[[Path], None]) -> Path:
        """The directory of an entry, made by `build(empty directory)` if it is absent or damaged.

        An exception of `build` leaves nothing behind. Raises `SourceError` when the cache cannot be written or is full.
        """
        # Before the lock: a read-only cache that is complete serves as well.
        found = self.find(kind, key)
        if found is not None:
            return found
        path = self.root / kind / key
        partial = path.with_name(f".{key}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path.with_name(f".{key}.lock")):
                if _is_complete(path):
                    return path
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                try:
                    build(partial)
                    _seal(partial)
                    if path.exists():
                        _log.warning("the model cache entry %s is damaged and was made anew", path)
                        shutil.rmtree(path)
                    partial.rename(path)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
        except OSError as error:
            raise _translated(error, self.root) from error
        return path


def require_free_space(directory: Path, num_bytes: int, what: str) -> None:
    """Raise `SourceError` unless the file system of `directory` has room for `num_bytes` more."""
    free = shutil.disk_usage(directory).free
    if free < num_bytes:
        raise SourceError(
            f"{what} needs {_gib(num_bytes)} in {directory}, where {_gib(free)} are free; make room or {_ADVICE}"
        )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` (the kernel drops it when the process dies)."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("another process is preparing %s; waiting for it", path.name[1:].removesuffix(".lock"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _seal(directory: Path) -> None:
    sizes = {
        str(path.relative_to(directory)): path.stat().st_size for path in sorted(directory.rglob("*")) if path.is_file()
    }
    (directory / _MANIFEST).write_text(json.dumps({"files": sizes}, indent=1), encoding="utf-8")


def _is_complete(directory: Path) -> bool:
    try:
        sizes = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))["files"]
        return all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _translated(error: OSError, root: Path) -> SourceError:
    where = error.filename or root
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SourceError(f"the disk is full: {where} could not be written; make room or {_ADVICE}")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return SourceError(f"the model cache {root} cannot be written ({error.strerror}: {where}); {_ADVICE}")
    return SourceError(f"the model cache {root} failed: {error}")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
