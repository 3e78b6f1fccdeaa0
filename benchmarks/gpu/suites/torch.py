"""Peak and device memory against step time of nine models, by PyTorch's means and by headroom."""

from __future__ import annotations

from harness import Figures, Point, Results, Suite, cell, table
from harness.plots import Series, scatter
from harness.variants import compare_point, figures_of, gib, is_ours, overhead, percent, prediction_error

# Models, and the GPU's memory that plain training needs and some more.
MODELS = {
    "resnet50": 20,
    "gpt2": 36,
    "convnext": 30,
    "vit": 36,
    "bert": 36,
    "llama": 36,
    "densenet": 20,
    "vgg19": 20,
    "t5": 24,
}
CONVOLUTIONAL = ("resnet50", "convnext", "densenet", "vgg19")
# Variants that are measured in one process, in turn with the first of them.
GROUPS = {
    "inductor": ("torch:1.0", "inductor:1x", "inductor:0.5x", "inductor:least"),
    "torch": ("torch:1.0", "torch:0.5", "torch:0.3", "torch:0.0", "compile+checkpoint"),
    "eager": ("plain", "checkpoint", "eager:1x", "eager:0.5x", "eager:=checkpoint", "eager:least"),
    "inductor-more": (
        "torch:1.0", "compile+checkpoint", "inductor:=compile+checkpoint", "inductor:0.7x", "inductor:0.3x"
    ),
    "torch-more": ("torch:1.0", "torch:0.7", "torch:0.2", "torch:0.1"),
    "aot": ("plain", "aot", "plain:1e-7"),
}  # fmt: skip
# The order of rows.
ORDER = ("plain", "plain:1e-7", "aot", "checkpoint", "eager", "torch", "compile+checkpoint", "inductor")
EXACT = ("plain", "eager:0.6x", "torch:1.0", "inductor:0.6x")
EXACT_MODELS = ("resnet50", "gpt2")
# The largest batches are found for these budgets.
BATCH_BUDGETS = ("16GB", "24GB", "40GB", "80GB")
BATCH_SCRIPT = "benchmarks/gpu/measure/largest_batch.py"
# Times nearer than this are equal.
NOISE = 0.02


def points() -> list[Point]:
    compared = [
        compare_point(f"{model}-{group}", model, variants, gpu_gib=gpu_gib)
        for group, variants in GROUPS.items()
        for model, gpu_gib in MODELS.items()
    ]
    exact = [
        compare_point(f"{model}-exact", model, EXACT, "--exact", "--rounds", "1", gpu_gib=MODELS[model])
        for model in EXACT_MODELS
    ]
    return [*compared, *exact, *[batch_point(model, budget) for budget in BATCH_BUDGETS for model in MODELS]]


def batch_point(model: str, budget: str) -> Point:
    package = "torchvision" if model in (*CONVOLUTIONAL, "vit") else "transformers"
    command = ("python", BATCH_SCRIPT, model, budget, "--json")
    gpu_gib = int(budget.removesuffix("GB")) / 1.07
    return Point(f"{model}-batch-{budget}", command, gpu_gib=gpu_gib, packages=(package,), build="python")


def variants_of(results: Results, model: str) -> dict[str, Figures]:
    return figures_of(results, [f"{model}-{group}" for group in GROUPS])


def names() -> list[str]:
    """Returns all variants in the order of their rows."""
    found = dict.fromkeys(name for variants in GROUPS.values() for name in variants)
    return sorted(
        found, key=lambda name: (ORDER.index(name if name in ORDER else name.partition(":")[0]), _level(name))
    )


def _level(name: str) -> float:
    """Returns a number that is smaller for more memory."""
    value = name.partition(":")[2].removesuffix("x")
    try:
        return -float(value)
    except ValueError:
        return {"least": 1.0}.get(value, -0.25)


def row_of(name: str, figures: Figures) -> list[str | None]:
    if "error" in figures:
        return [name, *[None] * 3, "", "", figures["error"].partition(":")[0], ""]
    off = figures.get("off")
    return [
        name,
        cell(gib(figures), ".2f"),
        cell(gib(figures, "held_bytes"), ".2f"),
        cell(figures.get("ms"), ".1f"),
        cell(figures.get("first_s"), ".0f"),
        "" if off is None else "equal" if off == 0 else f"{off:.1e}",
        percent(prediction_error(figures), "+.2f") or "",
        "" if "over_bytes" not in figures else kept(figures),
    ]


def kept(figures: Figures) -> str:
    over = figures["over_bytes"]
    if over <= 0:
        return "yes"
    is_first = figures.get("later_over_bytes", over) <= 0
    return f"**exceeded** by {over / 2**20:.0f} MiB" + (" in the first call" if is_first else "")


