"""The command `headroom` as its users call it: results, exit status, files."""

import itertools
import json
import os
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from headroom_command import (
    BUDGETS,
    CHAIN_PLANNERS,
    EXAMPLES,
    PLANNERS,
    ROOT,
    UNET,
    assert_refused,
    headroom,
    result_of,
)

VGG16 = ROOT / "examples" / "vgg16.json"
STATUSES = {"optimal", "feasible", "infeasible", "not-found", "timeout"}
PLAN_KEYS = {
    "status",
    "planner",
    "budget_bytes",
    "peak_bytes",
    "time_ns",
    "base_time_ns",
    "lower_bound_ns",
    "smallest_budget_bytes",
    "solve_ms",
}

TINY = {
    "format": "headroom.graph/1",
    "name": "tiny",
    "values": [
        {"name": "x", "bytes": 8, "resident": True},
        {"name": "a", "bytes": 4},
        {"name": "loss", "bytes": 4},
        {"name": "ga", "bytes": 4},
        {"name": "gw", "bytes": 2},
    ],
    "ops": [
        {"name": "f1", "phase": "forward", "inputs": ["x"], "outputs": ["a"], "time_ns": 5},
        {"name": "f2", "inputs": ["a"], "outputs": ["loss"], "time_ns": 3, "workspace_bytes": 0},
        {
            "name": "b2",
            "phase": "backward",
            "inputs": ["a", "loss"],
            "outputs": ["ga"],
            "time_ns": 6,
            "recompute": False,
        },
        {"name": "b1", "phase": "backward", "inputs": ["ga", "x"], "outputs": ["gw"], "time_ns": 6},
    ],
    "outputs": ["loss", "gw"],
}
TINY_STEPS = [{"run": "f1"}, {"run": "f2"}, {"run": "b2"}, {"drop": "a"}, {"run": "b1"}, {"drop": "ga"}]

TWO = {
    "format": "headroom.chain/1",
    "name": "two",
    "resident_bytes": 100,
    "input_bytes": 4,
    "input_gradient_bytes": 0,
    "stages": [
        {
            "name": "conv",
            "forward_ns": 2,
            "backward_ns": 4,
            "output_bytes": 3,
            "tape_bytes": 8,
            "forward_workspace_bytes": 1,
            "backward_workspace_bytes": 2,
            "gradient_bytes": 9,
        },
        {"name": "loss", "forward_ns": 0, "backward_ns": 0, "output_bytes": 0, "tape_bytes": 0},
    ],
}


def write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write(tmp_path / "tiny.json", TINY)


def schedule(path: Path, steps: list[dict[str, str]], graph: str = "tiny") -> Path:
    return write(path, {"format": "headroom.schedule/1", "graph": graph, "steps": steps})


# plan


