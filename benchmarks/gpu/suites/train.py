"""Whole runs of a thousand steps, plainly and within 0.4 of the memory that a step adds."""

from __future__ import annotations

from harness import Figures, Point, Results, Suite, cell, table
from harness.plots import Series, scatter

# Runs, with the package that each needs.
RUNS = {"gpt": "transformers", "resnet": "torchvision"}
STEPS = 1000
BUDGET = "0.4x"
SCRIPT = "benchmarks/gpu/measure/train.py"
GIB = 1 << 30


def point_of(name: str, package: str) -> Point:
    command = ("python", SCRIPT, name, "--steps", str(STEPS), "--budget", BUDGET, "--json")
    return Point(name, command, limit_s=540, gpu_gib=24, packages=(package,), build="python")


def runs_of(results: Results, name: str) -> dict[str, Figures]:
    return {figures["run"]: figures for figures in results.all(name)}


def tables(results: Results) -> str:
    rows = []
    for name in RUNS:
        runs = runs_of(results, name)
        plain = runs.get("plain", {})
        for run in ("plain", BUDGET):
            figures = runs.get(run, {})
            added, time = figures.get("added_bytes"), figures.get("step_ms")
            ratio = time / plain["step_ms"] if time and "step_ms" in plain else None
            losses = figures.get("losses", [None])
            rows.append(
                [
                    f"{name}, {run}",
                    cell(added and added / GIB, ".2f"),
                    cell(time, ".1f"),
                    cell(ratio, ".3f"),
                    cell(figures.get("whole_s"), ".0f"),
                    cell(losses[-1], ".4f"),
                    cell(figures.get("largest_difference"), ".1e") if run != "plain" else "",
                    "" if run == "plain" else kept(figures),
                ]
            )
    images = "".join(f"![{name}, {what}](train-{name}-{what}.svg)\n" for name in RUNS for what in ("loss", "memory"))
    head = ["run", "GiB added", "ms a step", "time", "all, s", "last loss", "losses differ by", "budget kept"]
    return f"{images}\n{table(head, rows)}"


def kept(figures: Figures) -> str | None:
    if "over_bytes" not in figures:
        return None
    return "yes" if figures["over_bytes"] <= 0 else f"**exceeded by {figures['over_bytes']} bytes**"


def plots(results: Results) -> dict[str, str]:
    charts = {}
    for name in RUNS:
        runs = runs_of(results, name)
        losses, memory = [], []
        for run, figures in runs.items():
            every = max(1, len(figures["losses"]) // 200)
            steps = range(0, len(figures["losses"]), every)
            label = "plain" if run == "plain" else f"within {run}"
            losses.append(
                Series(label, [(step, figures["losses"][step]) for step in steps], has_line=True, marks=False)
            )
            peaks = [(step, figures["peaks_bytes"][step] / GIB) for step in steps]
            memory.append(Series(label, peaks, has_line=True, marks=False))
        if runs:
            charts[f"{name}-loss"] = scatter(f"Loss of {name}", "step", "loss", losses)
            charts[f"{name}-memory"] = scatter(f"Peak of each step of {name}", "step", "GiB", memory, from_zero=True)
    return charts


SUITE = Suite("Whole runs", [point_of(*run) for run in RUNS.items()], tables, plots=plots)
