"""A profile and its diagnosis as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from llm_inference.telemetry.profiling.diagnosis import Finding, sequences_per_step, shares
from llm_inference.telemetry.profiling.figures import Profile

_LABELS = {
    "attention": "attention",
    "linear": "linear layers",
    "other": "other operators of the model",
    "copies": "copies and conversions",
    "library": "the runner's library",
    "sampling": "sampling",
    "python": "Python between operators",
    "scheduler": "scheduler",
    "tokenizer": "tokenizer and template",
    "detokenizer": "detokenizer",
    "waiting": "waiting for work",
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def described(profile: Profile, findings: Sequence[Finding]) -> list[str]:
    """The bottleneck first, then where the time went, then what was seen beside it."""
    lines = []
    for number, one in enumerate(findings):
        lines += [f"{'Likely bottleneck' if not number else 'Also'}: {_NAMES[one.kind]}", f"  {one.says}"]
        lines.append(f"  {one.advice}")
    if not findings:
        lines.append("Nothing stands out.")
    steps, trace = profile.steps, profile.trace
    if not steps.num_steps or trace.wall_s <= 0:
        return lines
    lines += ["", f"{steps.num_steps} steps in {trace.wall_s:.2f} s on {steps.runner}"]
    lines += [f"  {_LABELS[part]:<30}{share:>6.1%}" for part, share in shares(profile).items() if share >= 0.0005]
    sequences = sequences_per_step(profile)
    if sequences is not None and steps.num_tokens is not None:
        seats = f" of at most {steps.max_num_seqs}" if steps.max_num_seqs is not None else ""
        lines.append(f"batch: {sequences:.1f} sequences{seats}, {steps.num_tokens / steps.num_steps:.1f} tokens a step")
    lines += [*_front(profile), *_device(profile)]
    kernels = ", ".join(f"{name} ({count} calls)" for name, count in trace.attention_kernels.items())
    unseen = "the runner's library" if trace.seconds.get("library") else "no operator of torch was seen"
    lines.append(f"attention by: {kernels or unseen}")
    lines.append(f"peak memory: {_memory(profile)}")
    if trace.operators:
        lines += ["", f"{'operator':<44}{'part':<12}{'calls a step':>12}{'ms a step':>11}"]
        lines += [
            f"{one.name[:43]:<44}{one.part:<12}{one.calls / steps.num_steps:>12.1f}"
            f"{1000 * one.seconds / steps.num_steps:>11.3f}"
            for one in trace.operators
        ]
    return lines


_NAMES = {
    "idle": "no load",
    "tokenizer": "tokenizer and CPU work",
    "sampling": "sampling",
    "copies": "copies",
    "python": "Python",
    "batch": "batch too small",
    "compute": "compute",
    "kv_cache": "memory for the KV cache",
}


def _front(profile: Profile) -> list[str]:
    front = profile.front
    if front is None:
        return []
    parts = ", ".join(f"{_LABELS.get(name, name)} {own / front.wall_s:.1%}" for name, own in front.seconds.items())
    loop = f"event loop {front.loop_cpu_s / front.wall_s:.1%}"
    return [f"this gateway process: {', '.join(filter(None, (parts, loop)))}; {front.num_prepared} prompts"]


def _device(profile: Profile) -> list[str]:
    trace = profile.trace
    if trace.device_idle is None:
        return ["device: the CPU itself, so nothing is copied to a device"]
    total = sum(trace.device_seconds.values())
    parts = ", ".join(
        f"{_LABELS[part]} {own / total:.1%}" for part, own in sorted(trace.device_seconds.items(), key=lambda x: -x[1])
    )
    lines = [f"device: idle {trace.device_idle:.1%}; of its work: {parts}"]
    for direction, name in (("HtoD", "host to device"), ("DtoH", "device to host")):
        moved = trace.moved.get(direction)
        if moved is not None:
            each = moved.count / profile.steps.num_steps
            lines.append(f"{name}: {each:.1f} copies a step, {_bytes(moved.num_bytes)}, {1000 * moved.seconds:.1f} ms")
    return lines


def _memory(profile: Profile) -> str:
    steps = profile.steps
    found = []
    if steps.peak_memory_bytes is not None:
        found.append(f"{_bytes(steps.peak_memory_bytes)} of the process")
    if steps.peak_device_bytes is not None:
        found.append(f"{_bytes(steps.peak_device_bytes)} on the device")
    return ", ".join(found) or "not known"


def _bytes(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.1f} {_UNITS[unit]}" if unit else f"{count:.0f} B"
