"""Hong et al. 2025: memory through a step, the peaks of choosing checkpoints, and planning time."""

from __future__ import annotations

from typing import Any

from harness import Figures, Point, Results, Suite, cell, table
from harness.plots import Series, scatter

PROGRAM = "build/gpu/hong"
# Steps whose memory is compared at every point, by network, batch, size (0: as published) and checkpoints.
TIMELINES = {
    "vgg19": ("64", "0", "3,11,24"),
    "alexnet": ("256", "0"),
}
# Networks and batches whose smallest peaks are compared: those of Feng and Huang.
PEAKS = {
    "alexnet": 1024,
    "vgg11": 64,
    "vgg13": 64,
    "vgg16": 64,
    "vgg19": 64,
    "resnet18": 256,
    "resnet34": 128,
    "resnet50": 64,
    "resnet101": 32,
    "resnet152": 16,
}
PLANNERS = ("sqrt", "division-tree", "peak-cubic", "peak-linear")
TIMED = ("sqrt", "peak-cubic", "peak-linear")


def point_of(name: str, *arguments: str, gpu_gib: float | None = 10) -> Point:
    return Point(name, (PROGRAM, *arguments), gpu_gib=gpu_gib, packages=("torch",), build="programs")


def points() -> list[Point]:
    timelines = [point_of(f"timeline-{name}", "timeline", name, *rest) for name, rest in TIMELINES.items()]
    peaks = [point_of(f"peaks-{name}", "peaks", name, str(batch)) for name, batch in PEAKS.items()]
    return [*timelines, *peaks, point_of("planning", "planning", gpu_gib=None)]


def peaks_table(results: Results) -> str:
    columns = [*PLANNERS, *[f"{planner}, reentrant" for planner in PLANNERS]]
    rows = []
    for network, batch in PEAKS.items():
        figures = results.first(f"peaks-{network}")
        peaks = [figures.get(column) for column in columns]
        cells = [peak and f"{peak['predicted_mib']:.0f} / {peak['measured_mib']:.0f}" for peak in peaks]
        rows.append([f"{network} ({batch})", cell(figures.get("plain_mib"), ".0f"), *map(cell, cells)])
    return table(["network (batch)", "plain", *columns], rows)


def errors(figures: Figures, moment: str) -> list[float]:
    """Returns by what share of the step's peak predictions are above what was measured."""
    predicted, measured = figures[f"predicted_{moment}_mib"], figures[f"measured_{moment}_mib"]
    peak = max(figures["measured_during_mib"])
    return [(left - right) / peak for left, right in zip(predicted, measured, strict=True)]


def timeline_row(name: str, figures: Figures) -> list[str | None]:
    given = ", ".join(str(stage) for stage in figures.get("checkpoints", [])) or "none"
    if not figures:
        return [name, *[None] * 4]
    points = [*errors(figures, "during"), *errors(figures, "after")]
    return [
        f"{name} ({figures['batch']})",
        given,
        str(len(points)),
        f"{max(figures['measured_during_mib']):.0f}",
        f"{100 * max(map(abs, points)):.2f} %",
        f"{100 * figures['largest_error']:.2f} %",
    ]


def planning_rows(results: Results) -> list[list[str]]:
    times: dict[int, dict[str, float]] = {}
    for figures in results.all("planning"):
        times.setdefault(figures["stages"], {})[figures["planner"]] = figures["ms"]
    rows = [
        [f"{stages:,}", *[cell(found.get(name), ".3g") for name in TIMED]] for stages, found in sorted(times.items())
    ]
    return rows or [["1,000,000", *[cell(None)] * len(TIMED)]]


def tables(results: Results) -> str:
    head = ["network (batch)", "checkpoints", "points", "peak, MiB", "off by, of the peak", "of the point"]
    rows = [timeline_row(name, results.first(f"timeline-{name}")) for name in TIMELINES]
    images = "".join(f"![{name}](hong-{name}.svg)\n" for name in TIMELINES)
    return (
        f"## Memory through a step\n\nDuring and after each run, less what is there before the step.\n\n{images}\n"
        f"{table(head, rows)}\n"
        f"## The smallest peak by choosing checkpoints, MiB predicted / measured\n\n{peaks_table(results)}\n"
        f"## Planning time, ms\n\nOn a random chain. A planner that took two seconds is not asked for more stages.\n\n"
        f"![Planning time](hong-planning.svg)\n\n{table(['stages', *TIMED], planning_rows(results))}"
    )


def plots(results: Results) -> dict[str, str]:
    charts: dict[str, Any] = {}
    for name in TIMELINES:
        figures = results.first(f"timeline-{name}")
        if "measured_during_mib" in figures:
            series = [
                Series(kind, list(enumerate(figures[f"{kind}_during_mib"])), has_line=kind == "predicted")
                for kind in ("predicted", "measured")
            ]
            charts[name] = scatter(f"Memory through a step of {name}", "run", "MiB", series, from_zero=True)
    planning = [
        Series(
            name,
            [(row["stages"], row["ms"]) for row in results.all("planning") if row["planner"] == name],
            has_line=True,
        )
        for name in TIMED
    ]
    if any(line.points for line in planning):
        charts["planning"] = scatter("Planning time", "stages", "ms", planning, logarithmic=True)
    return charts


SUITE = Suite("Hong et al.'s measurements", points(), tables, plots=plots, side_by_side=True)
