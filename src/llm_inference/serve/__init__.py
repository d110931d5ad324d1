"""The composition root: the only room that joins configuration, engines and gateway.

`run` serves a whole configuration; `open_engine` starts one engine without a gateway, for the terminal commands.
"""

from __future__ import annotations

from llm_inference.serve.engines import open_engine
from llm_inference.serve.parent import run

__all__ = ["open_engine", "run"]
