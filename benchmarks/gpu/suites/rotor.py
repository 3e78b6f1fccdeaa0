"""Throughput at equal memory: headroom against checkpoint_sequential and the planners `chain` and `binomial`."""

from __future__ import annotations

import statistics

from harness import Figures, Point, Results, Suite, cell, table
from harness.plots import Series, scatter
from harness.variants import compare_point, figures_of, gib, percent

# Networks by NAME:BATCH:SIZE, with the GPU's memory that they need.
NETWORKS = {
    "resnet18:256:224": 10,
    "resnet50:128:224": 16,
    "resnet50:16:500": 12,
    "resnet101:64:224": 12,
    "resnet101:4:1000": 14,
    "resnet152:64:224": 16,
    "densenet121:64:224": 12,
    "densenet201:64:224": 18,
    "inception_v3:64:299": 10,
    "vgg19:64:224": 10,
}
SEGMENTS = (2, 4, 8)
SEQUENTIAL = tuple(f"sequential:{count}" for count in SEGMENTS)
EAGER = tuple(f"eager:={name}" for name in SEQUENTIAL)
# Planners of stages, at the memory of four segments.
STAGES = ("stages:chain:=sequential:4", "stages:binomial:=sequential:4")
PLAIN = "plain"


def name_of(network: str) -> str:
    return network.replace(":", "-").replace("_", "-")


def points() -> list[Point]:
    variants = (PLAIN, *SEQUENTIAL, *EAGER, *STAGES, "eager:least")
    return [compare_point(name_of(network), network, variants, gpu_gib=gib) for network, gib in NETWORKS.items()]


def best_at(variants: dict[str, Figures], peak_bytes: int) -> float | None:
    """Returns the time of the fastest checkpoint_sequential within a peak."""
    times = [
        variants[name]["ms"]
        for name in SEQUENTIAL
        if "ms" in variants.get(name, {}) and variants[name]["peak_bytes"] <= peak_bytes
    ]
    return min(times, default=None)


def gain(variants: dict[str, Figures], sequential: str, ours: str) -> float | None:
    """Returns by what share more steps are done in a time, at the memory of a checkpoint_sequential."""
    if "peak_bytes" not in variants.get(sequential, {}) or "ms" not in variants.get(ours, {}):
        return None
    best = best_at(variants, variants[sequential]["peak_bytes"])
    return None if best is None else best / variants[ours]["ms"] - 1


def tables(results: Results) -> str:
    text = (
        "GiB that a step adds and ms. The gain is in steps a second against the best `checkpoint_sequential` with at "
        "most that memory.\n"
    )
    rows, gains = [], []
    for network in NETWORKS:
        variants = figures_of(results, [name_of(network)])
        rows.append([network, PLAIN, *memory_and_time(variants.get(PLAIN, {})), "", ""])
        for sequential, ours in zip(SEQUENTIAL, EAGER, strict=True):
            share = gain(variants, sequential, ours)
            gains += [] if share is None else [share]
            figures = variants.get(sequential, {})
            rows.append(
                ["", sequential, *memory_and_time(figures), *ours_cells(variants.get(ours, {})), percent(share)]
            )
        for name in STAGES:
            figures = variants.get(name, {})
            planner = name.split(":")[1]
            rows.append(
                [
                    "",
                    f"`{planner}`, as sequential:4",
                    "",
                    "",
                    *ours_cells(figures),
                    percent(gain(variants, SEQUENTIAL[1], name)),
                ]
            )
        rows.append(["", "headroom's smallest", "", "", *ours_cells(variants.get("eager:least", {})), ""])
    head = ["network:batch:size", "", "GiB", "ms", "headroom: GiB", "ms", "gain"]
    mean = f"{statistics.mean(gains):+.1%} on average, {min(gains):+.1%} at least" if gains else cell(None)
    return f"{text}\nThe gain of `auto`: {mean}.\n\n![Throughput](rotor-throughput.svg)\n\n{table(head, rows)}"


def memory_and_time(figures: Figures) -> list[str]:
    return [cell(gib(figures), ".2f"), cell(figures.get("ms"), ".1f")]


def ours_cells(figures: Figures) -> list[str]:
    if "error" in figures:
        return [figures["error"].partition(":")[0], ""]
    return memory_and_time(figures)


def plots(results: Results) -> dict[str, str]:
    """Returns throughput against memory, both as shares of plain PyTorch's."""
    kinds = {"checkpoint_sequential": SEQUENTIAL, "headroom": (*EAGER, "eager:least"), "`chain` of stages": STAGES[:1]}
    points: dict[str, list[tuple[float, float]]] = {label: [] for label in kinds}
    for network in NETWORKS:
        variants = figures_of(results, [name_of(network)])
        plain = variants.get(PLAIN, {})
        for label, names in kinds.items():
            for name in names:
                figures = variants.get(name, {})
                if "ms" in figures and "ms" in plain:
                    share = figures["peak_bytes"] / plain["peak_bytes"]
                    points[label].append((100 * share, 100 * plain["ms"] / figures["ms"]))
    if not any(points.values()):
        return {}
    series = [Series(label.replace("`", ""), found) for label, found in points.items()]
    return {"throughput": scatter("Throughput", "memory, % of plain", "steps a second, % of plain", series)}


SUITE = Suite("Throughput at equal memory", points(), tables, plots=plots, side_by_side=True)
