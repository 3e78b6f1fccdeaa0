"""The command `headroom-train` as its users call it: $HEADROOM_TRAIN_BIN. Skipped where it was not built."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from headroom_command import ROOT, Arguments, assert_refused, result_of
from reports import REQUIRED, data_of

TRAIN = os.environ.get("HEADROOM_TRAIN_BIN", "")
pytestmark = pytest.mark.skipif(TRAIN == "", reason="headroom-train was not built")

GPT = ["gpt-tiny", "--batch", "4"]
# Most of the memory of these steps on small images is gradients of parameters, which no plan can avoid.
UNET = ["unet", "--batch", "2"]
VGG = ["vgg11", "--batch", "2", "--image", "32", "--steps", "1"]
EPSILON = 0.01


def train(*arguments: Arguments) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TRAIN, *map(str, arguments)],
        check=False,
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def trained(*arguments: Arguments) -> Any:
    done = train(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_as_plain_training(result: Any) -> None:
    assert result["identical"] is True
    assert result["gradient_difference"] == 0
    assert result["buffer_difference"] == 0
    assert result["planned"]["losses"] == result["plain"]["losses"]


def assert_predicted(result: Any) -> None:
    measured = result["measured_peak_bytes"]
    assert measured == result["planned"]["peak_bytes"]
    assert measured <= result["predicted_peak_bytes"]
    assert result["predicted_peak_bytes"] - measured <= EPSILON * (measured - result["before_bytes"])
    share = (result["predicted_peak_bytes"] - measured) / (measured - result["before_bytes"])
    assert result["error"] == pytest.approx(share)


def share_of_step(result: Any, share: float) -> int:
    return result["before_bytes"] + int(share * (result["store_all_peak_bytes"] - result["before_bytes"]))


@pytest.mark.parametrize(
    ("network", "share"),
    [(GPT, 0.6), ([*GPT, "--layers", "6", "--dropout", "0.2"], 0.4), ([*UNET, "--image", "32", "--steps", "2"], 0.99)],
    ids=["gpt", "deep-gpt", "unet"],
)
def test_trains_within_the_budget(network: list[str], share: float, tmp_path: Path) -> None:
    result = trained_with_files(tmp_path, *network, "--budget", f"{share}x")
    assert abs(result["budget_bytes"] - share_of_step(result, share)) <= 1
    assert result["measured_peak_bytes"] <= result["budget_bytes"] < result["plain"]["peak_bytes"]
    assert result["planner"] == "auto"
    assert result["status"] in {"optimal", "feasible"}
    assert result["predicted_time_ns"] >= result["store_all_time_ns"]
    assert 0 <= result["recomputation"] < 1
    assert_predicted(result)
    assert_as_plain_training(result)


def trained_with_files(folder: Path, *arguments: Arguments) -> Any:
    """Writes all files and checks them."""
    trace, graph, schedule = (folder / name for name in ("trace.json", "graph.json", "schedule.json"))
    result = trained(*arguments, "--trace", trace, "--out-graph", graph, "--out-schedule", schedule)
    simulated = result_of("simulate", graph, schedule)
    assert simulated["valid"] is True
    assert simulated["peak_bytes"] == result["predicted_peak_bytes"]
    assert simulated["time_ns"] == result["predicted_time_ns"]
    runs = [step["run"] for step in json.loads(schedule.read_text())["steps"] if "run" in step]
    assert [step["op"] for step in assert_trace(trace, result)] == runs
    assert sorted(path.name for path in folder.iterdir()) == ["graph.json", "schedule.json", "trace.json"]
    return result


def test_a_graph_joined_to_a_chain(tmp_path: Path) -> None:
    result = trained_with_files(tmp_path, *UNET, "--image", "32", "--steps", "1", "--chain", "--planner", "sqrt")
    assert result["is_chain"] is True
    assert result["nodes"] == result["blocks"]
    assert_predicted(result)
    assert_as_plain_training(result)


def test_without_a_budget_nothing_runs_again() -> None:
    result = trained(*GPT)
    assert result["budget_bytes"] is None
    assert result["planner"] == "store-all"
    assert result["recomputation"] == 0
    assert result["predicted_peak_bytes"] == result["store_all_peak_bytes"]
    assert_predicted(result)
    assert_as_plain_training(result)


def test_a_budget_in_bytes_is_the_whole_device() -> None:
    result = trained(*GPT, "--budget", "4MB", "--planner", "chain", "--slots", "1000")
    assert result["budget_bytes"] == 4_000_000
    assert result["planner"] == "chain"
    assert result["before_bytes"] > 4 * result["parameters"]  # Four bytes each, and a batch.
    assert result["measured_peak_bytes"] <= 4_000_000


def test_planner_of_checkpoints_says_them() -> None:
    result = trained(*GPT, "--planner", "peak-cubic")
    assert result["checkpoints"]
    assert_predicted(result)


@pytest.mark.parametrize("options", [[], ["--reentrant"]], ids=["plain", "reentrant"])
def test_given_checkpoints(options: list[str]) -> None:
    result = trained(*GPT, "--layers", "6", "--checkpoints", "3,5", *options)
    assert result["checkpoints"] == [3, 5]
    assert result["planner"] is None
    assert result["status"] is None
    assert result["recomputation"] > 0
    assert_predicted(result)
    assert_as_plain_training(result)


def test_a_vgg_with_checkpoints_at_every_moment(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    result = trained(*VGG, "--checkpoints", "3,8", "--trace", trace)
    assert_predicted(result)
    assert_as_plain_training(result)
    assert_trace(trace, result)


def test_report_of_a_vgg_with_its_measurement(tmp_path: Path) -> None:
    page, trace = tmp_path / "vgg19.html", tmp_path / "trace.json"
    vgg19 = ["vgg19", "--batch", "2", "--image", "32", "--steps", "1", "--checkpoints", "3,11,24"]
    done = train(*vgg19, "--report", page, "--trace", trace, "--json")
    if "without the report page" in done.stderr and not REQUIRED:
        pytest.skip("headroom-train was built without the report page")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    data = data_of(page)
    steps = assert_trace(trace, result)
    assert data["peak_bytes"] == result["predicted_peak_bytes"]
    assert data["store_all_peak_bytes"] == result["store_all_peak_bytes"]
    assert data["measured"]["peak_bytes"] == result["measured_peak_bytes"]
    assert data["measured"]["moment_bytes"] == [step["measured_moment_bytes"] for step in steps]
    assert data["measured"]["after_bytes"] == [step["measured_after_bytes"] for step in steps]
    assert data["measured"]["step_ns"] == result["planned"]["step_ns"]
    assert data["measured"]["plain_step_ns"] == result["plain"]["step_ns"]
    assert data["measured"]["identical_to_plain"] is True
    assert [data["ops"]["module"][op] for op in data["runs"]["op"]] == [step["node"] for step in steps]
    assert data["planner"] == "given checkpoints"
    assert {"sqrt", "peak-linear", "chain", "auto"} <= {front["planner"] for front in data["fronts"]["planners"]}


def assert_trace(path: Path, result: Any) -> Any:
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "C"} == {"predicted memory", "measured memory"}
    slices = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in slices] == [f"{step['op']} {step['node']}" for step in trace["steps"]]
    assert max(step["measured_moment_bytes"] for step in trace["steps"]) <= result["measured_peak_bytes"]
    for step in trace["steps"]:
        for moment in ("moment", "after"):
            measured = step[f"measured_{moment}_bytes"]
            tolerance = EPSILON * (measured - result["before_bytes"])
            assert abs(step[f"predicted_{moment}_bytes"] - measured) <= tolerance, (step, result["before_bytes"])
    return trace["steps"]


def test_text_is_learned_and_seeds_repeat() -> None:
    call = [*GPT, "--text", ROOT / "README.md", ROOT / "LICENSE", "--steps", "12", "--learning-rate", "0.1"]
    result = trained(*call, "--budget", "0.7x")
    assert_as_plain_training(result)
    losses = result["planned"]["losses"]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.3
    assert trained(*call, "--no-plain")["planned"]["losses"] == losses
    assert trained(*call, "--no-plain", "--seed", "1")["planned"]["losses"] != losses


def test_without_plain_training() -> None:
    result = trained(*GPT, "--no-plain")
    for key in ("plain", "gradient_difference", "buffer_difference", "identical"):
        assert result[key] is None
    assert "plain training  not run" in train(*GPT, "--no-plain").stdout


def test_chart() -> None:
    shown = train(*GPT, "--budget", "0.7x").stdout
    assert "backward" in shown.splitlines()[-1]
    assert "budget" in shown.splitlines()[-1]
    assert "backward" not in train(*GPT, "--budget", "0.7x", "--no-chart").stdout


def test_text_output() -> None:
    done = train(*GPT, "--budget", "0.6x")
    assert done.returncode == 0
    assert done.stderr == ""
    rows = dict(line.split("  ", 1) for line in done.stdout.split("\n\n")[0].splitlines()[1:])
    assert re.search(r"prediction [+-]0\.\d\d %", rows["measured peak"])
    assert rows["gradients"].strip() == "largest difference 0 (bit-identical)"
    assert rows["plain losses"].split() == rows["planned losses"].split()
    assert "chain of 5 stages" in rows["network"]


def test_keys_are_documented() -> None:
    text = (ROOT / "docs" / "training.md").read_text()
    result = trained(*GPT)
    assert {f"`{key}`" for key in [*result, *result["planned"]] if f"`{key}`" not in text} == set()


def test_the_smallest_budget_is_named_and_works() -> None:
    done = train(*GPT, "--budget", "0.1x")
    assert done.returncode == 1
    assert done.stdout == ""
    match = re.fullmatch(
        r"headroom-train: network 'gpt-tiny' cannot be trained in \d+ bytes; "
        r"the smallest budget is (\d+) bytes = [\d.]+ MiB\n",
        done.stderr,
    )
    assert match, done.stderr
    smallest = int(match[1])
    result = trained(*GPT, "--budget", smallest)
    assert result["measured_peak_bytes"] <= smallest
    assert_as_plain_training(result)
    assert train(*GPT, "--budget", smallest - 1).returncode == 1


@pytest.mark.parametrize(
    ("call", "mentions"),
    [
        (["nope", "--batch", "2"], "there is no network 'nope'; there are alexnet"),
        (["gpt-tiny"], "--batch is required"),
        (["gpt-tiny", "--batch", "0"], "the batch must be at least 1, found 0"),
        (["gpt-tiny", "--batch", "many"], "--batch"),
        (["vgg11", "--batch", "1", "--image", "31"], "at least 32, found 31"),
        (["resnet18", "--batch", "1", "--image", "32"], "forward of node 'block4_1'"),
        ([*GPT, "--image", "32"], "takes no images"),
        ([*GPT, "--heads", "5"], "width must be a multiple of heads"),
        ([*UNET, "--tokens", "8"], "options of the GPTs"),
        ([*UNET, "--text", "README.md"], "options of the GPTs"),
        ([*GPT, "--text", "/nowhere/text"], "/nowhere/text: cannot read"),
        ([*GPT, "--text", "/dev/null"], "--text: needs more than the 64 bytes of a sequence, found 0"),
        ([*GPT, "--text", "README.md", "--vocabulary", "100"], "a vocabulary of 100"),
        ([*GPT, "--checkpoints", "5"], "stages from 1 to 4, found 5"),
        ([*GPT, "--checkpoints", "2,1"], "ascending"),
        ([*GPT, "--checkpoints", "2", "--budget", "1GiB"], "excludes"),
        ([*GPT, "--checkpoints", "2", "--planner", "chain"], "excludes"),
        ([*UNET, "--image", "16", "--checkpoints", "2"], "network 'unet' is no chain; --chain makes it one"),
        ([*UNET, "--image", "16", "--planner", "sqrt"], "takes chains"),
        ([*GPT, "--planner", "best"], "there is no planner 'best'"),
        ([*GPT, "--planner", "auto"], "needs a budget"),
        ([*GPT, "--budget", "plenty"], "found 'plenty'"),
        ([*GPT, "--steps", "0"], "--steps"),
        ([*GPT, "--device", "tpu"], "--device"),
        ([*GPT, "--trace", "/nowhere/trace"], "/nowhere/trace: cannot write"),
        ([*GPT, "--frobnicate"], "--frobnicate"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_bad_usage(call: list[str], mentions: str) -> None:
    done = train(*call)
    assert_refused(done, mentions)
    assert done.stderr.startswith("headroom-train: ")


def test_no_cuda_device() -> None:
    done = subprocess.run(
        [TRAIN, *GPT, "--device", "cuda"],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert_refused(done, "0 cuda devices")


def test_help() -> None:
    done = train("--help")
    assert done.returncode == 0
    assert "--budget" in done.stdout
