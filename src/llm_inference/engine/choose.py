"""`engine: auto`: which engine serves a model, decided over plain data, with the reason and the runners-up.

    needs of the model and its config  ×  abilities of each engine  ─►  the first that can, native before all others

Looks at no file and no machine: whoever calls it has looked (`serve/auto.py`). Knows no engine by name but the native
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llm_inference.errors import UnsupportedModelError

#: A hub's layout with weights, a GGUF file, and what two libraries make for themselves.
Format = Literal["directory", "gguf", "openvino", "onnx"]
Device = Literal["cpu", "cuda"]
NATIVE = "native"
FORMAT_NAMES: dict[Format, str] = {
    "directory": "safetensors",
    "gguf": "GGUF",
    "openvino": "OpenVINO",
    "onnx": "ONNX",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What an engine can serve, as far as a choice needs to know."""

    engine: str
    formats: frozenset[Format]
    devices: frozenset[Device]
    model_types: frozenset[str] | None = None  # None: most decoders, so not a reason against it
    encoders: frozenset[str] = frozenset()  # model types of which it makes vectors
    checkpoints: frozenset[str] = frozenset()  # quantized checkpoints that it loads, by `quant_method`
    online: frozenset[str] = frozenset()  # quantizations that it makes itself while loading
    tensor_parallel: bool = False
    reads_any_gguf: bool = False  # also files that we cannot convert


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the model and its configuration ask of an engine.

    `conversion_problem` says why a GGUF file cannot be converted to a directory; None where it can, or is one.
    """

    model_type: str | None
    formats: frozenset[Format]
    device: Device
    encoder: bool = False
    checkpoint: str | None = None  # the `quant_method` of its config.json
    quantization: str | None = None  # what the configuration asks for
    tensor_parallel_size: int = 1
    conversion_problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """`installed`: its version, or another word for being there; None where it is not."""

    abilities: Abilities
    installed: str | None
    install: str = ""  # the command; "" where there is none

    @property
    def engine(self) -> str:
        return self.abilities.engine


@dataclass(frozen=True, slots=True)
class Verdict:
    """`obstacle`: why this engine cannot serve the model; None where it can."""

    candidate: Candidate
    obstacle: str | None

    @property
    def can_start(self) -> bool:
        return self.obstacle is None and self.candidate.installed is not None

    def __str__(self) -> str:
        engine, installed = self.candidate.engine, self.candidate.installed
        if self.obstacle is not None:
            return f"{engine} ({self.obstacle})"
        if installed is None:
            return f"{engine} (not installed{': ' if self.candidate.install else ''}{self.candidate.install})"
        return f"{engine} ({installed})" if installed else engine


@dataclass(frozen=True, slots=True)
class Choice:
    """`engine` serves it because of `reason`; `verdicts` are those on all others, in order of preference."""

    engine: str
    reason: str
    verdicts: tuple[Verdict, ...] = ()

    def __str__(self) -> str:
        text = f"engine: {self.engine}, because {self.reason}"
        also = [str(verdict) for verdict in self.verdicts if verdict.can_start]
        absent = [str(verdict) for verdict in self.verdicts if verdict.obstacle is None and not verdict.can_start]
        against = [str(verdict) for verdict in self.verdicts if verdict.obstacle is not None]
        for heading, names in (("also possible", also), ("possible once installed", absent), ("not", against)):
            if names:
                text += f"; {heading}: {', '.join(names)}"
        return text


def choose(needs: Needs, candidates: Sequence[Candidate]) -> Choice:
    """The first of `candidates` (in order of preference) that is installed and can serve it.

    Raises `UnsupportedModelError` when none is, naming those that could be installed for it.
    """
    verdicts = judge(needs, candidates)
    for index, verdict in enumerate(verdicts):
        if verdict.can_start:
            others = (*verdicts[:index], *verdicts[index + 1 :])
            return Choice(verdict.candidate.engine, _reason(verdict, needs, verdicts[:index]), others)
    could = [verdict for verdict in verdicts if verdict.obstacle is None]
    cannot = [verdict for verdict in verdicts if verdict.obstacle is not None]
    reasons = "; ".join(f"{verdict.candidate.engine}: {verdict.obstacle}" for verdict in cannot)
    if could:
        ways = ", or ".join(
            f"{one.candidate.engine} (`{one.candidate.install}`)" if one.candidate.install else one.candidate.engine
            for one in could
        )
        raise UnsupportedModelError(
            f"engine: auto: no installed engine can serve this model ({_first(cannot)}). One that can: {ways}"
        )
    raise UnsupportedModelError(f"engine: auto: no engine that is known here can serve this model. {reasons}")


def judge(needs: Needs, candidates: Sequence[Candidate]) -> tuple[Verdict, ...]:
    """A verdict on each, in their order."""
    return tuple(Verdict(candidate, obstacle(needs, candidate.abilities)) for candidate in candidates)


def obstacle(needs: Needs, abilities: Abilities) -> str | None:
    """Why an engine cannot serve this; None where nothing is known to be in the way."""
    if needs.device not in abilities.devices:
        return f"does not run on {needs.device}"
    if needs.tensor_parallel_size > 1 and not abilities.tensor_parallel:
        return "runs a model on one device, and tensor_parallel_size is above 1"
    if needs.encoder:
        embeds = needs.model_type in abilities.encoders
        return None if embeds else f"makes no vectors with models of type {needs.model_type!r}"
    if needs.conversion_problem is not None and not ("gguf" in abilities.formats and abilities.reads_any_gguf):
        return f"cannot read it: {needs.conversion_problem}"
    if not needs.formats & abilities.formats:
        return f"does not read {' or '.join(FORMAT_NAMES[one] for one in sorted(needs.formats))}"
    known = abilities.model_types
    if known is not None and needs.model_type is not None and needs.model_type not in known:
        return f"does not know models of type {needs.model_type!r}"
    return _quantization_obstacle(needs, abilities)


def _quantization_obstacle(needs: Needs, abilities: Abilities) -> str | None:
    wanted = needs.quantization
    if needs.checkpoint is not None:
        if needs.checkpoint not in abilities.checkpoints:
            return f"cannot load checkpoints quantized with {needs.checkpoint}"
        if wanted is not None and wanted != needs.checkpoint:
            return f"cannot make {wanted} of a checkpoint quantized with {needs.checkpoint}"
    elif wanted is not None and wanted not in abilities.online:
        if wanted in abilities.checkpoints:
            return f"loads {wanted} checkpoints, and this one is not quantized"
        return f"does not know the quantization {wanted}"
    return None


def _reason(chosen: Verdict, needs: Needs, before: Sequence[Verdict]) -> str:
    model = f"a {needs.model_type} model" if needs.model_type else "the model"
    if needs.checkpoint or needs.quantization:
        model += f" in {needs.checkpoint or needs.quantization}"
    can = f"it can serve {model} on {needs.device}"
    if not before:
        return can
    native = [verdict for verdict in before if verdict.candidate.engine == NATIVE and verdict.obstacle is not None]
    installed = " and is installed"
    return f"{can}{installed}" + (f", and native {native[0].obstacle}" if native else "")


def _first(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return "none is installed"
    return f"{verdicts[0].candidate.engine} {verdicts[0].obstacle}"
