"""The pages and charts of the suites of benchmarks/gpu, of recorded figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "gpu" / "run.py"
SUITES = ["accuracy", "budgets", "feng", "gradients", "hong", "networks", "ops", "programs", "rotor", "torch", "train"]


def page_with(suite: str, point: str, *figures: dict[str, Any]) -> str:
    """Returns the page of a suite in which one point has these figures."""
    code = f"""
import json, sys
from pathlib import Path
sys.path.insert(0, {str(RUN.parent)!r})
from harness import Result, Results
from harness.suite import load_suites
from harness.tables import page
suite = load_suites(Path({str(RUN.parent / "suites")!r}))[{suite!r}]
assert {point!r} in [one.name for one in suite.points]
result = Result({suite!r}, {point!r}, "measured", figures=json.loads({json.dumps(figures)!r}))
results = Results(suite, {{{point!r}: result}})
print(page(results), *suite.plots(results).values())
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


GIB = 1 << 30
KEPT = {"model": "bert", "kernels": "eager", "limit_bytes": 4 * GIB, "over_bytes": [-9, -1], "peak_bytes": 2 * GIB}
KEPT |= {"predicted_bytes": 2 * GIB, "added_share": 0.5, "plans": 1, "time_ratio": 1.25, "plain_ms": 80.0}
BASE = {"variant": "plain", "base": "plain", "peak_bytes": 8 * GIB, "held_bytes": 9 * GIB, "first_s": 1}
BASE |= {"step_ms": 60.0, "time_ratio": 1.0}
OURS = BASE | {"peak_bytes": 4 * GIB, "held_bytes": 5 * GIB, "step_ms": 70.0, "time_ratio": 1.1, "off": 0.0}
OURS |= {"predicted_bytes": 4.004 * GIB, "limit_bytes": 4 * GIB, "over_bytes": -7}
LINES = {"network": "vgg19", "batch": 64, "checkpoints": [3, 11, 24], "largest_error": 0.002}
LINES |= {f"{kind}_{when}_mib": [100, 200] for kind in ("predicted", "measured") for when in ("during", "after")}
TRAINED = {"model": "gpt", "losses": [5.5, 4.4], "peaks_bytes": [3 * GIB, 3 * GIB], "added_bytes": 2 * GIB}
TRAINED |= {"step_ms": 30.0, "whole_s": 31.0, "run": "plain"}
LESS = TRAINED | {"run": "0.4x", "step_ms": 33.0, "added_bytes": 0.8 * GIB, "over_bytes": -1, "largest_difference": 0.0}
PLAIN = {"what": "plain", "measured_mib": 81.4, "time_ms": 28.8, "differs": 1e-9, "kept_mib": 65, "workspace_mib": 9}
SHARE = {"budget_mib": 50, "predicted_mib": 40, "measured_mib": 40.2, "right": True, "time_ratio": 1.5, "differs": 0.0}
PEAKS = {"plain_mib": 239.4, "sqrt": {"predicted_mib": 237.4, "measured_mib": 237.6}}


