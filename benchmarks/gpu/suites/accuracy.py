"""Predicted against measured peaks over the other suites, and budgets that were exceeded. Runs nothing by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness import Results, Suite, cell, table
from harness.plots import Series, scatter
from harness.variants import percent

READS = ("torch", "feng", "rotor", "hong", "budgets", "networks", "train")
GIB = 1 << 30
MIB = 1 << 20


class Prediction(NamedTuple):
    name: str
    kernels: str
    predicted_bytes: float
    measured_bytes: float
    over_bytes: float  # How far the largest peak is above the budget; negative below it.

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1


def predictions(results: Results) -> Iterator[Prediction]:
    for suite, beside in results.beside.items():
        for point, result in beside.by_point.items():
            for figures in result.figures:
                yield from _of(f"{suite}/{point}", figures)


def _of(name: str, figures: dict) -> Iterator[Prediction]:
    if "predicted_bytes" in figures and "peak_bytes" in figures:
        kernels = figures.get("kernels") or ("inductor" if figures["variant"].startswith("inductor") else "eager")
        over = figures.get("over_bytes", 0)
        worst = max(over) if isinstance(over, list) else over
        name = f"{name} {figures.get('variant', '')}".strip()
        yield Prediction(name, kernels, figures["predicted_bytes"], figures["peak_bytes"], worst)
    elif "right" in figures:
        over = figures["measured_mib"] - figures["budget_mib"]
        predicted, measured = MIB * figures["predicted_mib"], MIB * figures["measured_mib"]
        yield Prediction(f"{name} {figures['what']}", "LibTorch", predicted, measured, MIB * over)
    elif "plain_mib" in figures:
        for planner, peaks in figures.items():
            if isinstance(peaks, dict):
                sizes = MIB * peaks["predicted_mib"], MIB * peaks["measured_mib"]
                yield Prediction(f"{name} {planner}", "LibTorch", *sizes, 0)
    elif "limit_bytes" in figures and figures.get("limit_bytes") and "run" in figures:
        peak = max(figures["peaks_bytes"])
        yield Prediction(f"{name} {figures['run']}", "eager", peak, peak, figures["over_bytes"])


def tables(results: Results) -> str:
    found = list(predictions(results))
    rows = []
    for kernels in ("eager", "inductor", "LibTorch"):
        of_kind = [prediction for prediction in found if prediction.kernels == kernels]
        worst = max(of_kind, key=lambda prediction: abs(prediction.error), default=None)
        exceeded = [f"`{prediction.name}`" for prediction in of_kind if prediction.over_bytes > 0]
        rows.append(
            [
                kernels,
                str(len(of_kind)),
                percent(worst and worst.error, "+.2f"),
                worst and f"`{worst.name}`",
                None if not of_kind else ", ".join(exceeded) or "none",
            ]
        )
    head = ["kernels", "predictions", "worst", "of", "budgets exceeded"]
    suites = ", ".join(f"`{name}`" for name in results.beside) or cell(None)
    return (
        f"Of what was measured in {suites}. A prediction of bytes is compared with the peak of a later step, a budget "
        f"with the largest peak of all steps.\n\n![Predicted and measured](accuracy-peaks.svg)\n\n{table(head, rows)}"
    )


def plots(results: Results) -> dict[str, str]:
    found = list(predictions(results))
    series = [
        Series(kernels, [(p.predicted_bytes / GIB, p.measured_bytes / GIB) for p in found if p.kernels == kernels])
        for kernels in ("eager", "inductor", "LibTorch")
    ]
    if not found:
        return {}
    return {"peaks": scatter("Peaks", "predicted, GiB", "measured, GiB", series, logarithmic=True, diagonal=True)}


SUITE = Suite("Predicted and measured peaks", [], tables, plots=plots, reads=READS)
