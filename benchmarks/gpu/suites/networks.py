"""Networks of the papers in C++ within budgets, at the papers' batch sizes."""

from __future__ import annotations

from harness import Figures, Point, Results, Suite, cell, table

# Networks and batches that are trained within budgets, with the GPU's memory that plain training needs and some more.
TRAINED = {
    ("vgg19", 128): 14,
    ("resnet50", 128): 14,
    ("densenet121", 32): 7,
    ("vgg19", 64): 9,
    ("resnet50", 64): 9,
    ("resnet101", 32): 7,
    ("inception-v3", 32): 7,
    ("unet", 4): 11,
    ("gpt2", 4): 9,
}
# Budgets near the smallest; the process is limited to 1.05 of them.
LIMITED = {("vgg19", 128): 9_700_000_000, ("resnet50", 128): 3_400_000_000, ("densenet121", 32): 1_300_000_000}


def name_of(kind: str, network: str, batch: int) -> str:
    return f"{kind}-{network}-{batch}"


def point_of(name: str, gpu_gib: float, *command: str, expandable: bool = False) -> Point:
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if expandable else {}
    return Point(
        name, command, limit_s=1200, gpu_gib=gpu_gib, packages=("torch",), build="programs", environment=environment
    )


def points() -> list[Point]:
    check = "build/gpu/train_check"
    budgets = [
        point_of(name_of("budgets", network, batch), gib, check, network, str(batch))
        for (network, batch), gib in TRAINED.items()
    ]
    limited = [
        point_of(
            name_of("limited", network, batch),
            budget >> 30,
            check,
            network,
            str(batch),
            str(budget),
            expandable=True,
        )
        for (network, batch), budget in LIMITED.items()
    ]
    return [*budgets, *limited]


def tables(results: Results) -> str:
    return "\n".join(
        [
            "## Within budgets\n",
            "Budgets are shares of the simulated store-all; *smallest* is 1 % above the smallest. Libraries: what "
            "cuBLAS and cuDNN keep for good, and take at most while a node records. In brackets: how far plain "
            "training is from itself.\n",
            budgets_table(results),
            "## With the process held to the budget + 5 %, ten optimizer steps\n",
            limited_table(results),
        ]
    )


def budgets_table(results: Results) -> str:
    rows = []
    for network, batch in TRAINED:
        plain, *budgets = results.all(name_of("budgets", network, batch)) or [{}]
        title = [f"{network} ({batch})", cell(None), cell(None)]
        if plain:
            title[1:] = [
                f"{plain['measured_mib']:.0f} MiB, {plain['time_ms']:.1f} ms",
                f"{plain['kept_mib']:.0f} / {plain['workspace_mib']:.0f}",
            ]
        itself = f" ({plain['differs']:.3g})" if plain.get("differs") else ""
        for number, figures in enumerate(budgets or [{}]):
            rows.append([*(title if number == 0 else [""] * 3), *budget_row(figures, itself if number == 0 else "")])
    head = ["network (batch)", "plain", "libraries, MiB", "budget", "MiB", "predicted", "measured", "", "time"]
    return table([*head, "gradients differ by"], rows)


def budget_row(figures: Figures, itself: str) -> list[str]:
    if "error" in figures or not figures:
        return [cell(figures.get("what")), *[cell(None)] * 6]
    differs = f"{figures['differs']:.3g}{itself}"
    return [figures["what"], *peak_cells(figures), f"x{figures['time_ratio']:.3f}", differs]


def peak_cells(figures: Figures) -> list[str]:
    cells = [cell(figures.get(f"{name}_mib"), ".1f") for name in ("budget", "predicted", "measured")]
    if not figures:
        return [*cells, cell(None)]
    error = f"{figures['measured_mib'] / figures['predicted_mib'] - 1:+.2%}"
    return [*cells, error if figures["right"] else f"**{error}**"]


def limited_table(results: Results) -> str:
    rows = []
    for network, batch in LIMITED:
        figures = results.first(name_of("limited", network, batch))
        memory = [cell(figures.get(f"{name}_mib"), ".1f") for name in ("held_to", "taken")]
        rows.append([f"{network} ({batch})", *peak_cells(figures), *memory])
    return table(["network (batch)", "budget", "predicted", "measured", "", "process held to", "taken"], rows)


SUITE = Suite("Networks of the papers", points(), tables)
