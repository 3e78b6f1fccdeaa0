"""`--trace` writes files for Perfetto and chrome://tracing: ops as slices, memory as counters."""

import json
from pathlib import Path
from typing import Any

import pytest
from headroom_command import BUDGETS, EXAMPLES, headroom, result_of
from test_cli import TINY, TINY_STEPS, schedule, write
from test_train import EPSILON, GPT, TRAIN, trained
from traces import Slice, nanoseconds, read_trace


def test_simulated_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    graph, steps = write(tmp_path / "tiny.json", TINY), schedule(tmp_path / "s.json", TINY_STEPS)
    assert headroom("simulate", graph, steps, "--trace", path).returncode == 0
    trace = read_trace(path)
    assert trace.process == "tiny"
    assert trace.threads == {1: "ops"}
    assert trace.slices[1] == [
        Slice("f1", "forward", 0, 5),
        Slice("f2", "forward", 5, 8),
        Slice("b2", "backward", 8, 14),
        Slice("b1", "backward", 14, 20),
    ]
    # While f1 runs, f2, b2 and b1, and after the last drop. x is 8, a, loss and ga are 4, gw is 2.
    assert trace.counters == {"predicted memory": {0: 12, 5: 16, 8: 20, 14: 18, 20: 14}}


def test_no_slice_is_dropped_for_a_nanosecond(tmp_path: Path) -> None:
    """1001 ns are 1.001 us, which times 1000 is less than 1001. Written like that, b2 would begin in f2."""
    assert nanoseconds(1.001) == 1000
    graph = {**TINY, "ops": [{**op, "time_ns": time} for op, time in zip(TINY["ops"], (500, 501, 6, 0), strict=True)]}
    path = tmp_path / "trace.json"
    steps = schedule(tmp_path / "s.json", TINY_STEPS)
    assert headroom("simulate", write(tmp_path / "tiny.json", graph), steps, "--trace", path).returncode == 0
    spans = [(piece.begin_ns, piece.end_ns) for piece in read_trace(path).slices[1]]
    assert spans == [(0, 500), (500, 1001), (1001, 1007), (1007, 1007)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_simulated_examples(example: Path, tmp_path: Path) -> None:
    path, steps = tmp_path / "trace.json", tmp_path / "s.json"
    plan = result_of("plan", example, "--budget", BUDGETS[example.stem], "--out", steps)
    result_of("simulate", example, steps, "--trace", path)
    trace = read_trace(path)
    assert [piece.name for piece in trace.slices[1]] == runs_of(steps)
    assert trace.slices[1][-1].end_ns == plan["time_ns"]
    assert max(trace.counters["predicted memory"].values()) == plan["peak_bytes"]


def runs_of(steps: Path) -> list[str]:
    return [step["run"] for step in json.loads(steps.read_text())["steps"] if "run" in step]


@pytest.mark.skipif(TRAIN == "", reason="headroom-train was not built")
def test_trained(tmp_path: Path) -> None:
    """Predicted and measured memory are given at the same times."""
    path, steps = tmp_path / "trace.json", tmp_path / "s.json"
    result: Any = trained(*GPT, "--budget", "0.6x", "--no-plain", "--trace", path, "--out-schedule", steps)
    trace = read_trace(path)
    assert [piece.name.split(" ")[0] for piece in trace.slices[1]] == runs_of(steps)
    assert trace.slices[1][-1].end_ns == result["predicted_time_ns"]
    assert trace.counters.keys() == {"predicted memory", "measured memory"}
    predicted, measured = trace.counters["predicted memory"], trace.counters["measured memory"]
    assert measured.keys() == predicted.keys()
    assert max(predicted.values()) == result["predicted_peak_bytes"]
    tolerance = EPSILON * (result["measured_peak_bytes"] - result["before_bytes"])
    assert all(abs(predicted[time] - bytes_) <= tolerance for time, bytes_ in measured.items())
