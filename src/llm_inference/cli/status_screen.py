"""The status of a server as lines of text: what `llm-inference top` prints and redraws. Pure: it asks nobody.

`status` is the JSON of `/status.json`. Whatever names it holds, no control character reaches the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_UNKNOWN = "-"
_TIMES = (
    ("first token", "ttft_s"),
    ("each further token", "token_s"),
    ("in the queue", "queue_s"),
    ("whole request", "total_s"),
)
Status = Mapping[str, Any]


def screen(status: Status, before: Status | None, url: str) -> list[str]:
    """All lines. `before`: an earlier status of the same server, for the rates of now; else they are the window's."""
    recent = status["recent"]
    window = span(recent["window_s"])
    lines = [
        f"{url}  {status['status'].replace('_', ' ')}, up {span(status['uptime_s'])}, version {status['version']}",
        f"{_rate(_tokens_per_s(status, before))} tokens/s   "
        f"in flight {status['in_flight']} of {status['max_concurrent_requests']}   queued {status['num_queued']}   "
        f"in {window}: {recent['num_requests']} requests, {recent['num_errors']} errors, "
        f"{recent['prompt_tokens']} prompt and {recent['completion_tokens']} generated tokens",
        "",
        *_models(status, before),
    ]
    times = [(name, recent[field]) for name, field in _TIMES if recent[field] is not None]
    if times:
        rows = [[name, *(seconds(known[rank]) for rank in ("p50", "p95", "p99"))] for name, known in times]
        lines += ["", *_table([f"TIMES OF {window}", "P50", "P95", "P99"], rows, 1)]
    if status["tiers"]:
        rows = [[name, *_figures(figures)] for name, figures in status["tiers"].items()]
        lines += ["", *_table(["TIER", "REQS", "ERRS", "TTFT P50", "P95", "TOKEN"], rows, 1)]
    if status["errors"]:
        rows = [
            [
                time.strftime("%H:%M:%S", time.localtime(one["time"])),
                *(str(one[name] or _UNKNOWN) for name in ("status", "code", "model", "request_id")),
            ]
            for one in status["errors"][:10]
        ]
        lines += ["", *_table(["LAST ERRORS", "STATUS", "CODE", "MODEL", "REQUEST"], rows, 5)]
    return [_plain(line) for line in lines]


def _models(status: Status, before: Status | None) -> list[str]:
    rows = []
    for name, model in status["models"].items():
        load = model["load"] or {}
        usage = load.get("kv_cache_usage")
        queries = load.get("prefix_cache_queries")
        rows.append(
            [
                name,
                _state(model),
                model["engine"],
                str(load.get("num_running", _UNKNOWN)),
                str(load.get("num_waiting", _UNKNOWN)),
                _UNKNOWN if usage is None else f"{usage:.0%}",
                f"{load['prefix_cache_hits'] / queries:.0%}" if queries else _UNKNOWN,
                _rate(_tokens_per_s(status, before, name)),
                *_figures(model["recent"]),
            ]
        )
    heads = ["MODEL", "STATE", "ENGINE", "RUN", "WAIT", "KV", "HITS", "TOK/S", "REQS", "ERRS", "TTFT P50", "P95"]
    lines = _table([*heads, "TOKEN"], rows, 3)
    reasons = [f"  {name}: {model['reason']}" for name, model in status["models"].items() if model["reason"]]
    return [*lines, *reasons]


def _figures(figures: Status) -> list[str]:
    ttft, token = figures["ttft_s"] or {}, figures["token_s"] or {}
    return [
        str(figures["num_requests"]),
        str(figures["num_errors"]),
        seconds(ttft.get("p50")),
        seconds(ttft.get("p95")),
        seconds(token.get("p50")),
    ]


def _state(model: Status) -> str:
    if not model["live"]:
        return "dead"
    if not model["progressing"]:
        return "stalled"
    return "ready" if model["ready"] else "restarting"


def _tokens_per_s(status: Status, before: Status | None, model: str | None = None) -> float | None:
    """Of one model, or of all. What an engine says of itself, else what finished within the window."""
    names = status["models"] if model is None else (model,)
    if before is not None and status["time"] > before["time"]:
        grown = [
            max(0, now["generation_tokens"] - earlier["generation_tokens"])
            for name in names
            if (now := status["models"][name]["load"]) is not None
            and (earlier := before["models"].get(name, {}).get("load")) is not None
        ]
        if grown:
            return float(sum(grown) / (status["time"] - before["time"]))
    figures = status["recent"] if model is None else status["models"][model]["recent"]
    return float(figures["completion_tokens"] / figures["window_s"]) if figures["window_s"] > 0 else None


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], num_left: int) -> list[str]:
    """The first `num_left` columns begin at the left, the others end at the right."""
    cells = [heads, *([_plain(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    pads: list[Callable[[str, int], str]] = [
        str.ljust if column < num_left else str.rjust for column in range(len(heads))
    ]
    return [
        "  ".join(pad(cell, width) for cell, width, pad in zip(row, widths, pads, strict=True)).rstrip()
        for row in cells
    ]


def seconds(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    if value < 0.01:
        return f"{1000 * value:.1f}ms"
    return f"{1000 * value:.0f}ms" if value < 1 else f"{value:.2f}s"


def span(value: float) -> str:
    """A long time in its two largest units."""
    whole = round(value)
    parts = ((whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s"))
    first = next((place for place, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number) or "0 s"


def _rate(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1f}"


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
