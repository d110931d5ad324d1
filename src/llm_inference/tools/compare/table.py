"""A comparison as Markdown: a table for each workload, and below it what failed or is in doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from llm_inference.tools.compare.comparison import Comparison, Entry, Spread, higher_is_better
from llm_inference.tools.compare.measured import Measured

_COLUMNS = (
    "", "Class", "Through", "Output tok/s", "Decode tok/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "Peak RSS",
    "Roofline", "× first", "× best peer",
)  # fmt: skip
_GB = 10**9
#: Workloads of one stream, whose speed after the first token means something by itself.
_SINGLE = ("W1", "W5")
_THROUGH = {
    "serve": "our server",
    "direct": "own server",
    "library": "library",
    "offline": "no server",
    "url": "its URL",
}


def render(comparison: Comparison) -> str:
    """Several lines, the last of which ends in a line feed."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    machine = comparison.machine
    yield f"{comparison.started_at[:10]}, llm-inference {comparison.version}, model {comparison.model}"
    yield ""
    yield f"{machine.num_cpus} CPUs: {machine.cpu} ({', '.join(machine.flags) or 'no known flags'}), {machine.platform}"
    if comparison.peaks is not None:
        peaks = comparison.peaks
        yield ""
        yield (
            f"Peaks, measured in this run: {peaks.read_bytes_per_s / _GB:.1f} GB/s read, "
            f"{peaks.gemm_flops_per_s / _GB:.0f} GFLOP/s in float32 products"
        )
    if comparison.interrupted:
        yield ""
        yield "Ended early: this is what was measured by then."
    entries = comparison.entries
    for workload, title in comparison.workloads.items():
        shown = [entry for entry in entries if entry.cells(workload)]
        if not shown:
            continue
        yield ""
        better = "higher" if higher_is_better(workload) else "lower"
        yield f"### {workload}: {title}"
        yield ""
        figure = {"W1": "decode tok/s", "W4": "ITL p99"}.get(workload, "output tok/s")
        yield f"Ratios of {figure}; {better} is better."
        yield ""
        yield from _table([_COLUMNS, *(_row(comparison, entry, workload) for entry in shown)])
    failures = list(_failures(comparison))
    for heading, lines in (("Failures", failures), ("Notes", list(_notes(comparison)))):
        if lines:
            yield ""
            yield f"### {heading}"
            yield ""
            yield from (f"- {line}" for line in lines)


def _row(comparison: Comparison, entry: Entry, workload: str) -> tuple[str, ...]:
    cells = entry.cells(workload)
    figures: list[tuple[Callable[[Measured], float | None], bool]] = [
        (lambda one: one.output_tokens_per_s, False),
        (lambda one: one.decode_tokens_per_s, False),
        (lambda one: one.ttft_p50_s, True),
        (lambda one: one.ttft_p99_s, True),
        (lambda one: one.itl_p50_s, True),
        (lambda one: one.itl_p99_s, True),
    ]
    mark = "" if all(one.complete for one in cells) or workload == "W4" else " *"
    rss = entry.peak_rss_bytes
    roofline = entry.roofline(workload)
    return (
        f"{entry.title}{mark}",
        entry.precision,
        _THROUGH.get(entry.through, entry.through),
        *(
            "" if place == 1 and workload not in _SINGLE else _spread(entry.spread(workload, figure), is_time=is_time)
            for place, (figure, is_time) in enumerate(figures)
        ),
        "" if rss is None else f"{rss / _GB:.2f} GB",
        "" if roofline is None else f"{roofline.median:.0%}",
        _ratio(comparison.ratio_to_first(entry, workload)),
        _ratio(comparison.ratio_to_best_peer(entry, workload)),
    )


def _spread(value: Spread | None, *, is_time: bool) -> str:
    """The median, and in brackets the least and the most where they differ."""
    if value is None:
        return ""
    scale = 1000.0 if is_time else 1.0
    unit = " ms" if is_time else ""
    texts = [_short(one * scale) for one in (value.median, value.least, value.most)]
    if texts[1] == texts[2]:
        return texts[0] + unit
    return f"{texts[0]} ({texts[1]}–{texts[2]}){unit}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _failures(comparison: Comparison) -> Iterator[str]:
    seen: set[str] = set()
    for entry in comparison.entries:
        for run in entry.runs:
            for where, message in (("did not start", run.error), *run.errors.items()):
                if message is None:
                    continue
                line = f"{entry.title}: {where}: {' '.join(message.split())[:400]}"
                if line not in seen:
                    seen.add(line)
                    yield line


def _notes(comparison: Comparison) -> Iterator[str]:
    yield from comparison.notes
    if any(not one.complete for entry in comparison.entries for run in entry.runs for one in run.measured.values()):
        yield (
            f"\\*: not every request was answered in full; what still ran after {comparison.limit_s:g} s was cut off, "
            "and the rate is over that time."
        )
    for entry in comparison.entries:
        versions = ", ".join(f"{name} {version}" for name, version in entry.versions.items())
        startup = entry.startup_s
        begun = "" if startup is None else f"ready after {startup.median:.0f} s"
        said = "; ".join(part for part in (versions, begun, *entry.notes) if part)
        if said:
            yield f"{entry.title}: {said}"
        doubts = {doubt for run in entry.runs for one in run.measured.values() for doubt in one.doubts}
        yield from (f"{entry.title}: {doubt}" for doubt in sorted(doubts))


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Aligned, without columns that are empty in every row."""
    kept = [place for place in range(len(rows[0])) if place == 0 or any(row[place] for row in rows[1:])]
    cells = [[row[place] for place in kept] for row in rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(kept))]
    for number, row in enumerate(cells):
        yield "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
        if number == 0:
            yield "| " + " | ".join("-" * max(width, 3) for width in widths) + " |"
