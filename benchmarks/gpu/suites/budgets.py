"""Real models with AdamW within budgets: whether budgets are kept, and memory and time against plain PyTorch's."""

from __future__ import annotations

from harness import Figures, Point, Results, Suite, cell, table

TEXT_MODELS = ("bert", "bert+mask", "roberta", "roberta+mask", "t5", "t5+cache", "llama", "gpt2")
IMAGE_MODELS = ("vit", "convnext", "swin", "efficientnet", "densenet", "deeplab")
MODELS = (*TEXT_MODELS, *IMAGE_MODELS)
KERNELS = ("eager", "inductor")
BUDGETS = ("1x", "0.5x", "least")
# Budgets of first calls with eager kernels, beside backend aot_eager's first call.
FIRST_CALLS = ("aot_eager", "1x", "0.5x")
SCRIPT = "benchmarks/gpu/measure/budgets.py"
LOCK = "build/gpu/budgets.lock"


def name_of(model: str, *rest: str) -> str:
    return "-".join([model.replace("+", "-"), *rest])


def point_of(model: str, name: str, *options: str) -> Point:
    package = "torchvision" if model in IMAGE_MODELS else "transformers"
    command = ("python", SCRIPT, model, *options, "--lock", LOCK, "--json")
    return Point(name, command, limit_s=900, packages=(package,), build="python")


def points() -> list[Point]:
    trained = [
        point_of(model, name_of(model, kernels, budget), "--kernels", kernels, "--budgets", budget, "--timed", budget)
        for kernels in KERNELS
        for model in MODELS
        for budget in BUDGETS
    ]
    first = [
        point_of(model, name_of(model, "first", kind), "--first-call", kind) for model in MODELS for kind in FIRST_CALLS
    ]
    return [*trained, *first]


def row_of(figures: Figures) -> list[str]:
    if "refused" in figures:
        return ["refused", cell(figures["limit_bytes"] / 2**30, ".3f"), *[cell(None)] * 5]
    if not figures:
        return [cell(None)] * 7
    peak, over = figures["peak_bytes"], max(figures["over_bytes"])
    return [
        "yes" if over <= 0 else f"**exceeded by {over} bytes**",
        cell(figures["limit_bytes"] / 2**30, ".3f"),
        cell(peak / 2**30, ".3f"),
        cell(100 * (figures["predicted_bytes"] / peak - 1), "+.2f") + " %",
        cell(figures["added_share"], ".3f"),
        cell(figures.get("time_ratio"), ".3f"),
        cell(figures.get("plain_ms"), ".1f"),
    ]


def tables(results: Results) -> str:
    head = ["model", "budget", "kept", "GiB", "peak", "prediction off by", "added", "time", "plain ms"]
    text = (
        "Added bytes and time are multiples of plain PyTorch's, with Inductor of `torch.compile`'s. "
        "1x is 1 % more than plain adds, least the smallest budget that an error names.\n"
    )
    for kernels in KERNELS:
        rows = [
            [model, budget, *row_of(results.first(name_of(model, kernels, budget)))]
            for model in MODELS
            for budget in BUDGETS
        ]
        text += f"\n## Kernels: {kernels}\n\n{table(head, rows)}"
    return f"{text}\n## First calls with eager kernels on a cold cost cache\n\n{first_calls(results)}"


def first_calls(results: Results) -> str:
    rows = []
    for model in MODELS:
        seconds = [results.first(name_of(model, "first", kind)).get("first_s") for kind in FIRST_CALLS]
        plain = seconds[0]
        ratios = [cell(time / plain if time and plain else None, ".2f") for time in seconds[1:]]
        rows.append([model, *[cell(time, ".2f") for time in seconds], *ratios])
    budgets = FIRST_CALLS[1:]
    return table(
        ["model", *[f"{kind}, s" for kind in FIRST_CALLS], *[f"{budget} / aot_eager" for budget in budgets]], rows
    )


SUITE = Suite("Budgets of real models", points(), tables, side_by_side=True)
