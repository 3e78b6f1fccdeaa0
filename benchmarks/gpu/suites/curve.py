"""Peak against step time of two models, by PyTorch's means and by headroom."""

from __future__ import annotations

from collections.abc import Sequence

from harness import Figures, Point, Results, Suite, cell, table

EAGER = {
    "resnet50": ("eager:1x", "eager:5GiB", "eager:3.9GiB", "eager:least"),
    "gpt2": ("eager:1x", "eager:10GiB", "eager:5.2GiB", "eager:least"),
}
TORCH = {
    "resnet50": ("torch:1.0", "torch:0.7", "torch:0.5", "torch:0.3", "torch:0.15", "torch:0.0"),
    "gpt2": ("torch:1.0", "torch:0.7", "torch:0.5", "torch:0.3", "torch:0.0"),
}
INDUCTOR = {
    "resnet50": ("least", "1x", "10.2GiB", "6.12GiB", "5.5GiB", "4GiB", "3.6GiB"),
    "gpt2": ("least", "1x", "10.2GiB", "7.4GiB", "5GiB", "4GiB", "3.1GiB"),
}
EXACT = ("plain", "eager:0.6x", "torch:1.0", "inductor:0.6x")
PACKAGES = {"resnet50": "torchvision", "gpt2": "transformers"}
# Somewhat more than plain training needs.
GPU_GIB = {"resnet50": 16, "gpt2": 30}
SCRIPT = "benchmarks/gpu/measure/compile_curve.py"
WARM = "benchmarks/gpu/measure/warm_inductor.py"


def kinds_of(model: str) -> list[str]:
    """Returns the points of a model. The first two of PyTorch's are repeated at the end to show the noise."""
    inductor = [f"inductor:{budget}" for budget in INDUCTOR[model]]
    eager = ["plain", "plain:1e-7", "aot", "checkpoint", *EAGER[model]]
    return [*eager, *TORCH[model], "compile+checkpoint", *inductor, *[f"{kind}:again" for kind in TORCH[model][:2]]]


def name_of(model: str, kind: str, prefix: str = "") -> str:
    return f"{model}-{prefix}{kind.replace(':', '-').replace('+', '-')}"


def is_by_inductor(kind: str) -> bool:
    return kind.startswith(("torch:", "compile+", "inductor:"))


def curve_point(model: str, kind: str) -> Point:
    asked = kind.removesuffix(":again")
    reference = "torch:1.0" if is_by_inductor(asked) else "plain"
    options = () if asked == reference else ("--reference", reference)
    return point_of(model, name_of(model, kind), asked, *options)


def exact_point(model: str, kind: str) -> Point:
    return point_of(model, name_of(model, kind, "exact-"), kind, "--exact", "--turns", "1")


def point_of(model: str, name: str, *options: str) -> Point:
    return Point(
        name,
        ("python", SCRIPT, model, *options, "--json"),
        limit_s=900,
        gpu_gib=GPU_GIB[model],
        packages=(PACKAGES[model],),
        build="python",
    )


def points() -> list[Point]:
    return [
        point
        for model in PACKAGES
        for point in [
            *[curve_point(model, kind) for kind in kinds_of(model)],
            *[exact_point(model, kind) for kind in EXACT],
        ]
    ]


def prepare(todo: Sequence[Point]) -> list[Point]:
    """Compiles the points of a model that Inductor compiles in parallel, if there are several."""
    names = {point.name for point in todo}
    preparations = []
    for model in PACKAGES:
        # The longest compilations start first.
        kinds = [kind for kind in kinds_of(model) if is_by_inductor(kind) and name_of(model, kind) in names]
        kinds.sort(key=lambda kind: not kind.startswith("inductor:"))
        exact = [kind for kind in EXACT if is_by_inductor(kind) and name_of(model, kind, "exact-") in names]
        if len(kinds) + len(exact) > 1:
            command = ("python", WARM, model, *dict.fromkeys(kind.removesuffix(":again") for kind in kinds))
            command += ("--exact", *exact) if exact else ()
            preparations.append(Point(f"{model}-warm", command, limit_s=1800))
    return preparations


def tables(results: Results) -> str:
    text = (
        "Peaks are what a step adds. Times are medians of steps that are waited for, and of steps in a row. Distances "
        "of gradients are shares of their norm: from plain PyTorch's, with Inductor from `torch.compile`'s.\n"
    )
    head = ["", "GiB", "ms", "in a row", "first call, s", "gradients off by", "prediction off by", "planned time"]
    for model in PACKAGES:
        rows = [[label(kind), *row_of(results.first(name_of(model, kind)))] for kind in kinds_of(model)]
        text += f"\n## {model}\n\n{table(head, rows)}"
    return f"{text}\n## Gradients against higher precision, without TF32 and dropout\n\n{exact_table(results)}"


def label(kind: str) -> str:
    return kind.replace(":again", ", again")


def row_of(figures: Figures) -> list[str]:
    peak, predicted, planned = figures.get("peak_bytes"), figures.get("predicted_bytes"), figures.get("predicted_ns")
    return [
        cell(peak and peak / 2**30, ".2f"),
        cell(figures.get("step_ms"), ".1f"),
        cell(figures.get("row_ms"), ".1f"),
        cell(figures.get("first_s"), ".0f"),
        cell(figures["off"], ".1e") if figures.get("off") else "equal" if "off" in figures else "",
        f"{predicted / peak - 1:+.1%}" if peak and predicted else "",
        f"{planned / figures['plain_ns'] - 1:+.1%}" if planned else "",
    ]


def exact_table(results: Results) -> str:
    rows = [
        [model, *[cell(results.first(name_of(model, kind, "exact-")).get("off"), ".4f") for kind in EXACT]]
        for model in PACKAGES
    ]
    return table(["", *EXACT], rows)


SUITE = Suite("Peak against step time", points(), tables, prepare)
