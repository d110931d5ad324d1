"""Writes docs/engines.md from the engines' own tables: `python scripts/engines_document.py`. A test compares both."""

from __future__ import annotations

from pathlib import Path

from llm_inference.adapters import (
    lightllm_openai,
    llamacpp,
    ollama,
    openai,
    sglang,
    tensorrt_llm,
    tgi,
    transformers_serve,
    vllm,
)
from llm_inference.adapters.profile import FIELDS, Profile

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "engines.md"
MODULES = (openai, vllm, sglang, tgi, llamacpp, ollama, tensorrt_llm, transformers_serve, lightllm_openai)
SIGNS = {"enforced": "yes", "emulated": "by us", "refused": "no"}
INTRODUCTION = """# Engines that speak the OpenAI API

Written by `scripts/engines_document.py` from the tables in `adapters/`; do not edit it.

`engine:` takes one of these names. With `url` the engine runs elsewhere (several addresses of one model are separated
by commas); without, it is started here, from `engine_args.program`, from PATH, or from the cache directory's
`engines/<name>/venv`. Other keys of `engine_args` become flags, each of which must stand in the program's `--help`.

chat, completion, stream, stop, max_tokens, temperature, top_p, usage and cancellation work with every one. "yes": the
engine does it; "by us": it is done around the engine; "no": a request that asks for it is a 400 with the reason below.

Evidence: *live* means run in the tests; *recorded*, replayed from a real server's replies; *documented*, written from
what is known of the engine's API and not yet run: a field or flag may be wrong for your version.
"""


def render() -> str:
    profiles: list[Profile] = [module.PROFILE for module in MODULES]
    lines = [INTRODUCTION, "| Engine | Evidence | From |", "| --- | --- | --- |"]
    lines += [f"| `{profile.name}` | {profile.evidence} | {profile.source} |" for profile in profiles]
    lines += ["", "## Request fields", ""]
    lines.append("| Field | " + " | ".join(f"`{profile.name}`" for profile in profiles) + " |")
    lines.append("| --- |" + " --- |" * len(profiles))
    for field in FIELDS:
        signs = (SIGNS[profile.support(field)] for profile in profiles)
        lines.append(f"| `{field}` | " + " | ".join(signs) + " |")
    lines += ["", "## Why not", ""]
    for profile in profiles:
        lines += [f"### {profile.name}", ""]
        by_reason: dict[str, list[str]] = {}
        for field, reason in profile.capabilities.reasons.items():
            by_reason.setdefault(reason, []).append(f"`{field}`")
        lines += [f"- {', '.join(fields)}: {reason}." for reason, fields in by_reason.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(render())