def dominating(variants: dict[str, Figures]) -> list[str]:
    """Returns where a variant of PyTorch takes less memory and less time than one of headroom's that it could replace.

    A variant of headroom that another one of headroom's replaces is left out.
    """
    measured = {name: figures for name, figures in variants.items() if "ms" in figures and "peak_bytes" in figures}
    found = []
    for name, other in measured.items():
        if is_ours(name) or name.startswith("plain:"):
            continue
        smaller = [
            figures["ms"]
            for ours, figures in measured.items()
            if is_ours(ours) and figures["peak_bytes"] <= 1.001 * other["peak_bytes"]
        ]
        if not smaller:
            found.append(f"`{name}`: none of headroom's has as little memory")
        elif min(smaller) > (1 + NOISE) * other["ms"]:
            found.append(f"`{name}`: {min(smaller) / other['ms'] - 1:+.1%}")
    return found


def summary_row(model: str, variants: dict[str, Figures]) -> list[str | None]:
    def smallest(prefixes: tuple[str, ...]) -> float | None:
        return min(
            (gib(f) for name, f in variants.items() if name.startswith(prefixes) and "peak_bytes" in f), default=None
        )

    base = variants.get("torch:1.0", {})
    ours, automatic = smallest(("eager:", "inductor:")), smallest(("torch:",))
    by_hand = smallest(("checkpoint", "compile+checkpoint"))
    share = None if ours is None or not automatic else ours / automatic
    half = overhead(variants.get("inductor:0.5x", {}), base)
    return [
        model,
        cell(gib(variants.get("plain", {})), ".2f"),
        cell(gib(base), ".2f"),
        cell(automatic, ".2f"),
        cell(by_hand, ".2f"),
        cell(ours, ".2f"),
        percent(share, ".0f"),
        percent(half),
        "; ".join(dominating(variants)) or ("none" if variants else None),
    ]


def tables(results: Results) -> str:
    text = (
        "Peaks are what a step adds, and *device* is what the allocator then holds, in GiB. Times are those of steps "
        "in a row, in ms, each measured in turn with `plain` or `torch:1.0`. A budget of 0.5x is half of what that one "
        "adds; `=checkpoint` is what that variant adds. Distances of gradients are shares of their norm: from plain "
        "PyTorch's, with Inductor from `torch.compile`'s.\n"
    )
    head = ["model", "plain", "compiled", "smallest share", "by hand", "headroom", "of the smallest share"]
    head += ["inductor:0.5x, time", "faster in no more memory"]
    variants = {model: variants_of(results, model) for model in MODELS}
    text += f"\n## Smallest peaks\n\n{table(head, [summary_row(*item) for item in variants.items()])}"
    for model in MODELS:
        rows = [row_of(name, variants[model].get(name, {})) for name in names()]
        head = ["", "GiB", "device", "ms", "first call, s", "gradients off by", "prediction off by", "budget kept"]
        text += f"\n## {model}\n\n![{model}](torch-{model}.svg)\n\n{table(head, rows)}"
    return f"{text}\n{exact_table(results)}\n{batch_table(results)}"


def exact_table(results: Results) -> str:
    rows = []
    for model in EXACT_MODELS:
        variants = figures_of(results, [f"{model}-exact"])
        rows.append([model, *[cell(variants.get(name, {}).get("off"), ".4f") for name in EXACT]])
    return f"## Gradients against higher precision, without TF32 and dropout\n\n{table(['', *EXACT], rows)}"


def batch_table(results: Results) -> str:
    def text(model: str, budget: str) -> str | None:
        figures = results.first(f"{model}-batch-{budget}")
        if "batch" not in figures:
            return None
        kept = "" if figures["over_bytes"] <= 0 else ", **exceeded**"
        return f"{figures['batch']} ({figures['plain_batch']}){kept}"

    rows = [[model, *[text(model, budget) for budget in BATCH_BUDGETS]] for model in MODELS]
    head = "## Largest batch\n\nWhat `max_batch` finds and a step then keeps; in brackets that of plain PyTorch.\n"
    return f"{head}\n{table(['model', *BATCH_BUDGETS], rows)}"


def plots(results: Results) -> dict[str, str]:
    """Returns a chart of peak against time for each model that has results."""
    charts = {}
    for model in MODELS:
        variants = variants_of(results, model)
        kinds = {
            "eager PyTorch": ("plain", "checkpoint"),
            "torch.compile": ("torch:", "compile+"),
            "headroom, eager": ("eager:",),
            "headroom, Inductor": ("inductor:",),
        }
        series = []
        for label, prefixes in kinds.items():
            points = sorted(
                (gib(figures), figures["ms"])
                for name, figures in variants.items()
                if name.startswith(prefixes)
                and not name.startswith("plain:")
                and "ms" in figures
                and "peak_bytes" in figures
            )
            series.append(Series(label, points, has_line=label.startswith("headroom")))
        if any(line.points for line in series):
            charts[model] = scatter(f"A step of {model}", "GiB that a step adds", "ms", series)
    return charts


SUITE = Suite("Peak against step time", points(), tables, plots=plots, side_by_side=True)
