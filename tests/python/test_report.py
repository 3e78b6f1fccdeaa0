"""`headroom report`: the data in the page, derived by hand, and refused input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headroom_command import BUDGETS, EXAMPLES, assert_refused, headroom, result_of
from reports import Report, copies_of, data_of, measured_trace, planned
from test_cli import TINY, TINY_STEPS, TWO, schedule, write


@pytest.fixture
def tiny_report(report: Report, tmp_path: Path) -> Path:
    return report(write(tmp_path / "tiny.json", TINY), schedule(tmp_path / "s.json", TINY_STEPS), "--budget", "22")


def test_data_by_hand(tiny_report: Path) -> None:
    data = data_of(tiny_report)
    assert data["format"] == "headroom.report/1"
    assert data["name"] == "tiny"
    # x is 8, a, loss and ga are 4, gw is 2; ops take 5, 3, 6 and 6.
    assert data["budget_bytes"] == 22
    assert data["peak_bytes"] == data["store_all_peak_bytes"] == 20
    assert data["time_ns"] == data["store_all_time_ns"] == data["lower_bound_ns"] == 20
    assert data["status"] == "optimal"
    assert data["steps"] == 6
    assert data["runs"] == {
        "op": [0, 1, 2, 3],
        "step": [0, 1, 2, 4],
        "over": [-1, -1, -1, -1],
        "again": [0, 0, 0, 0],
        "moment_bytes": [12, 16, 20, 18],
        "after_bytes": [12, 16, 16, 14],
        "store_all_bytes": [12, 16, 20, 18],
    }
    # x, a, loss, ga, gw: a is dropped after b2, ga at the end.
    assert data["lives"] == {"value": [0, 1, 2, 3, 4], "from": [0, 0, 1, 2, 3], "to": [3, 2, 3, 3, 3]}
    assert data["measured"] is None


def test_recomputation_by_hand(report: Report, tmp_path: Path) -> None:
    steps = [{"run": "f1"}, {"run": "f2"}, {"drop": "a"}, {"run": "f1"}, *TINY_STEPS[2:]]
    data = data_of(report(write(tmp_path / "tiny.json", TINY), schedule(tmp_path / "s.json", steps)))
    assert data["runs"]["op"] == [0, 1, 0, 2, 3]
    assert data["runs"]["again"] == [0, 0, 1, 0, 0]
    # While f1 reruns, store-all stays at f2.
    assert data["runs"]["store_all_bytes"] == [12, 16, 16, 20, 18]
    assert [copy for copy in copies_of(data) if copy[0] == 1] == [(1, 0, 1), (1, 2, 3)]
    assert data["time_ns"] == 25
    assert data["budget_bytes"] is None


def test_stages_are_the_modules_of_a_chain(report: Report, tmp_path: Path) -> None:
    chain = write(tmp_path / "two.json", TWO)
    steps = tmp_path / "s.json"
    result_of("plan", chain, "--planner", "store-all", "--out", steps)
    data = data_of(report(chain, steps, "--planner", "store-all"))
    assert data["planner"] == "store-all"
    assert data["ops"]["name"] == ["F1", "R1", "F2", "R2", "B2", "B1"]
    assert data["ops"]["module"] == ["conv", "conv", "loss", "loss", "loss", "conv"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example(path: Path, report: Report, tmp_path: Path) -> None:
    steps, plan = planned(path, BUDGETS[path.stem], tmp_path)
    data = data_of(report(path, steps, "--budget", BUDGETS[path.stem], "--planner", "auto"))
    simulated = result_of("simulate", path, steps)
    assert data["budget_bytes"] == plan["budget_bytes"]
    assert data["peak_bytes"] == plan["peak_bytes"] == max(data["runs"]["moment_bytes"])
    assert data["time_ns"] == plan["time_ns"]
    assert plan["lower_bound_ns"] <= data["lower_bound_ns"] <= data["time_ns"]
    assert data["runs"]["moment_bytes"] == [simulated["moment_bytes"][step] for step in data["runs"]["step"]]
    fronts = {front["planner"]: front["points"] for front in data["fronts"]["planners"]}
    assert {"store-all", "lower-sets", "auto"} <= fronts.keys()
    assert fronts["store-all"] == [[data["store_all_peak_bytes"], data["store_all_time_ns"]]]
    # No plan is faster than the bound for its peak.
    for peak, time in (point for points in fronts.values() for point in points):
        assert time >= max((bound for bytes_, bound in data["fronts"]["bounds"] if bytes_ >= peak), default=0)
    assert_alive_adds_up(data)
    plain = data["runs"]["store_all_bytes"]
    assert max(plain) == data["store_all_peak_bytes"]
    assert all(plain[run] == plain[run - 1] for run, again in enumerate(data["runs"]["again"]) if again)


def assert_alive_adds_up(data: Any) -> None:
    lives = copies_of(data)
    for run, op in enumerate(data["runs"]["op"]):
        alive = sum(data["values"]["bytes"][value] for value, first, last in lives if first <= run <= last)
        assert alive + data["ops"]["workspace_bytes"][op] == data["runs"]["moment_bytes"][run]


# Measurements, and refused input


def test_measured_memory(report: Report, tmp_path: Path) -> None:
    graph = write(tmp_path / "tiny.json", TINY)
    steps = schedule(tmp_path / "s.json", TINY_STEPS)
    trace = measured_trace(graph, steps, tmp_path / "trace.json")
    data = data_of(report(graph, steps, "--measured", trace))
    assert data["measured"]["moment_bytes"] == [13, 17, 21, 19]
    assert data["measured"]["peak_bytes"] == 21
    assert data["ops"]["module"] == ["layer.f1", "layer.f2", "layer.b2", "layer.b1"]


@pytest.mark.parametrize(
    ("change", "mentions"),
    [
        (lambda trace: trace.pop("steps"), "list of steps"),
        (lambda trace: trace["steps"].pop(), "steps[3] is missing"),
        (lambda trace: trace["steps"].append(trace["steps"][0]), "expected 4 steps, found 5"),
        (lambda trace: trace["steps"][1].update(op="f1"), "expected op 'f2', found 'f1'"),
        (lambda trace: trace["steps"][2].pop("measured_moment_bytes"), "steps[2]: measured_moment_bytes"),
        (lambda trace: trace["steps"][2].update(measured_after_bytes="9"), "steps[2]: measured_after_bytes"),
    ],
)
def test_a_measurement_of_something_else(change: Callable[[Any], Any], mentions: str, tmp_path: Path) -> None:
    graph = write(tmp_path / "tiny.json", TINY)
    steps = schedule(tmp_path / "s.json", TINY_STEPS)
    trace = measured_trace(graph, steps, tmp_path / "trace.json")
    document = json.loads(trace.read_text())
    change(document)
    write(trace, document)
    page = tmp_path / "page.html"
    assert_refused(headroom("report", graph, steps, "--out", page, "--measured", trace), mentions)
    trace.write_text("{")
    assert_refused(headroom("report", graph, steps, "--out", page, "--measured", trace), "trace.json")
    assert not page.exists()


def test_bad_usage(tmp_path: Path) -> None:
    graph = write(tmp_path / "tiny.json", TINY)
    steps = schedule(tmp_path / "s.json", TINY_STEPS)
    page = tmp_path / "page.html"
    assert headroom("report", graph, steps).returncode == 2
    assert_refused(headroom("report", graph, steps, "--out", page, "--planner", "none"), "'none'")
    assert_refused(headroom("report", graph, steps, "--out", page, "--budget", "many"), "many")
    assert_refused(headroom("report", graph, tmp_path / "missing.json", "--out", page), "missing.json")
    wrong = schedule(tmp_path / "wrong.json", TINY_STEPS[:3])
    done = headroom("report", graph, wrong, "--out", page)
    assert done.returncode == 1
    assert "step 3" in done.stderr
    assert not page.exists()
