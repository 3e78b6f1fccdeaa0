"""Markdown made of results."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence
from typing import Any

from harness.results import MEASURED, Result, Results

HOLE = "—"
# An image of a chart, a file SUITE-CHART.svg. It is left out where the chart has no results.
IMAGE = re.compile(r"^!\[[^\]]*\]\(\w+-(?P<chart>[\w-]+)\.svg\)\n\n?", re.MULTILINE)


def cell(value: Any, form: str = "") -> str:
    """Returns a value in a Python format, or the mark of a missing value for None."""
    return HOLE if value is None else format(value, form)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table. Empty cells are allowed, and cells of None are missing values."""
    lines = [head, ["---"] * len(head), *rows]
    text = [" | ".join(cell(value).replace("|", "\\|").replace("\n", " ") for value in line) for line in lines]
    return "".join(f"| {line} |\n" for line in text)


def page(results: Results) -> str:
    """Returns the page of a suite: the machine of the measurements, its tables, and the missing points."""
    charts = results.suite.plots(results)
    tables = IMAGE.sub(lambda match: match[0] if match["chart"] in charts else "", results.suite.tables(results))
    parts = [f"# {results.suite.title}\n", *_settings(results.by_point.values()), tables]
    missing: dict[str, list[str]] = collections.defaultdict(list)
    for point in results.suite.points:
        result = results.by_point.get(point.name)
        if result is None:
            missing["was not run yet"].append(point.name)
        elif result.status != MEASURED:
            missing[f"{result.status}, {result.error}"].append(point.name)
    if missing:
        lines = [f"- {', '.join(f'`{name}`' for name in names)}: {reason}\n" for reason, names in missing.items()]
        parts.append("Not measured, or failed:\n\n" + "".join(lines))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _settings(results: Iterable[Result]) -> list[str]:
    """Returns a line for each machine and commit of the results. A run that was continued elsewhere has several."""
    counts = collections.Counter(_setting(result) for result in results if result.status == MEASURED)
    return [f"{text} ({count} points).\n" for text, count in counts.most_common()]


def _setting(result: Result) -> str:
    parts = []
    if result.gpu is not None:
        parts.append(f"{result.gpu['name']} ({result.gpu['memory_gib']:.0f} GiB)")
    else:
        parts.append(result.machine.get("processor") or "a machine without a GPU")
    for name, label in (("torch", "PyTorch"), ("cuda", "CUDA"), ("transformers", "transformers")):
        if name in result.versions:
            parts.append(f"{label} {result.versions[name]}")
    return ", ".join([*parts, f"headroom at {result.commit}"])
