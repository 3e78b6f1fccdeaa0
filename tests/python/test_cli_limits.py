"""The command `headroom` at its limits: too little memory, times that do not fit, unknown words."""

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest
from headroom_command import ROOT, UNET, headroom, result_of

RESNET = ROOT / "examples" / "resnet50.json"
MIB = 1 << 20


def headroom_within(memory_bytes: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process with a limit on its memory."""
    return subprocess.run(
        [os.environ.get("HEADROOM_BIN", str(ROOT / "build" / "headroom")), *map(str, arguments)],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes)),
    )


def assert_out_of_memory(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr == "headroom: not enough memory for this input\n"
    assert done.stdout == ""


def chain_file(path: Path, stages: list[dict[str, int]]) -> Path:
    named = [{"name": f"s{i}", **stage} for i, stage in enumerate(stages, 1)]
    path.write_text(
        json.dumps({"format": "headroom.chain/1", "name": "c", "resident_bytes": 0, "input_bytes": 1, "stages": named})
    )
    return path


def test_a_table_that_does_not_fit_in_memory(tmp_path: Path) -> None:
    stage = {"forward_ns": 3, "backward_ns": 5, "output_bytes": 1 << 20, "tape_bytes": 3 << 20}
    chain = chain_file(tmp_path / "chain.json", [stage] * 200)
    arguments = ["plan", chain, "--planner", "chain", "--budget", "0.3x", "--slots", "20000"]
    out = tmp_path / "plan.json"
    assert_out_of_memory(headroom_within(200 * MIB, *arguments, "--out", out))
    assert [path.name for path in tmp_path.iterdir()] == ["chain.json"]


@pytest.mark.parametrize("threads", ["1", "4"])
def test_too_little_memory_in_any_thread(threads: str, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    arguments = ["plan", RESNET, "--budget", "0.6x", "--threads", threads, "--effort", "low", "--out", out]
    starts = headroom_within(1 << 40, *arguments)
    assert starts.returncode == 0, starts.stderr
    seen = set()
    out.unlink()
    for mebibytes in [*range(8, 24), 400]:
        done = headroom_within(mebibytes * MIB, *arguments)
        if done.returncode == 127:  # The loader itself has failed.
            continue
        seen.add(done.returncode)
        if done.returncode == 0:
            assert out.read_text().endswith("}\n")
            out.unlink()
        else:
            assert_out_of_memory(done)
            assert list(tmp_path.iterdir()) == []
    assert seen >= {0, 2}


def test_compare_goes_on_where_one_plan_takes_too_long_to_count(tmp_path: Path) -> None:
    # Every op once is nearly 2^63 ns in all, F and R of each stage being half of it each: what runs stages a third
    # time does not fit.
    stage = {"forward_ns": (1 << 63) // 41, "backward_ns": 1, "output_bytes": 10, "tape_bytes": 30}
    chain = chain_file(tmp_path / "chain.json", [stage] * 20)
    rows = result_of("compare", chain, "--budgets", "1x,0.7x")["rows"]
    within_all = {row["planner"]: row for row in rows if row["budget_bytes"] == rows[0]["budget_bytes"]}
    assert within_all["store-all"]["status"] == "optimal"
    assert within_all["auto"]["status"] == "optimal"
    assert within_all["binomial"]["status"] == "feasible"  # with as many states as it needs
    text = headroom("compare", chain, "--segments", "2", "--budgets", "1x,0.7x")
    assert text.returncode == 0
    assert "  binomial: the schedule's time does not fit 64 bits\n" in text.stdout
    alone = headroom("plan", chain, "--planner", "binomial", "--segments", "2")
    assert alone.returncode == 2
    assert alone.stderr == "headroom: binomial: the schedule's time does not fit 64 bits\n"


def test_a_planner_that_refuses_at_one_budget_has_rows_at_others(tmp_path: Path) -> None:
    # `chain` takes more than 2,048 stages only where all of them can be recorded.
    stage = {"forward_ns": 1, "backward_ns": 1, "output_bytes": 1, "tape_bytes": 1}
    chain = chain_file(tmp_path / "chain.json", [stage] * 2100)
    arguments = ["compare", chain, "--effort", "low", "--budgets"]
    for budgets in ("1x,0.5x", "0.5x,1x"):
        done = headroom(*arguments, budgets)
        assert done.returncode == 0
        assert sum(line.startswith("chain  ") for line in done.stdout.splitlines()) == 1, done.stdout
        refusals = [line for line in done.stdout.splitlines() if line.startswith("  chain: ")]
        assert len(refusals) == 1
        assert refusals[0].endswith("(at 0.5x)")
    points = result_of("curve", chain, "--planner", "chain", "--points", "3")["points"]
    assert [point["time_ns"] for point in points] == [4200]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slots", "0"], "--slots: expected a whole number of at least 1, found '0'"),
        (["--slots", "many"], "--slots: expected a whole number of at least 1, found 'many'"),
        (["--slots", "1.5"], "--slots: expected a whole number of at least 1, found '1.5'"),
        (["--slots", str(1 << 64)], f"--slots: expected a whole number of at least 1, found '{1 << 64}'"),
        (["--threads", "2000"], "--threads: expected a whole number from 0 to 1024, found '2000'"),
        (["--effort", "max"], "--effort: expected low, normal or high, found 'max'"),
    ],
)
def test_options_that_it_does_not_take(arguments: list[str], message: str) -> None:
    done = headroom("plan", RESNET, "--budget", "0.5x", *arguments)
    assert done.returncode == 2
    assert done.stderr == f"headroom: {message}; `headroom --help` lists the calls\n"


def test_a_call_that_there_is_not() -> None:
    done = headroom("frobnicate", RESNET, "--budget", "0.5x")
    assert done.returncode == 2
    assert done.stderr == "headroom: there is no call 'frobnicate'; `headroom --help` lists the calls\n"


def test_planners_that_keep_the_order_accept_the_option() -> None:
    arguments = ["plan", UNET, "--planner", "lower-sets", "--budget", "0.6x", "--effort", "low"]
    plans = [result_of(*arguments), result_of(*arguments, "--keep-order")]
    for plan in plans:
        del plan["solve_ms"]
    assert plans[0] == plans[1]
    assert "--keep-order" in headroom("plan", "--help").stdout


@pytest.mark.parametrize("planner", ["auto", "exhaustive"])
def test_first_runs_move_unless_the_order_is_kept(planner: str, tmp_path: Path) -> None:
    """`b` is live from `fb` to `bg`. Making it after `fs` saves running `fa` and `fb` twice."""
    file = tmp_path / "two.txt"
    file.write_text("graph two\nop fa 5: -> a=8\nop fb 5: -> b=8\nop fs 1: a -> s=1\nop bg 1: b s -> g=1\noutputs g\n")
    arguments = ["plan", str(file), "--planner", planner, "--budget", "10"]
    moved, kept = result_of(*arguments), result_of(*arguments, "--keep-order")
    assert (moved["status"], moved["time_ns"], moved["lower_bound_ns"]) == ("optimal", 12, 12)
    assert (kept["status"], kept["time_ns"], kept["lower_bound_ns"]) == ("optimal", 22, 22)
    schedule = tmp_path / "schedule.json"
    assert headroom(*arguments, "--out", str(schedule)).returncode == 0
    explained = headroom("explain", str(file), str(schedule)).stdout
    assert "1 op first runs at another place than listed: 'fs'" in explained or "'fb'" in explained
    assert "With the order kept, `auto` takes 22 ns (+83.3 %) within the same peak." in explained


def test_a_cycle_is_reported_with_its_members(tmp_path: Path) -> None:
    file = tmp_path / "cycle.txt"
    file.write_text("graph g\nop f 1: c -> a=1\nop g 1: a -> b=0\nop h 1: b -> c=0\nop k 1: a -> d=1\noutputs d\n")
    done = headroom("plan", str(file), "--budget", "1x")
    assert done.returncode == 2
    assert "cycle of ops: 'f' reads 'c' of 'h', 'h' reads 'b' of 'g', 'g' reads 'a' of 'f'" in done.stderr
