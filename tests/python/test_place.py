"""`headroom place` and `headroom plan --placed`: addresses for the copies of a schedule."""

import json
from pathlib import Path

import pytest
from headroom_command import CHAIN_PLANNERS, EXAMPLES, UNET, assert_refused, headroom, result_of
from test_cli import TINY, TINY_STEPS, schedule, write


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write(tmp_path / "tiny.json", TINY)


PLACED_TINY = {
    "format": "headroom.placement/1",
    "graph": "tiny",
    "alignment": 1,
    "arena_bytes": 12,
    "offsets": [
        {"step": 0, "value": "a", "offset": 0},
        {"step": 1, "value": "loss", "offset": 4},
        {"step": 2, "value": "ga", "offset": 8},
        {"step": 4, "value": "gw", "offset": 0},
    ],
}


def test_place_the_example_of_the_format(tiny: Path, tmp_path: Path) -> None:
    steps = schedule(tmp_path / "steps.json", TINY_STEPS)
    out = tmp_path / "placement.json"
    result = result_of("place", tiny, steps, "--out", out)
    assert result.pop("solve_ms") >= 0
    # b2 needs a, loss and ga at once.
    assert result == {"arena_bytes": 12, "peak_bytes": 12, "resident_bytes": 8, "optimal": True}
    assert json.loads(out.read_text()) == PLACED_TINY


def test_place_with_an_alignment(tiny: Path, tmp_path: Path) -> None:
    steps = schedule(tmp_path / "steps.json", TINY_STEPS)
    out = tmp_path / "placement.json"
    result = result_of("place", tiny, steps, "--alignment", "512", "--effort", "low", "--out", out)
    # Three values at multiples of 512; the topmost ends at its own size.
    assert result["arena_bytes"] == 2 * 512 + 4
    assert result["optimal"] is True
    placed = json.loads(out.read_text())
    assert placed["alignment"] == 512
    assert all(entry["offset"] % 512 == 0 for entry in placed["offsets"])


def test_place_prints_text(tiny: Path, tmp_path: Path) -> None:
    done = headroom("place", tiny, schedule(tmp_path / "steps.json", TINY_STEPS))
    assert done.returncode == 0
    assert "arena" in done.stdout
    assert "12 B = 12 bytes; no smaller one is possible" in done.stdout


def test_place_an_invalid_schedule(tiny: Path, tmp_path: Path) -> None:
    steps = schedule(tmp_path / "steps.json", TINY_STEPS[1:])
    out = tmp_path / "placement.json"
    done = headroom("place", tiny, steps, "--json", "--out", out)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "the schedule is invalid at step 0" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("alignment", ["0", "-1", "1.5", "x", str(2**63)])
def test_place_refuses_an_alignment(tiny: Path, tmp_path: Path, alignment: str) -> None:
    steps = schedule(tmp_path / "steps.json", TINY_STEPS)
    assert_refused(headroom("place", tiny, steps, "--alignment", alignment), "alignment")
    assert_refused(headroom("plan", tiny, "--budget", "1x", "--placed", "--alignment", alignment), "alignment")


def test_sizes_that_do_not_add_up(tiny: Path, tmp_path: Path) -> None:
    steps = schedule(tmp_path / "steps.json", TINY_STEPS)
    assert_refused(headroom("place", tiny, steps, "--alignment", str(2**62)), "within 64 bits")


def test_options_of_placed_plans_need_placed(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "placement.json"
    assert_refused(headroom("plan", tiny, "--budget", "1x", "--out-placement", out), "--placed")
    assert_refused(headroom("plan", tiny, "--budget", "1x", "--alignment", "2"), "--placed")
    assert not out.exists()


@pytest.mark.parametrize("planner", ["auto", "store-all", "peak-linear", "chain", "lower-sets"])
@pytest.mark.parametrize("path", EXAMPLES[:4], ids=lambda path: path.stem)
def test_placed_plans_keep_the_budget(path: Path, planner: str, tmp_path: Path) -> None:
    if path == UNET and planner in CHAIN_PLANNERS:
        pytest.skip("takes chains")
    out = tmp_path / "schedule.json"
    placement = tmp_path / "placement.json"
    call = ["plan", path, "--planner", planner, "--budget", "1x", "--placed", "--alignment", "512"]
    plan = result_of(*call, "--out", out, "--out-placement", placement)
    if plan["peak_bytes"] is None:
        assert plan["arena_bytes"] is None
        assert not placement.exists()
        return
    placed = json.loads(placement.read_text())
    assert placed["arena_bytes"] == plan["arena_bytes"]
    simulated = result_of("simulate", path, out)
    again = result_of("place", path, out, "--alignment", "512")
    assert plan["arena_bytes"] + again["resident_bytes"] <= plan["budget_bytes"]
    assert again["arena_bytes"] == plan["arena_bytes"]
    assert again["peak_bytes"] + again["resident_bytes"] == simulated["peak_bytes"] == plan["peak_bytes"]
    assert plan["arena_bytes"] >= again["peak_bytes"]


def test_a_budget_below_every_arena(tiny: Path) -> None:
    # store-all needs 20 bytes, and nothing fits 19: no op may be left out, and b2 needs its three values at once.
    plan = result_of("plan", tiny, "--budget", "19", "--placed")
    assert plan["status"] == "infeasible"
    assert plan["arena_bytes"] is None
    done = headroom("plan", tiny, "--budget", "19", "--placed")
    assert done.returncode == 1
    # At an alignment of 512, the three values need 2 * 512 + 4 bytes beside the 8 of x.
    plan = result_of("plan", tiny, "--budget", "1035", "--placed", "--alignment", "512")
    assert (plan["status"], plan["smallest_budget_bytes"]) == ("not-found", 1036)
    assert result_of("plan", tiny, "--budget", "1036", "--placed", "--alignment", "512")["arena_bytes"] == 1028