def test_store_all_of_a_chain_by_hand(tmp_path: Path) -> None:
    plan = result_of("plan", write(tmp_path / "two.json", TWO), "--planner", "store-all")
    assert plan.keys() >= PLAN_KEYS
    assert plan["planner"] == "store-all"
    # B1: weights 100, input 4, tape 8, gradient of conv's output 3, its parameters' gradients 9, workspace 2.
    assert plan["peak_bytes"] == 126
    assert plan["time_ns"] == plan["base_time_ns"] == 6


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_planner_on_every_example(path: Path, planner: str, tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    store_all = result_of("plan", path, "--planner", "store-all")
    call = ["plan", path, "--planner", planner, "--budget", BUDGETS[path.stem], "--out", out]
    done = headroom(*call, "--json")
    if done.returncode == 2:
        assert planner == "exhaustive" or (path == UNET and planner in CHAIN_PLANNERS)
        assert_refused(done, planner)
        assert list(tmp_path.iterdir()) == []
        return

    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert PLAN_KEYS <= plan.keys() <= PLAN_KEYS | {"checkpoints"}
    assert plan["status"] in STATUSES
    assert plan["planner"] == planner
    assert plan["base_time_ns"] == store_all["time_ns"]
    assert plan["budget_bytes"] == int(Fraction(BUDGETS[path.stem][:-1]) * store_all["peak_bytes"])
    if plan["peak_bytes"] is None:
        assert planner not in ("chain", "lower-sets", "auto")
        assert plan["status"] in {"infeasible", "not-found", "timeout"}
        assert plan["time_ns"] is None
        assert not out.exists()
        return

    assert plan["status"] in {"optimal", "feasible", "timeout"}
    assert plan["time_ns"] >= max(plan["lower_bound_ns"], plan["base_time_ns"])
    assert plan["peak_bytes"] <= plan["budget_bytes"]
    written = json.loads(out.read_text())
    assert written["format"] == "headroom.schedule/1"
    assert written["graph"] == path.stem
    simulated = result_of("simulate", path, out)
    assert simulated["valid"] is True
    assert simulated["error"] is None
    assert (simulated["peak_bytes"], simulated["time_ns"]) == (plan["peak_bytes"], plan["time_ns"])
    assert [p.name for p in tmp_path.iterdir()] == ["schedule.json"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_no_plan_is_better_than_that_of_auto(path: Path) -> None:
    rows = result_of("compare", path, "--budgets", BUDGETS[path.stem])["rows"]
    best = next(row["time_ns"] for row in rows if row["planner"] == "auto")
    assert all(row["time_ns"] is None or best <= row["time_ns"] for row in rows)


@pytest.mark.parametrize("planner", ["even", "sqrt", "peak-cubic", "peak-linear"])
def test_checkpoints_of_subset_planners(planner: str) -> None:
    checkpoints = result_of("plan", VGG16, "--planner", planner)["checkpoints"]
    assert checkpoints == sorted(set(checkpoints))
    assert all(1 <= c <= 21 for c in checkpoints)


def test_no_checkpoints_of_others() -> None:
    for planner in ("store-all", "chain"):
        assert "checkpoints" not in result_of("plan", VGG16, "--planner", planner, "--budget", "1x")


def test_segments_of_even() -> None:
    # 22 stages in 4 segments: 5, 5, 5 and the rest.
    assert result_of("plan", VGG16, "--planner", "even", "--segments", "4")["checkpoints"] == [5, 10, 15]


@pytest.mark.parametrize("options", [["--reentrant"], ["--exact"], ["--slots", "50"], ["--effort", "low"]])
def test_options_of_planners(options: list[str]) -> None:
    planner = {"--reentrant": "peak-linear", "--exact": "lower-sets", "--slots": "chain", "--effort": "auto"}[
        options[0]
    ]
    plan = result_of("plan", ROOT / "examples" / "alexnet.json", "--planner", planner, "--budget", "1x", *options)
    assert plan["planner"] == planner


@pytest.mark.parametrize(
    ("text", "budget_bytes"),
    [
        ("1073741824", 1 << 30),
        ("512MB", 512_000_000),
        ("512mb", 512_000_000),
        ("8GiB", 8 << 30),
        ("8gib", 8 << 30),
        ("3KB", 3000),
        ("3KiB", 3072),
        ("1TB", 10**12),
        ("1TiB", 1 << 40),
        ("7B", 7),
    ],
)
def test_sizes(text: str, budget_bytes: int) -> None:
    assert result_of("plan", VGG16, "--planner", "store-all", "--budget", text)["budget_bytes"] == budget_bytes


@pytest.mark.parametrize(
    "text", ["", "x", "12QB", "-5", "nan", "1e9", "0.5", "-1x", "99999999999999999999", "9000000TiB", "5 5"]
)
def test_bad_sizes(text: str) -> None:
    assert headroom("plan", VGG16, "--planner", "store-all", f"--budget={text}", "--json").returncode == 2


def test_shares_are_of_store_all_rounded_down(tiny: Path) -> None:
    # Peak 20 at b2.
    assert result_of("plan", tiny, "--planner", "store-all")["peak_bytes"] == 20
    for text, budget_bytes in [("0.99x", 19), ("0.5x", 10), ("1x", 20), ("1.26x", 25), ("2X", 40)]:
        plan = result_of("plan", tiny, "--planner", "store-all", "--budget", text)
        assert plan["budget_bytes"] == budget_bytes
        assert (plan["peak_bytes"] is None) == (budget_bytes < 20)


def test_no_plan_is_status_1_or_null_in_json(tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    out.write_text("before")
    call = ["plan", VGG16, "--planner", "chain", "--budget", "1KiB", "--out", out]
    assert headroom(*call).returncode == 1
    plan = result_of(*call)
    assert plan["status"] == "infeasible"
    assert plan["peak_bytes"] is None
    assert plan["time_ns"] is None
    assert plan["smallest_budget_bytes"] > 1024
    assert out.read_text() == "before"


@pytest.mark.parametrize("planner", ["chain", "peak-linear"])
def test_smallest_budget_is_one_that_does(planner: str) -> None:
    smallest = result_of("plan", VGG16, "--planner", planner, "--budget", "1KiB")["smallest_budget_bytes"]
    assert result_of("plan", VGG16, "--planner", planner, "--budget", str(smallest))["peak_bytes"] <= smallest


@pytest.mark.parametrize("planner", ["chain", "lower-sets", "auto", "peak-linear"])
@pytest.mark.parametrize("name", ["vgg19", "gpt24"])
def test_result_is_the_same_with_any_number_of_threads(planner: str, name: str, tmp_path: Path) -> None:
    results = []
    for run, threads in enumerate([1, 2, 2]):
        out = tmp_path / f"{run}.json"
        call = [
            "plan",
            ROOT / "examples" / f"{name}.json",
            "--planner",
            planner,
            "--budget",
            BUDGETS[name],
            "--out",
            out,
        ]
        plan = result_of(*call, "--threads", str(threads))
        del plan["solve_ms"]
        results.append((plan, out.read_bytes()))
    assert results[0] == results[1] == results[2]


def test_the_default_planner_is_auto() -> None:
    assert result_of("plan", VGG16, "--budget", "0.6x")["planner"] == "auto"


def test_table_for_people() -> None:
    done = headroom("plan", VGG16, "--planner", "chain", "--budget", BUDGETS["vgg16"])
    assert done.returncode == 0
    assert done.stderr == ""
    assert "chain" in done.stdout
    assert "GiB" in done.stdout


# simulate, explain


def test_simulate_by_hand(tiny: Path, tmp_path: Path) -> None:
    steps = schedule(tmp_path / "s.json", TINY_STEPS)
    # x is 8, a, loss and ga are 4, gw is 2.
    assert result_of("simulate", tiny, steps) == {
        "valid": True,
        "peak_bytes": 20,
        "time_ns": 20,
        "peak_step": 2,
        "alive_at_peak": ["x", "a", "loss", "ga"],
        "moment_bytes": [12, 16, 20, 20, 18, 18],
        "after_bytes": [12, 16, 20, 16, 18, 14],
        "error": None,
    }
    done = headroom("simulate", tiny, steps)
    assert done.returncode == 0
    assert done.stdout
    done = headroom("explain", tiny, steps)
    assert done.returncode == 0
    assert "'b2'" in done.stdout


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        ([{"run": "f2"}], 0),  # a is not live
        ([{"run": "f1"}, {"drop": "a"}, {"drop": "a"}], 2),
        ([{"drop": "x"}], 0),  # resident
        ([*TINY_STEPS[:3], {"run": "b2"}], 3),  # may run once
        (TINY_STEPS[:3], 3),  # gw is missing at the end
        ([{"run": "f1"}, {"run": "f2", "over": "a"}], 1),
    ],
)
def test_invalid_schedule(tiny: Path, tmp_path: Path, steps: list[dict[str, str]], wrong: int) -> None:
    path = schedule(tmp_path / "s.json", steps)
    done = headroom("simulate", tiny, path, "--json")
    assert done.returncode == 1
    simulated = json.loads(done.stdout)
    assert simulated["valid"] is False
    assert simulated["error"]["step"] == wrong
    assert simulated["error"]["message"]
    assert headroom("simulate", tiny, path).returncode == 1


@pytest.mark.parametrize(
    "document",
    [
        {"format": "headroom.schedule/1", "graph": "other", "steps": TINY_STEPS},
        {"format": "headroom.schedule/1", "graph": "tiny", "steps": [{"run": "f9"}]},
        {"format": "headroom.schedule/1", "graph": "tiny", "steps": [{"drop": "f1"}]},
        {"format": "headroom.schedule/1", "graph": "tiny", "steps": [{"run": "f1", "drop": "a"}]},
        {"format": "headroom.schedule/1", "graph": "tiny", "steps": [{}]},
        {"format": "headroom.schedule/1", "graph": "tiny", "steps": [{"drop": "a", "over": "a"}]},
        {"format": "headroom.schedule/1", "graph": "tiny", "steps": {}},
        {"format": "headroom.schedule/1", "graph": "tiny"},
        {"format": "headroom.schedule/2", "graph": "tiny", "steps": TINY_STEPS},
        TINY,
    ],
)
def test_bad_schedule_file(tiny: Path, tmp_path: Path, document: Any) -> None:
    path = write(tmp_path / "s.json", document)
    assert_refused(headroom("simulate", tiny, path, "--json"), "s.json")
    assert_refused(headroom("explain", tiny, path), "s.json")


# compare, curve, planners


def test_planners() -> None:
    planners = result_of("planners")
    assert sorted(p["name"] for p in planners) == sorted(PLANNERS)
    for planner in planners:
        assert set(planner["takes"]) <= {"chain", "graph"}
        assert planner["takes"]
        assert planner["minimises"] in {"time", "peak"}
        assert planner["source"]
    done = headroom("planners")
    assert done.returncode == 0
    assert all(name in done.stdout for name in PLANNERS)


@pytest.mark.parametrize("path", [VGG16, UNET], ids=lambda path: path.stem)
def test_compare(path: Path) -> None:
    compared = result_of("compare", path, "--budgets", f"1x,{BUDGETS[path.stem]}")
    assert compared["graph"] == path.stem
    assert {"store-all", "division-tree", "lower-sets", "auto"} <= {row["planner"] for row in compared["rows"]}
    assert all(row.keys() >= PLAN_KEYS for row in compared["rows"])
    done = headroom("compare", path, "--budgets", f"1x,{BUDGETS[path.stem]}")
    assert done.returncode == 0
    assert "auto" in done.stdout


@pytest.mark.parametrize("planner", [None, "chain"])
def test_curve(planner: str | None) -> None:
    curve = result_of("curve", VGG16, "--points", "5", *(["--planner", planner] if planner else []))
    assert curve["graph"] == "vgg16"
    assert curve["planner"] == planner or planner is None
    points = [(p["peak_bytes"], p["time_ns"]) for p in curve["points"]]
    assert points
    assert points == sorted(points)
    assert all(a[1] > b[1] for a, b in itertools.pairwise(points))
    done = headroom("curve", VGG16, "--points", "5")
    assert done.returncode == 0
    assert done.stdout


def test_instances_beside_the_repository(tmp_path: Path) -> None:
    for path in sorted((ROOT.parent / "shared" / "instances").glob("*.json")):
        plan = result_of("plan", path, "--planner", "store-all")
        assert plan["peak_bytes"] > 0
        rows = result_of("compare", path, "--budgets", "0.8x")["rows"]
        best = next(row for row in rows if row["planner"] == "auto")
        if best["time_ns"] is not None:
            assert best["peak_bytes"] <= plan["peak_bytes"] * 8 // 10


# usage, files


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["plan"],
        ["plan", VGG16, "--planner", "unknown", "--budget", "1x"],
        ["plan", VGG16, "--planner", "chain", "--budget"],
        ["plan", VGG16, "--unknown"],
        ["plan", VGG16, "--planner", "even", "--segments", "0"],
        ["plan", VGG16, "--planner", "even", "--segments", "many"],
        ["plan", VGG16, "--planner", "chain", "--budget", "1x", "--slots", "0"],
        ["plan", VGG16, "--planner", "chain", "--budget", "1x", "--slots", "-1"],
        ["plan", VGG16, "--budget", "1x", "--effort", "huge"],
        ["plan", VGG16, "--budget", "1x", "--threads", "-1"],
        ["compare", VGG16, "--budgets", "0.5x,many"],
        ["curve", VGG16, "--points", "0"],
        ["simulate", VGG16],
    ],
)
def test_bad_usage(arguments: list[str | Path]) -> None:
    done = headroom(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr


@pytest.mark.parametrize(
    "command", [[], ["plan"], ["simulate"], ["compare"], ["curve"], ["planners"], ["explain"], ["report"]]
)
def test_help(command: list[str]) -> None:
    done = headroom(*command, "--help")
    assert done.returncode == 0
    assert done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("target", ["missing/schedule.json", "folder"])
def test_nothing_is_left_where_out_cannot_be_written(target: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    done = headroom("plan", VGG16, "--planner", "store-all", "--out", tmp_path / target)
    assert done.returncode == 2
    assert target in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
    assert list((tmp_path / "folder").iterdir()) == []


def test_out_replaces_a_file_whole(tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    out.write_text("x" * 1_000_000)
    result_of("plan", VGG16, "--planner", "store-all", "--out", out)
    assert json.loads(out.read_text())["graph"] == "vgg16"
    assert list(tmp_path.iterdir()) == [out]


def test_a_full_disk_is_not_success() -> None:
    command = [os.environ.get("HEADROOM_BIN", str(ROOT / "build" / "headroom")), "planners"]
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, check=False, stdout=full, stderr=subprocess.DEVNULL).returncode != 0
