"""What a profile means: findings in words, the likeliest bottleneck first, each with what to change.

A finding's `weight` is the share of the time that it explains. What need not be there (a slow tokenizer, sampling
sequence by sequence, copies) counts whole, the model's own work half: it can be made cheaper, not taken away.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from llm_inference.telemetry.profiling.figures import Operator, Profile

Kind = Literal["idle", "tokenizer", "sampling", "copies", "python", "batch", "compute", "kv_cache"]

#: Shares from which on something is worth a word.
_TOKENIZER: Final = 0.15
_SAMPLING: Final = 0.25
_COPIES: Final = 0.15
_PYTHON: Final = 0.25
_IDLE: Final = 0.5
_MODEL: Final = 0.4
#: A batch is small below this share of the seats, and below so many sequences.
_SMALL_BATCH: Final = (0.125, 8)
#: Of the sampler's typical operator, calls for each sequence and step from which on it goes one by one.
_ONE_BY_ONE: Final = 0.75


class Finding(msgspec.Struct, frozen=True):
    kind: Kind
    weight: float  # 0..1
    says: str
    advice: str


def diagnose(profile: Profile) -> list[Finding]:
    """The likeliest bottleneck first; empty where nothing stands out."""
    if not profile.steps.num_steps or profile.trace.wall_s <= 0:
        return [Finding("idle", 1.0, "No step ran.", "Send requests while profiling.")]
    found = (*_idle(profile), *_tokenizer(profile), *_sampling(profile), *_copies(profile), *_python(profile))
    return sorted((*found, *_model(profile), *_kv_cache(profile)), key=lambda one: -one.weight)


def shares(profile: Profile) -> dict[str, float]:
    """Each part's share of the wall time, the largest first; the library's by its own nodes where it counts them."""
    wall_s = profile.trace.wall_s
    seconds = dict(profile.trace.seconds)
    nodes = profile.steps.nodes
    if nodes and seconds.get("library"):
        library_s, counted_s = seconds.pop("library"), sum(nodes.values())
        for part, own in nodes.items():
            seconds[part] = seconds.get(part, 0.0) + library_s * own / counted_s
    return {part: own / wall_s for part, own in sorted(seconds.items(), key=lambda one: -one[1])}


def sequences_per_step(profile: Profile) -> float | None:
    steps = profile.steps
    return None if steps.num_sequences is None or not steps.num_steps else steps.num_sequences / steps.num_steps


def _idle(profile: Profile) -> Iterator[Finding]:
    trace = profile.trace
    waiting = trace.seconds.get("waiting", 0.0) / trace.wall_s
    if waiting >= _IDLE:
        yield Finding(
            "idle",
            waiting * 0.9,  # what it waits for goes before the waiting
            f"The engine had no work for {waiting:.0%} of the time.",
            "It could take more requests: the load is small, or what sends it is slow.",
        )
    elif trace.device_idle is not None and trace.device_idle >= _IDLE:
        yield Finding(
            "python",
            trace.device_idle - waiting,
            f"The device was idle for {trace.device_idle:.0%} of the time while the CPU prepared its work.",
            "Larger batches give it more to do at a time; fewer CPU processes beside the engine, a faster CPU core.",
        )


def _tokenizer(profile: Profile) -> Iterator[Finding]:
    trace, front = profile.trace, profile.front
    advice = (
        "Use a model with a tokenizer.json (the fast kind), send token ids instead of text, or shorter prompts; "
        "with several CPUs more gateway processes (`api.workers`) share this work."
    )
    if front is None:
        own = (trace.seconds.get("tokenizer", 0.0) + trace.seconds.get("detokenizer", 0.0)) / trace.wall_s
        if own >= _TOKENIZER:
            yield Finding("tokenizer", own, f"Tokenizer and chat template take {own:.0%} of the time.", advice)
        return
    busy = front.seconds.get("tokenizer", 0.0) / front.wall_s
    waiting = trace.seconds.get("waiting", 0.0) / trace.wall_s
    if busy >= 2 * _TOKENIZER and waiting >= _TOKENIZER:
        each_ms = 1000 * front.seconds["tokenizer"] / max(front.num_prepared, 1)
        yield Finding(
            "tokenizer",
            waiting,
            f"The tokenizer was at work for {busy:.0%} of the time ({each_ms:.0f} ms a prompt), and the engine waited "
            f"for {waiting:.0%} of it.",
            advice,
        )
    loop = front.loop_cpu_s / front.wall_s
    if loop >= 0.7:
        yield Finding(
            "python",
            loop - 0.2,
            f"The gateway's event loop was busy for {loop:.0%} of the time.",
            "More gateway processes: `api.workers`.",
        )


def _sampling(profile: Profile) -> Iterator[Finding]:
    trace = profile.trace
    own_s = trace.seconds.get("sampling", 0.0)
    share, busy = own_s / _busy_s(profile), _busy_s(profile) / trace.wall_s
    if share < _SAMPLING:
        return
    says = f"Sampling takes {share:.0%} of the busy time"
    advice = "Fewer penalties, logprobs and top-k lists cost less; so do fewer and smaller grammars."
    sequences = sequences_per_step(profile)
    calls = trace.sampling_calls / profile.steps.num_steps
    if sequences is not None and sequences >= 3 and calls >= _ONE_BY_ONE * sequences:
        says += (
            f", sequence by sequence: {trace.sampling_operator} is called {calls:.0f} times a step for "
            f"{sequences:.0f} sequences"
        )
        advice = "Let one call work on the whole batch; a logits processor that loops over rows is the usual cause."
    elif trace.sampling_python_s >= own_s / 2:
        says += f", {trace.sampling_python_s / own_s:.0%} of it in Python"
        advice = "Logits processors and grammars run in Python, row by row: use fewer, or vectorize them."
    yield Finding("sampling", share * busy, says + ".", advice)


def _copies(profile: Profile) -> Iterator[Finding]:
    trace, on_device = profile.trace, profile.trace.device_seconds
    share = shares(profile).get("copies", 0.0) * trace.wall_s / _busy_s(profile)
    if on_device:
        share = max(share, on_device.get("copies", 0.0) / sum(on_device.values()))
    if share < _COPIES:
        return
    names = [f"{one.name} {one.calls / profile.steps.num_steps:.0f} times a step" for one in _copying(profile)]
    over_the_bus = trace.moved.get("HtoD")
    if over_the_bus is not None:
        names.append(f"{over_the_bus.count / profile.steps.num_steps:.0f} copies from host to device a step")
    yield Finding(
        "copies",
        share * _busy_s(profile) / trace.wall_s,
        f"Copies and conversions take {share:.0%} of the busy time" + (f": {', '.join(names)}." if names else "."),
        "Work on views, keep one dtype and one device, and write results where they are needed; with quantized weights "
        "choose a runner that multiplies by them as they are.",
    )


def _copying(profile: Profile) -> list[Operator]:
    return [one for one in profile.trace.operators if one.part == "copies"][:2]


def _python(profile: Profile) -> Iterator[Finding]:
    seconds = profile.trace.seconds
    own = (seconds.get("python", 0.0) + seconds.get("scheduler", 0.0)) / _busy_s(profile)
    if own >= _PYTHON:
        yield Finding(
            "python",
            own * _busy_s(profile) / profile.trace.wall_s,
            f"Python between the operators and scheduling take {own:.0%} of the busy time.",
            "The work of a step is too small for its overhead: more requests at once, or `runner: openvino` on a CPU.",
        )


def _model(profile: Profile) -> Iterator[Finding]:
    of = shares(profile)
    busy = _busy_s(profile) / profile.trace.wall_s
    model = sum(of.get(part, 0.0) for part in ("attention", "linear", "other", "library")) / busy
    if model < _MODEL:
        return
    sequences, seats = sequences_per_step(profile), profile.steps.max_num_seqs
    tokens = profile.steps.num_tokens
    per_step = tokens / profile.steps.num_steps if tokens is not None else None
    least = _SMALL_BATCH[1] if seats is None else min(_SMALL_BATCH[1], max(_SMALL_BATCH[0] * seats, 2))
    if sequences is not None and per_step is not None and sequences < least and per_step < 4 * least:
        yield Finding(
            "batch",
            model * busy / 2,
            f"A step has {sequences:.1f} sequences and {per_step:.0f} tokens on average: all weights are read for "
            "these few, so the memory's speed is the limit.",
            "More requests at once make tokens cheaper; for few users weights of fewer bits (`quantization`), "
            "or speculation where answers repeat their prompts.",
        )
        return
    largest = max(("attention", "linear", "other", "library"), key=lambda part: of.get(part, 0.0))
    advice = {
        "attention": "Long contexts cost: shorter prompts, prefix caching, a smaller KV cache type.",
        "linear": "Fewer bits (`precision`, `quantization`), a faster runner or device, or a smaller model.",
        "other": "Norms and activations outweigh the products: the model is small for this device; batch more.",
        "library": "Fewer bits, more CPU cores, or a smaller model; with `--runner torch` the model's parts are seen.",
    }[largest]
    where = "its library" if largest == "library" else f"{largest} operators first"
    yield Finding(
        "compute", model * busy / 2, f"The model's own arithmetic takes {model:.0%} of the busy time, {where}.", advice
    )


def _kv_cache(profile: Profile) -> Iterator[Finding]:
    steps = profile.steps
    full = steps.kv_cache_usage is not None and steps.kv_cache_usage >= 0.95 and steps.num_waiting > 0
    if not steps.num_preemptions and not full:
        return
    yield Finding(
        "kv_cache",
        0.3 if steps.num_preemptions else 0.2,
        f"The KV cache is full: {steps.num_preemptions} preemptions, {steps.num_waiting} requests wait.",
        "More `kv_cache_memory`, a lower `max_num_seqs`, shorter prompts, or KV of fewer bits.",
    )


def _busy_s(profile: Profile) -> float:
    return max(profile.trace.wall_s - profile.trace.seconds.get("waiting", 0.0), 1e-9)
