"""Gradients of steps with eager kernels, bit for bit against plain PyTorch's."""

from __future__ import annotations

from harness import Figures, Point, Results, Suite, cell, table

# Models, and the package that each is from.
MODELS = {
    "bert": "transformers",
    "gpt2": "transformers",
    "deeplab": "torchvision",
    "fcn": "torchvision",
    "convnext": "torchvision",
    "swin": "torchvision",
    "efficientnet": "torchvision",
    "densenet": "torchvision",
}
BUDGETS = ("1x", "0.5x", "least")
SCRIPT = "benchmarks/gpu/measure/gradients.py"


def point_of(model: str, package: str) -> Point:
    command = ("python", SCRIPT, model, "--budgets", *BUDGETS, "--draws", "--json")
    return Point(model, command, packages=(package,), build="python")


def verdict(figures: Figures) -> str | None:
    if not figures:
        return None
    raised = "" if figures["budget"] == figures["asked"] else f" at {figures['budget']}"
    if figures["different"] == 0:
        return f"equal{raised}"
    note = "" if figures["repeatable"] else "; so do two plain runs"
    return (
        f"{figures['different']} of {figures['tensors']} tensors differ{raised}, "
        f"by up to {figures['largest_difference']:.1e}{note}"
    )


def tables(results: Results) -> str:
    rows = []
    for model in MODELS:
        by_budget = {figures["asked"]: figures for figures in results.all(model)}
        rows.append([model, *[cell(verdict(by_budget.get(budget, {}))) for budget in BUDGETS]])
    return table(["model", *BUDGETS], rows)


SUITE = Suite("Gradients against plain PyTorch's", [point_of(*model) for model in MODELS.items()], tables)
