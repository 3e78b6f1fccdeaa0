"""Output of `headroom` for people: the chart of memory, explanations, and progress on a terminal."""

import contextlib
import fcntl
import os
import pty
import random
import struct
import subprocess
import termios
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from headroom_command import ROOT, UNET, Arguments, headroom, result_of
from test_cli import TINY, TINY_STEPS, schedule, write

GPT = ROOT / "examples" / "gpt24.json"
BLOCKS = " ▁▂▃▄▅▆▇█"
AGAIN_STEPS = [{"run": "f1"}, {"run": "f2"}, {"drop": "a"}, {"run": "f1"}, *TINY_STEPS[2:]]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write(tmp_path / "tiny.json", TINY)


# The chart


def chart_of(text: str) -> list[str]:
    return text.rstrip("\n").split("\n\n")[-1].splitlines()


def test_chart_by_hand(tiny: Path, tmp_path: Path) -> None:
    steps = schedule(tmp_path / "s.json", AGAIN_STEPS)
    lines = chart_of(headroom("simulate", tiny, steps).stdout)
    # Moments of 12, 16, 16, 20 and 18 of 20 bytes, in eighths of seven rows: 34, 45, 45, 56, 50; 71 columns for all.
    heights = [[34, 45, 45, 56, 50][column * 5 // 71] for column in range(71)]
    for row, line in enumerate(reversed(lines[:7])):
        expected = "".join(BLOCKS[max(0, min(8, height - 8 * row))] for height in heights)
        label = "  20 B" if row == 6 else "      "
        assert line == f"{label} │{expected}".rstrip()
    assert lines[7] == "   0 B  " + "─" * 29 + "▒" * 14 + "═" * 28
    assert lines[8].split() == ["─", "forward", "═", "backward", "▒", "recomputed"]


def test_chart_without_block_characters(tiny: Path, tmp_path: Path) -> None:
    steps = schedule(tmp_path / "s.json", AGAIN_STEPS)
    done = headroom("simulate", tiny, steps, locale="C")
    assert done.stdout.isascii()
    lines = chart_of(done.stdout)
    assert lines[7] == "   0 B  " + "-" * 29 + "r" * 14 + "=" * 28
    assert lines[6] == "       |" + "#" * 71


def test_chart_has_the_budget(tmp_path: Path) -> None:
    done = headroom("plan", UNET, "--budget", "2x", "--planner", "store-all")
    lines = chart_of(done.stdout)
    assert lines[0].count("┄") > 50
    assert "budget" in lines[-1]
    assert all(len(line) <= 80 for line in lines)
    assert "█" not in "".join(lines[:3])
    # Several runs share a column.
    done = headroom("plan", GPT, "--planner", "binomial", "--budget", "8GiB")
    assert all(len(line) <= 80 for line in chart_of(done.stdout))


def test_no_chart_where_it_is_not_wanted(tiny: Path, tmp_path: Path) -> None:
    steps = schedule(tmp_path / "s.json", TINY_STEPS)
    assert "forward" not in headroom("simulate", tiny, steps, "--no-chart").stdout
    assert "forward" not in headroom("plan", tiny, "--planner", "store-all", "--no-chart").stdout
    assert "forward" not in headroom("plan", tiny, "--planner", "store-all", "--json").stdout
    wrong = schedule(tmp_path / "wrong.json", TINY_STEPS[:3])
    assert "forward" not in headroom("simulate", tiny, wrong).stdout


# explain


def test_explain_by_hand(tiny: Path, tmp_path: Path) -> None:
    done = headroom("explain", tiny, schedule(tmp_path / "s.json", AGAIN_STEPS))
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "This schedule of 'tiny' has 8 steps. Its peak is 20 B, 100 % of the 20 B of store-all, "
        "and it takes 25 ns (+25.0 %).",
        "Backward begins with 2 values saved from forward, 8 B in all: 'a' (4 B), 'loss' (4 B).",
        "1 run recomputes a value that was computed before, in 5 ns, 20 % of the time: 'f1' (5 ns).",
        "The peak is at step 4, run 'b2', with 4 live values: 'x' (8 B), 'a' (4 B), 'loss' (4 B), 'ga' (4 B).",
        # No schedule of this graph has a smaller peak.
        "With the same peak, `auto` finds a plan of 20 ns (+0.0 %).",
        "With 2 B less, 18 B, there is no plan; the smallest budget that it can meet is 20 B.",
    ]
    done = headroom("explain", tiny, schedule(tmp_path / "s.json", TINY_STEPS))
    assert "Nothing is recomputed." in done.stdout
    assert "With the same peak" not in done.stdout


def test_explain_says_what_recomputation_saves_and_what_memory_buys(tmp_path: Path) -> None:
    steps = tmp_path / "s.json"
    plan = result_of("plan", GPT, "--budget", "0.5x", "--out", steps)
    text = headroom("explain", GPT, steps).stdout
    saved = next(line for line in text.splitlines() if line.startswith("That saves "))
    assert "GiB at the peak of store-all, run 'B27'" in saved
    more = result_of("plan", GPT, "--budget", str(plan["peak_bytes"] + 2**30))
    less = result_of("plan", GPT, "--budget", str(plan["peak_bytes"] - 2**30))
    assert more["time_ns"] < plan["time_ns"] < less["time_ns"]

    def percent(alternative: dict[str, int]) -> str:
        return f"(+{100 * (alternative['time_ns'] / alternative['base_time_ns'] - 1):.1f} %)"

    lines = {line.split(",")[0]: line for line in text.splitlines()}
    assert percent(more) in lines["With 1.00 GiB more"]
    assert f"{(plan['time_ns'] - more['time_ns']) / 1e6:.2f} ms less per step" in lines["With 1.00 GiB more"]
    assert percent(less) in lines["With 1.00 GiB less"]


# On a terminal


def on_terminal(columns: int, *arguments: Arguments) -> tuple[str, str]:
    """Returns the output to standard output and standard error, each of which is a terminal."""
    command = [os.environ.get("HEADROOM_BIN", str(ROOT / "build" / "headroom")), *map(str, arguments)]
    ends = [pty.openpty() for _ in range(2)]
    for _, inner in ends:
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}

    def read_to_end(outer: int) -> str:
        parts = []
        # Reading a terminal that no process has open any more is an error.
        with open(outer, "rb", buffering=0) as file, contextlib.suppress(OSError):
            while part := file.read(1 << 16):
                parts.append(part)
        return b"".join(parts).decode()

    with (
        subprocess.Popen(command, stdout=ends[0][1], stderr=ends[1][1], env=environment) as process,
        ThreadPoolExecutor() as pool,
    ):
        for _, inner in ends:
            os.close(inner)
        out, err = pool.map(read_to_end, [outer for outer, _ in ends])
        process.wait(timeout=120)
    return out, err


@pytest.mark.parametrize("columns", [50, 100])
def test_chart_is_as_wide_as_the_terminal(columns: int) -> None:
    out, err = on_terminal(columns, "plan", GPT, "--planner", "store-all")
    axis = next(line for line in out.splitlines() if line.strip().startswith("0 B"))
    assert len(axis) == columns - 1
    assert err == ""


def test_progress_is_for_terminals_only(tmp_path: Path) -> None:
    numbers = random.Random(5)
    stages = [
        {
            "name": f"s{i}",
            "forward_ns": numbers.randrange(1, 1000),
            "backward_ns": numbers.randrange(1, 1000),
            "output_bytes": 1000 + numbers.randrange(1000),
            "tape_bytes": 3000 + numbers.randrange(1000),
        }
        for i in range(1000)
    ]
    document = {"format": "headroom.chain/1", "name": "long", "input_bytes": 1, "stages": stages}
    chain = write(tmp_path / "long.json", document)
    call = ["plan", chain, "--planner", "chain", "--budget", "0.5x", "--json"]
    _, err = on_terminal(80, *call)
    assert "planning: 1 s" in err
    assert err.endswith("\r\x1b[K")
    assert headroom(*call).stderr == ""
