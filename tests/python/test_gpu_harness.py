"""The harness of benchmarks/gpu, with suites of trivial points and a stub of PyTorch."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
RUN = ROOT / "benchmarks" / "gpu" / "run.py"

# Each point appends its name to the file `ran`. Of `{0}` the test writes the points.
SUITE = """
from harness import Point, Suite, cell, table

def point(name, code, **options):
    text = f"open({ran!r}, 'a').write('{{name}}\\\\n'); {{code}}"
    return Point(name, ("python", "-c", text), **{{"gpu_gib": None, **options}})

def tables(results):
    rows = [[point.name, cell(results.first(point.name).get("ms"), ".1f")] for point in results.suite.points]
    return table(["point", "ms"], rows)

SUITE = Suite("Points of a test", [{points}], tables, {options})
"""
GOOD = "print('{\"ms\": 2.5}')"

# The part of PyTorch that the harness uses: no GPU, or one of 8 GiB.
TORCH = """
from types import SimpleNamespace
__version__ = "2.99"
version = SimpleNamespace(cuda="13.0")
one = SimpleNamespace(name="Small GPU", total_memory=8 << 30)
cuda = SimpleNamespace(is_available=lambda: {available}, get_device_properties=lambda _: one)
"""


class Bench:
    """Suites in a separate folder, and their results."""

    def __init__(self, folder: Path) -> None:
        self.suites, self.out, self.ran, self.packages = (
            folder / name for name in ("suites", "out", "ran", "packages")
        )
        self.suites.mkdir()
        self.packages.mkdir()

    def suite(self, *points: str, name: str = "fake", options: str = "") -> None:
        """Writes a suite of points such as `point("one", GOOD)`."""
        text = SUITE.format(ran=str(self.ran), points=", ".join(points), options=options)
        (self.suites / f"{name}.py").write_text(f"GOOD = {GOOD!r}\n{text}")

    def torch(self, *, available: bool) -> None:
        (self.packages / "torch.py").write_text(TORCH.format(available=available))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, RUN, "--suites", self.suites, "--out", self.out, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.packages)}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Returns the exit status and the output."""
        started = self.start(*arguments)
        printed, _ = started.communicate(timeout=60)
        return started.returncode, printed

    def result(self, point: str, suite: str = "fake") -> dict[str, Any]:
        return json.loads((self.out / suite / f"{point}.json").read_text())

    def page(self, suite: str = "fake") -> str:
        return (self.out / f"{suite}.md").read_text()

    def names_run(self) -> list[str]:
        return self.ran.read_text().split() if self.ran.exists() else []

    def wait_for(self, count: int) -> None:
        """Waits until that many points have begun."""
        end = time.monotonic() + 30
        while len(self.names_run()) < count:
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    return Bench(tmp_path)


def test_a_point_is_a_file_with_its_figures_and_where_they_were_measured(bench: Bench) -> None:
    bench.suite('point("one", GOOD)')
    status, printed = bench.run()
    assert status == 0, printed
    assert "fake/one: measured" in printed
    assert "1 measured, 0 failed, 0 not run" in printed
    result = bench.result("one")
    assert result["figures"] == [{"ms": 2.5}]
    assert result["status"] == "measured"
    assert result["command"][:2] == ["python", "-c"]
    assert result["seconds"] >= 0
    assert result["machine"]["cores"] > 0
    assert result["versions"]["python"]
    assert result["commit"]
    assert "| one | 2.5 |" in bench.page()


