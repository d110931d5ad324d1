"""The private directory of one server: its sockets and setup files, gone with it, also after a kill -9.

A server holds a lock on a file inside for as long as it lives. The next server that starts removes the directories of
its user whose lock nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "llm-inference-"
_LOCK = "lock"
#: A directory without a lock file that is younger may belong to a server that is just starting.
_YOUNG_S = 60.0


@contextmanager
def run_directory() -> Generator[Path, None, None]:
    """A new directory that only this user may enter (0700), gone afterwards. Removes what dead servers left behind."""
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with (path / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            sweep(path.parent)
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove this user's run directories in `parent` whose server is gone. What cannot be removed stays, silently."""
    for path in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or not path.is_dir() or path.stat().st_uid != os.getuid():
                continue
            if _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    try:
        lock = (path / _LOCK).open("r")
    except FileNotFoundError:
        # Never anything of somebody else's that only has our prefix: ours are empty or have a lock.
        return not any(path.iterdir()) and time.time() - path.stat().st_mtime > _YOUNG_S
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
