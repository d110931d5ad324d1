"""A comparison as a picture: a row of bars for each workload, one bar a contender, coloured by class of precision.

matplotlib is an extra and is imported here alone, when a picture is wanted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_inference.tools.compare.comparison import Comparison, Entry, Spread

_COLOURS = {"fp32": "tab:blue", "bf16": "tab:cyan", "int8": "tab:orange", "int4": "tab:green"}
_TITLES = {
    "W1": "decode tokens/s of one stream",
    "W4": "99th percentile of the gaps, ms (less is better)",
}


def save_plot(comparison: Comparison, path: Path) -> None:
    """Write the picture, in the format of the suffix. Raises `OSError`."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    names = [name for name in comparison.workloads if any(entry.cells(name) for entry in comparison.entries)]
    most = max((sum(bool(entry.cells(name)) for entry in comparison.entries) for name in names), default=1)
    figure = Figure(figsize=(max(5.0 * len(names), 5.0), 1.6 + 0.32 * most), layout="constrained")
    for axes, name in zip(figure.subplots(1, max(len(names), 1), squeeze=False)[0], names, strict=False):
        _bars(axes, name, [entry for entry in comparison.entries if entry.cells(name)])
    classes = [name for name in _COLOURS if any(entry.precision == name for entry in comparison.entries)]
    if classes:
        figure.legend(
            handles=[Patch(color=_COLOURS[name], label=name) for name in classes], loc="outside lower center", ncols=4
        )
    machine = comparison.machine
    figure.suptitle(f"{comparison.model} on {machine.num_cpus} CPUs ({machine.cpu}), {comparison.started_at[:10]}")
    figure.savefig(path)


def _bars(axes: Any, workload: str, entries: list[Entry]) -> None:
    scale = 1000.0 if workload == "W4" else 1.0
    rows: list[tuple[Entry, Spread]] = []
    for entry in entries:
        value = entry.main(workload)
        if value is not None:
            rows.append((entry, value))
    places = range(len(rows))
    medians = [value.median * scale for _, value in rows]
    errors = [
        [(value.median - value.least) * scale for _, value in rows],
        [(value.most - value.median) * scale for _, value in rows],
    ]
    bars = axes.barh(
        places,
        medians,
        xerr=errors,
        color=[_COLOURS.get(entry.precision, "tab:gray") for entry, _ in rows],
        hatch=["//" if entry.is_ours else "" for entry, _ in rows],
        edgecolor="white",
    )
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.set_yticks(places, labels=[entry.title for entry, _ in rows])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set(title=f"{workload}: {_TITLES.get(workload, 'output tokens/s')}")
    axes.grid(axis="x", alpha=0.3)