@pytest.mark.parametrize(
    ("suite", "point", "figures", "row"),
    [
        ("budgets", "bert-eager-1x", [KEPT], "| bert | 1x | yes | 4.000 | 2.000 | +0.00 % | 0.500 | 1.250 | 80.0 |"),
        (
            "budgets",
            "t5-cache-inductor-least",
            [KEPT | {"over_bytes": [8]}],
            "| least | **exceeded by 8 bytes** | 4.000",
        ),
        (
            "budgets",
            "bert-eager-0.5x",
            [{"refused": "too small", "limit_bytes": GIB}],
            "| bert | 0.5x | refused | 1.000 | — | — | — | — | — |",
        ),
        ("budgets", "bert-first-0.5x", [{"kind": "0.5x", "first_s": 2.5}], "| bert | — | — | 2.50 | — | — |"),
        (
            "torch",
            "resnet50-eager",
            [BASE, OURS | {"variant": "eager:0.5x"}],
            "| eager:0.5x | 4.00 | 5.00 | 66.0 | 1 | equal | +0.10 % | yes |",
        ),
        (
            "torch",
            "resnet50-eager",
            [BASE, OURS | {"variant": "eager:0.5x", "over_bytes": 3 << 20}],
            "| **exceeded** by 3 MiB |",
        ),
        (
            "torch",
            "resnet50-eager",
            [BASE, OURS | {"variant": "eager:0.5x", "over_bytes": 3 << 20, "later_over_bytes": -1}],
            "| **exceeded** by 3 MiB in the first call |",
        ),
        (
            "torch",
            "gpt2-exact",
            [OURS | {"variant": "torch:1.0", "off": 0.0021}],
            "| gpt2 | — | — | 0.0021 | — |",
        ),
        (
            "torch",
            "vit-batch-16GB",
            [{"batch": 99, "plain_batch": 40, "over_bytes": -1}],
            "| vit | 99 (40) | — | — | — |",
        ),
        (
            "feng",
            "vgg11",
            [BASE, OURS | {"variant": "eager:0.7775x"}, OURS | {"variant": "eager:least", "peak_bytes": 2 * GIB}],
            "| VGG-11 (64) | 2781 of 3577 | 22 % | +34 % | 8192 | 60.0 | 2048 | 75 % | +10 % | +10 % |",
        ),
        (
            "feng",
            "vgg11",
            [BASE, {"variant": "eager:0.7775x", "error": "BudgetError: too small"}],
            "| 8192 | 60.0 | — | — | — | less than headroom's smallest |",
        ),
        (
            "rotor",
            "vgg19-64-224",
            [
                BASE,
                BASE | {"variant": "sequential:2", "peak_bytes": 5 * GIB, "time_ratio": 1.32},
                OURS | {"variant": "eager:=sequential:2"},
            ],
            "|  | sequential:2 | 5.00 | 79.2 | 4.00 | 66.0 | +20.0 % |",
        ),
        ("hong", "timeline-vgg19", [LINES], "| vgg19 (64) | 3, 11, 24 | 4 | 200 | 0.00 % | 0.20 % |"),
        ("hong", "planning", [{"planner": "peak-linear", "stages": 1000, "ms": 0.25}], "| 1,000 | — | — | 0.25 |"),
        ("hong", "peaks-vgg11", [PEAKS], "| vgg11 (64) | 239 | 237 / 238 | — | — |"),
        ("train", "gpt", [TRAINED, LESS], "| gpt, 0.4x | 0.80 | 33.0 | 1.100 | 31 | 4.4000 | 0.0e+00 | yes |"),
        ("train", "gpt", [TRAINED], "| gpt, 0.4x | — | — | — | — | — | — | — |"),
        (
            "gradients",
            "gpt2",
            [
                {"asked": "1x", "budget": "1x", "different": 0},
                {"asked": "0.5x", "budget": "0.55x", "different": 2, "tensors": 9, "largest_difference": 0.1}
                | {"repeatable": True},
            ],
            "| gpt2 | equal | 2 of 9 tensors differ at 0.55x, by up to 1.0e-01 | — |",
        ),
        (
            "networks",
            "budgets-unet-4",
            [PLAIN, {"what": "100 %", **SHARE}, {"what": "smallest", "error": "too small"}],
            "| unet (4) | 81 MiB, 28.8 ms | 65 / 9 | 100 % | 50.0 | 40.0 | 40.2 | +0.50% | x1.500 | 0 (1e-09) |\n"
            "|  |  |  | smallest | — | — | — | — | — | — |",
        ),
        (
            "networks",
            "limited-vgg19-128",
            [SHARE | {"right": False, "held_to_mib": 52.5, "taken_mib": 51}],
            "| vgg19 (128) | 50.0 | 40.0 | 40.2 | **+0.50%** | 52.5 | 51.0 |",
        ),
        ("ops", "part-2-of-8", [{"passed": 90, "failed": 0, "skipped": 3}], "| part-2-of-8 | 90 | 0 | 3 |"),
        ("programs", "seeds-100-200", [{"passed": 97, "failed": 1}], "| seeds-100-200 | 97 | 1 |"),
    ],
)
def test_figures_are_in_their_rows(suite: str, point: str, figures: list[dict[str, Any]], row: str) -> None:
    assert row in page_with(suite, point, *figures)


def test_the_suites_make_tables_without_results(tmp_path: Path) -> None:
    """Every suite has a page without results, and points that name existing scripts."""
    code = f"""
import sys
sys.path.insert(0, {str(RUN.parent)!r})
from pathlib import Path
from harness import ROOT, Results
from harness.suite import load_suites
from harness.tables import page
suites = load_suites(Path({str(RUN.parent / "suites")!r}))
for name, suite in suites.items():
    text = page(Results(suite, {{}}))
    assert "—" in text, name
    assert ".svg" not in text, name
    for point in suite.points:
        for part in point.command:
            assert not part.endswith(".py") or (ROOT / part).exists(), part
assert "torch" not in sys.modules
print(*suites)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == SUITES
