"""How an answer looks in a terminal: the model's text on stdout, everything else on stderr.

What a model says is somebody else's text: on a terminal its control characters are shown, not obeyed. A file or a pipe
gets them as they are.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, TextIO

from llm_inference.telemetry.logging import configure_logging

if TYPE_CHECKING:
    from llm_inference.config.load import LoadedConfig
    from llm_inference.engine.types import Delta


#: C0 but for tab and line feed, DEL and C1: they move cursors, rename windows, fill clipboards.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """`text` with control characters as their escapes; carriage returns are left out."""
    return _CONTROL.sub(lambda match: "" if match[0] == "\r" else f"\\x{ord(match[0]):02x}", text)


def configure_terminal_logging(loaded: LoadedConfig | None, args: argparse.Namespace) -> None:
    """Logs on stderr; only warnings, unless a level was asked for by flag. `args` has the flags of `options`."""
    level = getattr(args, "flag:--log-level", None)
    api = loaded.config.api if loaded is not None else None
    configure_logging(
        api.log_level if api is not None and level is not None else "warning",
        api.log_format if api is not None and api.log_format != "auto" else "console",
        sys.stderr,
    )


class Printer:
    """Writes one answer as it comes; `text` is what the model has said to `out` so far."""

    def __init__(self, out: TextIO, notes: TextIO) -> None:
        self.text = ""
        self._out = out
        self._notes = notes
        self._thinking = False

    def show(self, delta: Delta) -> None:
        if delta.reasoning:
            self._notes.write(visible(delta.reasoning) if self._notes.isatty() else delta.reasoning)
            self._notes.flush()
            self._thinking = True
        if delta.text:
            if self._thinking:
                self._notes.write("\n")
                self._notes.flush()
                self._thinking = False
            self._out.write(visible(delta.text) if self._out.isatty() else delta.text)
            self._out.flush()
            self.text += delta.text

    def end(self) -> None:
        """Close the last line."""
        if self._thinking:
            self._notes.write("\n")
            self._notes.flush()
        if not self.text.endswith("\n"):
            self._out.write("\n")
            self._out.flush()
