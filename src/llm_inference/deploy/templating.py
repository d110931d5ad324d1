"""The templates in `templates/`, and the one rule for them: every value goes through the format's own quoting.

`[[ value ]]` is quoted by the function that the renderer names (`quoting.py`), `[[ text | comment ]]` is for comments,
and `[[ block | raw ]]` is text that a renderer has made itself. A name that is not given is an error. The brackets
leave `{{ }}` to Helm and Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import wrap
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from llm_inference.deploy.quoting import comment_text

Quote = Callable[[Any], str]
_FOLDER = Path(__file__).parent / "templates"


class Raw(str):
    """Text that is ready to be written as it is."""

    __slots__ = ()


def render(template: str, quote: Quote, /, **values: Any) -> str:
    """The text of `templates/<template>`, each value through `quote`; ends with one line break."""
    environment = Environment(  # noqa: S701 - nothing here is HTML; `finalize` quotes for the file at hand
        loader=FileSystemLoader(_FOLDER),
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
        comment_start_string="[#",
        comment_end_string="#]",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, (Raw, StrictUndefined)) else quote(value),
    )
    environment.filters |= {
        "comment": lambda value: Raw(comment_text(value)),
        "comment_lines": lambda value: Raw("\n".join(f"# {line}" for line in wrap(comment_text(value), 116))),
        "raw": Raw,
        "indented": lambda value, width: Raw(indented(value, width)),
    }
    return environment.get_template(template).render(values).rstrip("\n") + "\n"


def indented(text: str, width: int) -> str:
    """Every line but empty ones moved `width` to the right; no line break at the end."""
    return "\n".join(" " * width + line if line else line for line in text.rstrip("\n").split("\n"))
