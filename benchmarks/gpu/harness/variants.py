"""Points of measure/compare.py, which measures variants of a step of one model in one process."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from harness.results import Results
from harness.suite import Figures, Point

SCRIPT = "benchmarks/gpu/measure/compare.py"
LOCK = "build/gpu/compare.lock"
# A point begins no variant after this many seconds, and is stopped after some more.
BEGIN_S, LIMIT_S = 420, 540
GIB = 1 << 30
TEXT_MODELS = ("gpt2", "bert", "roberta", "llama", "t5")


def compare_point(name: str, model: str, variants: Sequence[str], *options: str, gpu_gib: float) -> Point:
    """Returns the point that measures these variants, the first of which is the base of the others' times."""
    family = model.partition(":")[0]
    packages = () if family.endswith("-cifar") else ("transformers" if family in TEXT_MODELS else "torchvision",)
    command = ("python", SCRIPT, model, *variants, *options, "--limit-s", str(BEGIN_S), "--lock", LOCK, "--json")
    return Point(name, command, limit_s=LIMIT_S, gpu_gib=gpu_gib, packages=packages, build="python")


def figures_of(results: Results, points: Iterable[str]) -> dict[str, Figures]:
    """Returns the figures of the variants of some points. Times are comparable even if clocks were not the same.

    Each process measures its variants in turn with its first one. `ms` is the time as a multiple of that one's, times
    the median of that one's in all points.
    """
    points = list(points)
    bases: dict[str, list[float]] = {}
    for point in points:
        for figures in results.all(point):
            if figures.get("base") == figures.get("variant") and "step_ms" in figures:
                bases.setdefault(figures["base"], []).append(figures["step_ms"])
    variants: dict[str, Figures] = {}
    for point in points:
        for figures in results.all(point):
            known = variants.get(figures["variant"])
            if known is not None and "peak_bytes" in known:
                continue
            base = bases.get(figures.get("base", ""))
            time = {"ms": figures["time_ratio"] * statistics.median(base)} if base else {}
            variants[figures["variant"]] = figures | time
    return variants


def is_ours(variant: str) -> bool:
    return variant.startswith(("eager:", "inductor:", "stages:"))


def gib(figures: Figures, name: str = "peak_bytes") -> float | None:
    return figures[name] / GIB if name in figures else None


def prediction_error(figures: Figures) -> float | None:
    """Returns by what share a predicted peak is above the measured one."""
    if "predicted_bytes" not in figures or not figures.get("peak_bytes"):
        return None
    return figures["predicted_bytes"] / figures["peak_bytes"] - 1


def overhead(figures: Figures, base: Figures) -> float | None:
    """Returns by what share a step takes longer than the base."""
    return figures["ms"] / base["ms"] - 1 if "ms" in figures and base.get("ms") else None


def percent(share: float | None, form: str = "+.1f") -> str | None:
    return None if share is None or math.isnan(share) else f"{100 * share:{form}} %"
