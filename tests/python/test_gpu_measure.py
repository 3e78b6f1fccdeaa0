"""The measuring scripts of benchmarks/gpu, with small models on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("headroom")

MEASURE = Path(__file__).parents[2] / "benchmarks" / "gpu" / "measure"


def run(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Returns the exit status, the figures and what a script wrote on standard error."""
    script, *rest = arguments
    command = [sys.executable, "-W", "ignore", str(MEASURE / script), *rest, "--small", "--device", "cpu", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_variants_of_a_step() -> None:
    variants = ("plain", "plain:1e-7", "eager:0.5x", "eager:=eager:0.5x", "eager:=nothing", "eager:least")
    status, figures, printed = run("compare.py", "darts-cifar", *variants, "--rounds", "1", "--round-s", "0.01")
    assert status == 1, printed  # One variant has no budget.
    by_name = {one["variant"]: one for one in figures}
    assert list(by_name) == list(variants), printed
    assert by_name["eager:=nothing"]["error"].startswith("ValueError: nothing has no peak")
    plain, half, same, least = (by_name[name] for name in ("plain", "eager:0.5x", "eager:=eager:0.5x", "eager:least"))
    assert "off" not in plain
    assert 0 < by_name["plain:1e-7"]["off"] < 1e-3
    for ours in (half, same, least):
        assert ours["off"] == 0  # The gradients are those of plain PyTorch.
        assert ours["over_bytes"] <= 0
        assert ours["predicted_bytes"] == pytest.approx(ours["peak_bytes"], rel=0.01)
        assert ours["base"] == "plain"
        assert ours["time_ratio"] > 0
    assert half["limit_bytes"] == plain["peak_bytes"] // 2
    assert half["peak_bytes"] <= half["limit_bytes"]
    assert same["limit_bytes"] == half["peak_bytes"]
    assert least["peak_bytes"] < half["peak_bytes"]


def test_a_variant_that_is_not_known() -> None:
    status, _, printed = run("compare.py", "darts-cifar", "plain", "rockmate:4GiB")
    assert status == 2
    assert "no variant 'rockmate:4GiB'" in printed


def test_no_variant_begins_after_the_limit() -> None:
    status, figures, printed = run("compare.py", "darts-cifar", "plain", "--limit-s", "-1")
    assert status == 1
    assert figures == []
    assert "plain: not begun, after -1 s" in printed


def test_a_whole_run() -> None:
    """Both runs have the same losses, and no step of the second is above its budget."""
    pytest.importorskip("transformers")
    status, (plain, planned), printed = run("train.py", "gpt", "--steps", "4", "--budget", "0.6x")
    assert status == 0, printed
    assert plain["run"] == "plain"
    assert len(plain["losses"]) == len(planned["losses"]) == 4
    assert planned["losses"] == plain["losses"]
    assert max(planned["peaks_bytes"]) <= planned["limit_bytes"]
    assert planned["added_bytes"] <= 0.6 * plain["added_bytes"]


def test_the_networks_of_cells_have_their_published_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """DARTS (Liu et al. 2019) gives 3.3 million parameters for its best cells; these are the first-order ones."""
    monkeypatch.syspath_prepend(str(MEASURE))
    import cells

    def parameters(name: str) -> int:
        return sum(parameter.numel() for parameter in cells.make_network(name).parameters())

    assert parameters("darts-cifar") == pytest.approx(3.3e6, rel=0.05)
    assert parameters("nasnet-cifar") == pytest.approx(3.3e6, rel=0.2)
    assert parameters("amoebanet-cifar") == pytest.approx(3.2e6, rel=0.05)
