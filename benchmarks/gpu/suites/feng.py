"""The rows of Feng and Huang 2021: headroom's smallest memory, and its overhead there and at their memory."""

from __future__ import annotations

from typing import NamedTuple

from harness import Point, Results, Suite, cell, table
from harness.plots import Series, scatter
from harness.variants import compare_point, figures_of, overhead, percent

MIB = 1 << 20


class Row(NamedTuple):
    """A published row: MB without static memory, and the overhead of time."""

    network: str
    model: str  # NAME:BATCH:SIZE
    regular: int
    theirs: int
    overhead: float


ROWS = (
    Row("AlexNet (1024)", "alexnet:1024", 4955, 3287, 0.34),
    Row("VGG-11 (64)", "vgg11:64", 3577, 2781, 0.34),
    Row("VGG-13 (64)", "vgg13:64", 5136, 3565, 0.33),
    Row("VGG-16 (64)", "vgg16:64", 5136, 3565, 0.32),
    Row("VGG-19 (64)", "vgg19:64", 5189, 3565, 0.33),
    Row("ResNet-18 (256)", "resnet18:256", 5635, 3677, 0.30),
    Row("ResNet-34 (128)", "resnet34:128", 4079, 1838, 0.35),
    Row("ResNet-50 (64)", "resnet50:64", 5323, 1973, 0.31),
    Row("ResNet-101 (32)", "resnet101:32", 3934, 1024, 0.35),
    Row("ResNet-152 (16)", "resnet152:16", 2767, 526, 0.37),
    Row("DenseNet-121 (32)", "densenet121:32", 4027, 898, 0.34),
    Row("DenseNet-161 (16)", "densenet161:16", 3751, 666, 0.36),
    Row("DenseNet-169 (32)", "densenet169:32", 4862, 897, 0.32),
    Row("DenseNet-201 (16)", "densenet201:16", 3146, 474, 0.53),
    Row("Inception-v3 (32)", "inception_v3:32:300", 3074, 881, 0.29),
    Row("NASNet-CIFAR (64)", "nasnet-cifar:64", 5832, 1129, 0.31),
    Row("AmoebaNet-CIFAR (64)", "amoebanet-cifar:64", 4944, 1058, 0.36),
    Row("DARTS-CIFAR (64)", "darts-cifar:64", 5627, 1115, 0.55),
)


def name_of(row: Row) -> str:
    return row.model.partition(":")[0].replace("_", "-")


def at_theirs(row: Row) -> str:
    """Returns the budget that is their share of regular memory."""
    return f"eager:{row.theirs / row.regular:.4f}x"


def points() -> list[Point]:
    return [
        compare_point(name_of(row), row.model, ("plain", at_theirs(row), "eager:least"), gpu_gib=10) for row in ROWS
    ]


def cells_of(results: Results, row: Row) -> list[str | None]:
    variants = figures_of(results, [name_of(row)])
    plain, least, same = (variants.get(name, {}) for name in ("plain", "eager:least", at_theirs(row)))
    regular, smallest = plain.get("peak_bytes"), least.get("peak_bytes")
    cut = None if not regular or smallest is None else 1 - smallest / regular
    refused = same.get("error", "").startswith("BudgetError")
    return [
        cell(regular and regular / MIB, ".0f"),
        cell(plain.get("ms"), ".1f"),
        cell(smallest and smallest / MIB, ".0f"),
        percent(cut, ".0f"),
        percent(overhead(least, plain), "+.0f"),
        "less than headroom's smallest" if refused else percent(overhead(same, plain), "+.0f"),
    ]


def tables(results: Results) -> str:
    head = ["network (batch)", "theirs: MB of regular", "cut", "time"]
    head += ["plain, MiB", "ms", "headroom's smallest, MiB", "cut", "time", "time at their cut"]
    rows = []
    for row in ROWS:
        theirs = [f"{row.theirs} of {row.regular}", percent(1 - row.theirs / row.regular, ".0f")]
        rows.append([row.network, *theirs, percent(row.overhead, "+.0f"), *cells_of(results, row)])
    text = (
        "Theirs are published figures, of other GPUs and versions. Memory is without what is there before a step. "
        "Kernels are eager ones. The networks of cells are those of `measure/cells.py`.\n"
    )
    return f"{text}\n![Memory and time](feng-overhead.svg)\n\n{table(head, rows)}"


def plots(results: Results) -> dict[str, str]:
    """Returns the time of all networks against the memory that is left."""
    least, same = [], []
    for row in ROWS:
        variants = figures_of(results, [name_of(row)])
        plain = variants.get("plain", {})
        for name, points in (("eager:least", least), (at_theirs(row), same)):
            figures = variants.get(name, {})
            time = overhead(figures, plain)
            if time is not None:
                points.append((100 * figures["peak_bytes"] / plain["peak_bytes"], 100 * time))
    if not least:
        return {}
    theirs = [(100 * row.theirs / row.regular, 100 * row.overhead) for row in ROWS]
    series = [
        Series("Feng and Huang, published", theirs),
        Series("headroom at their memory", same),
        Series("headroom's smallest", least),
    ]
    return {"overhead": scatter("Eighteen networks", "memory, % of plain", "more time, %", series)}


SUITE = Suite("Feng and Huang's networks", points(), tables, plots=plots, side_by_side=True)
