"""Runs before every supervised child: ties the child's life to the parent's, then becomes the child.

    python -I -S process_shim.py PARENT_PID PROGRAM ARG…

PR_SET_PDEATHSIG survives exec, so the kernel kills the child when the parent dies, even by `kill -9`. A separate
program rather than `preexec_fn`, which may deadlock in a process that has threads. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, *argv = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent_pid):  # the parent died before the line above
        sys.exit(1)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - this is what the file is for
    except OSError as exc:
        print(f"error: cannot run {argv[0]}: {exc.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