def test_a_killed_run_loses_one_point(bench: Bench) -> None:
    bench.suite('point("one", GOOD)', 'point("two", f"import time; time.sleep(1); {GOOD}")', 'point("three", GOOD)')
    started = bench.start()
    bench.wait_for(2)
    started.kill()
    started.communicate(timeout=60)
    assert not (bench.out / "fake" / "two.json").exists()
    # The point that was left behind is not measured beside others.
    status, printed = bench.run()
    assert status == 2
    assert "is in use by another run" in printed
    with open(bench.out / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    status, printed = bench.run()
    assert status == 0, printed
    assert "fake: 1 of 3 points are there already" in printed
    assert bench.names_run() == ["one", "two", "two", "three"]
    assert "3 measured, 0 failed (1 of them before), 0 not run" in printed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_stopped_stops_its_points(bench: Bench, number: signal.Signals) -> None:
    bench.suite('point("one", "import time; time.sleep(30)")')
    started = bench.start()
    bench.wait_for(1)
    started.send_signal(number)
    printed, _ = started.communicate(timeout=10)
    assert started.returncode == 128 + number, printed
    assert "Traceback" not in printed
    with open(bench.out / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # No process holds it any more.
    assert not (bench.out / "fake" / "one.json").exists()


def test_points_are_run_again_when_asked_or_when_they_change(bench: Bench) -> None:
    bench.suite('point("one", GOOD)', 'point("two", GOOD)')
    bench.run()
    bench.run()
    assert bench.names_run() == ["one", "two"]
    bench.run("--again", "--only", "t*")
    assert bench.names_run() == ["one", "two", "two"]
    bench.suite('point("one", "print(\'{}\')")', 'point("two", GOOD)')
    bench.run()
    assert bench.names_run() == ["one", "two", "two", "one"]
    path = bench.out / "fake" / "two.json"
    path.write_text(json.dumps({**bench.result("two"), "commit": "another"}))
    (bench.out / "fake" / "one.json").write_text('{"half": ')
    bench.run()
    assert bench.names_run() == ["one", "two", "two", "one", "one", "two"]


def test_a_failing_point_is_a_hole_and_the_others_go_on(bench: Bench) -> None:
    bench.suite(
        'point("raises", "raise ValueError(\'no such thing\')")',
        'point("dies", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")',
        'point("throws", "import os, sys; print(\'  what():  no network\', file=sys.stderr, flush=True); os.abort()")',
        'point("silent", "print(1)")',
        'point("wrong", f"import sys; {GOOD}; sys.exit(\'over the budget\')")',
        'Point("absent", ("no-such-program",), gpu_gib=None)',
        'point("last", GOOD)',
    )
    status, printed = bench.run()
    assert status == 1
    assert "1 measured, 6 failed, 0 not run" in printed
    assert "fake/raises: FAILED: exit status 1: ValueError: no such thing" in printed
    assert "fake/dies: FAILED: killed by SIGSEGV: it printed no reason" in printed
    assert "fake/throws: FAILED: killed by SIGABRT: no network" in printed
    assert "fake/silent: FAILED: it printed no figures" in printed
    assert "fake/absent: FAILED: no-such-program does not start: No such file or directory" in printed
    assert bench.result("wrong")["error"] == "exit status 1: over the budget"
    assert "no such thing" in (bench.out / "fake" / "raises.log").read_text()
    page = bench.page()
    assert "| raises | — |" in page
    assert "| wrong | 2.5 |" in page  # The figures measured before it failed.
    assert "| last | 2.5 |" in page
    assert "- `dies`: failed, killed by SIGSEGV" in page
    # A failure is a result: it is kept, and counted again.
    status, printed = bench.run()
    assert status == 1
    assert "1 measured, 6 failed (7 of them before), 0 not run" in printed


def test_a_point_over_its_limit_ends_with_all_that_it_started(bench: Bench) -> None:
    code = f"import subprocess, time; {GOOD[:-1]}, flush=True); subprocess.Popen(['sleep', '30']); time.sleep(30)"
    bench.suite(f'point("slow", {code!r}, limit_s=0.5)', 'point("last", GOOD)')
    start = time.monotonic()
    status, printed = bench.run()
    assert status == 1
    assert time.monotonic() - start < 20
    assert "fake/slow: FAILED: more than its limit of 0.5 s" in printed
    assert bench.result("slow")["figures"] == [{"ms": 2.5}]
    assert bench.result("last")["status"] == "measured"


def test_a_missing_package_is_said_once_and_tried_again(bench: Bench) -> None:
    bench.suite(
        'point("one", GOOD, packages=("timm_fake",))',
        'point("two", GOOD, packages=("timm_fake",))',
        'point("last", GOOD)',
    )
    status, printed = bench.run()
    assert status == 1
    assert printed.count("timm_fake") == 1
    assert "fake: 2 points not run: needs timm_fake: not installed" in printed
    assert "1 measured, 0 failed, 2 not run" in printed
    assert "- `one`, `two`: not run, needs timm_fake: not installed" in bench.page()
    (bench.packages / "timm_fake.py").touch()
    status, printed = bench.run()
    assert status == 0, printed
    assert bench.names_run() == ["last", "one", "two"]


def test_without_a_gpu_other_points_go_on_and_results_from_one_are_kept(bench: Bench) -> None:
    bench.suite('point("one", GOOD, gpu_gib=0)', 'point("last", GOOD)')
    bench.torch(available=False)
    status, printed = bench.run()
    assert status == 1
    assert "fake: one not run: needs a GPU: there is none" in printed
    assert bench.names_run() == ["last"]
    bench.torch(available=True)
    status, printed = bench.run()
    assert status == 0, printed
    assert bench.result("one")["gpu"] == {"name": "Small GPU", "memory_gib": 8.0}
    assert "Small GPU (8 GiB)" in bench.page()
    bench.torch(available=False)
    status, printed = bench.run()
    assert status == 1
    assert bench.result("one")["status"] == "measured"


def test_too_small_a_gpu(bench: Bench) -> None:
    bench.suite('point("large", GOOD, gpu_gib=24)', 'point("small", GOOD, gpu_gib=8)')
    bench.torch(available=True)
    status, printed = bench.run()
    assert status == 1
    assert "fake: large not run: needs a GPU with 24 GiB: Small GPU has 8 GiB" in printed
    assert bench.names_run() == ["small"]


def test_without_pytorch(bench: Bench) -> None:
    bench.suite('point("one", GOOD, gpu_gib=0)')
    (bench.packages / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    status, printed = bench.run()
    assert status == 1
    assert "needs a GPU: PyTorch does not start: ModuleNotFoundError: No module named 'torch'" in printed


def test_nothing_is_compiled_where_that_is_not_wanted(bench: Bench) -> None:
    bench.suite('point("one", GOOD, build="nonsense")')
    status, printed = bench.run("--no-build")
    assert status == 0, printed
    assert bench.names_run() == ["one"]


def test_a_failing_build_leaves_out_what_needs_it(bench: Bench) -> None:
    bench.suite('point("one", GOOD, build="nonsense")', 'point("two", GOOD, build="nonsense")', 'point("last", GOOD)')
    status, printed = bench.run()
    assert status == 1
    assert printed.count("build-nonsense: exit status 2") == 1
    assert "fake: 2 points not run: build-nonsense failed: exit status 2" in printed
    assert bench.names_run() == ["last"]


def test_points_run_side_by_side_where_their_suite_allows_it(bench: Bench) -> None:
    """Each point waits until both have begun."""
    begun = f"len(open({str(bench.ran)!r}).read().split())"
    meet = f"import time; [time.sleep(0.02) for _ in range(300) if {begun} < 2]; assert {begun} == 2"
    points = [f'point("{name}", {f"{meet}; {GOOD}"!r}, limit_s=8)' for name in ("one", "three")]
    bench.suite(*points, options="side_by_side=True")
    status, printed = bench.run("--jobs", "2")
    assert status == 0, printed


def test_a_run_ends_after_its_minutes_and_is_continued(bench: Bench) -> None:
    """What the point that is cut off has measured until then is kept, and it is measured again."""
    begun = f"len(open({str(bench.ran)!r}).readlines())"
    slow = f"import time; {GOOD[:-1]}, flush=True); time.sleep(30 if {begun} < 3 else 0)"
    bench.suite('point("one", GOOD)', f'point("slow", {slow!r})', 'point("last", GOOD)')
    start = time.monotonic()
    status, printed = bench.run("--minutes", "0.05")
    assert status == 1
    assert time.monotonic() - start < 20
    assert "fake/slow: cut off by the end of the run" in printed
    assert "1 measured, 0 failed, 2 not run" in printed
    assert bench.result("slow")["figures"] == [{"ms": 2.5}]
    assert "- `slow`: not run, cut off by the end of the run" in bench.page()
    status, printed = bench.run()
    assert status == 0, printed
    assert bench.names_run() == ["one", "slow", "slow", "last"]


def test_suites_that_share_the_gpu_share_their_jobs(bench: Bench) -> None:
    """The point of each of two suites waits until both have begun."""
    begun = f"len(open({str(bench.ran)!r}).read().split())"
    meet = f"import time; [time.sleep(0.02) for _ in range(300) if {begun} < 2]; assert {begun} == 2; {GOOD}"
    bench.suite(f'point("one", {meet!r}, limit_s=8)', options="side_by_side=True")
    bench.suite(f'point("other", {meet!r}, limit_s=8)', name="second", options="side_by_side=True")
    status, printed = bench.run("--jobs", "2")
    assert status == 0, printed


def test_a_suite_reads_others_and_draws_charts(bench: Bench) -> None:
    bench.suite('point("one", GOOD)')
    (bench.suites / "reader.py").write_text(
        "from harness import Suite\nfrom harness.plots import Series, scatter\n"
        "def times(results):\n"
        "    return [one['ms'] for one in results.beside['fake'].all('one')] if results.beside else []\n"
        "def plots(results):\n"
        "    return {'ms': scatter('Times', 'point', 'ms', [Series('all', [(1, times(results)[0])])])}\n"
        "SUITE = Suite('Reader', [], lambda results: f'times: {times(results)}\\n', plots=plots, reads=('fake',))\n"
    )
    status, printed = bench.run("fake")  # The page of a suite that reads another is made with it.
    assert status == 0, printed
    assert "times: [2.5]" in bench.page("reader")
    chart = ElementTree.parse(bench.out / "reader-ms.svg").getroot()
    assert chart.tag.endswith("svg")
    assert len(chart.findall("{http://www.w3.org/2000/svg}circle")) == 1


def test_tables_and_lists_run_nothing(bench: Bench) -> None:
    bench.suite('point("one", GOOD)')
    bench.suite('point("other", GOOD)', name="second")
    bench.run("fake")
    for arguments, expected in ((["--list"], "  other\n"), (["--tables", str(bench.out)], "| one | 2.5 |")):
        command = [sys.executable, RUN, "--suites", bench.suites, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert expected in done.stdout
    assert bench.names_run() == ["one"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "no suite 'nonsense': fake"),
        (["--only", "nonsense"], "no point 'nonsense' in fake"),
        (["--list"], "not allowed with argument"),
    ],
)
def test_usage_errors(bench: Bench, arguments: list[str], message: str) -> None:
    bench.suite('point("one", GOOD)')
    status, printed = bench.run(*arguments)
    assert status == 2
    assert message in printed


def test_the_suite_of_the_readme(bench: Bench) -> None:
    text = (RUN.parent / "README.md").read_text()
    example = text.partition("```python\n")[2].partition("```")[0]
    (bench.suites / "mine.py").write_text(example.replace("gpu_gib=24", "gpu_gib=None").replace('"timm"', '"no_timm"'))
    status, printed = bench.run()
    assert status == 1
    assert "mine: 2 points not run: needs no_timm: not installed" in printed
    assert "| 8 | — |" in bench.page("mine")
