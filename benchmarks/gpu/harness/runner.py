"""Runs points in sequence or in parallel, and writes their results."""

from __future__ import annotations

import collections
import contextlib
import datetime
import fcntl
import importlib.util
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import IO, Any

from harness.machine import Setting
from harness.results import FAILED, MEASURED, NOT_RUN, Result, read_result, write_result
from harness.suite import ROOT, Figures, Point, Suite

ERROR_LENGTH = 300  # Characters of an error line; the log has all of it.
BUILD_LIMIT_S = 3600
CUT_OFF = "cut off by the end of the run"
OUTPUT_MARK = "--- standard output\n"  # Parts a log: standard error is above it.


class InUse(Exception):
    """Another run, or a process that a killed run left behind, works on the folder."""


class Stopped(Exception):
    """The run ends. The output of a stopped process is not a result."""


class Runner:
    """Runs the points of suites into one folder."""

    def __init__(
        self,
        folder: Path,
        setting: Setting,
        *,
        again: bool,
        jobs: int,
        builds: bool = True,
        minutes: float = math.inf,
    ) -> None:
        self.end_s = time.monotonic() + 60 * minutes
        self.folder = folder
        self.setting = setting
        self.again = again
        self.jobs = jobs
        self.builds = builds
        self.counts: collections.Counter[str] = collections.Counter()
        self.built: dict[str, str] = {}  # The error of each build that was tried, or nothing.
        self.children: set[subprocess.Popen[bytes]] = set()
        self.lock = Lock()
        self.is_stopped = False
        self.lock_file = self._take_folder()

    def _take_folder(self) -> IO[str]:
        """Locks the folder. Points inherit the lock, so that none is measured beside a process of an earlier run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = open(self.folder / ".lock", "w")  # noqa: SIM115  Open as long as the run lasts.
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(
                f"{self.folder} is in use by another run, or by a point that a killed run left behind "
                f"(`fuser {self.folder}/.lock` names the process)"
            ) from None
        return file

    def stop(self) -> None:
        """Ends all running processes."""
        with self.lock:
            self.is_stopped = True
            for child in self.children:
                _kill(child)

    def run(self, selection: Mapping[str, tuple[Suite, Sequence[Point]]]) -> None:
        """Runs the points that have no result yet. Consecutive suites that can share the GPU share `jobs`."""
        for shared, suites in itertools.groupby(selection.items(), lambda item: item[1][0].side_by_side):
            todo = [(name, point) for name, (_, points) in suites for point in self._todo(name, points)]
            with ThreadPoolExecutor(self.jobs if shared else 1) as pool:
                try:
                    for future in [pool.submit(self._measure, *item) for item in todo]:
                        future.result()
                except BaseException:
                    self.stop()
                    pool.shutdown(cancel_futures=True)
                    raise

    def _todo(self, name: str, points: Sequence[Point]) -> list[Point]:
        todo = [point for point in points if not self._is_done(name, point)]
        if len(todo) < len(points):
            print(f"{name}: {len(points) - len(todo)} of {len(points)} points are there already", flush=True)
        return self._leave_out(name, todo)

    def _is_done(self, suite: str, point: Point) -> bool:
        stored = read_result(self.folder, suite, point.name)
        if self.again or stored is None or stored.status == NOT_RUN or not stored.is_of(self._result(suite, point)):
            return False
        self.counts[stored.status] += 1
        self.counts["kept"] += 1
        return True

    def _leave_out(self, suite: str, points: Sequence[Point]) -> list[Point]:
        """Returns the points that can be run here. Prints one line for each reason why others cannot."""
        able = []
        reasons: dict[str, list[Point]] = collections.defaultdict(list)
        for point in points:
            reason = self._obstacle(point)
            if reason:
                reasons[reason].append(point)
            else:
                able.append(point)
        for reason, left_out in reasons.items():
            names = left_out[0].name if len(left_out) == 1 else f"{len(left_out)} points"
            print(f"{suite}: {names} not run: {reason}", flush=True)
            for point in left_out:
                self.counts[NOT_RUN] += 1
                earlier = read_result(self.folder, suite, point.name)
                if earlier is None or earlier.status == NOT_RUN:  # Figures from elsewhere are not overwritten.
                    write_result(self.folder, self._result(suite, point, status=NOT_RUN, error=reason))
        return able

    def _obstacle(self, point: Point) -> str:
        """Returns why a point cannot be run here, or nothing. Compiles its build."""
        gpu = self.setting.gpu
        if point.gpu_gib is not None and gpu is None:
            return f"needs a GPU: {self.setting.gpu_missing}"
        if point.gpu_gib is not None and gpu is not None and gpu["memory_gib"] < point.gpu_gib:
            return f"needs a GPU with {point.gpu_gib:g} GiB: {gpu['name']} has {gpu['memory_gib']:g} GiB"
        missing = [package for package in point.packages if importlib.util.find_spec(package) is None]
        if missing:
            return f"needs {' and '.join(missing)}: not installed"
        if point.build and self.builds and point.build not in self.built:
            build = Point(
                f"build-{point.build}", ("python", "benchmarks/gpu/build.py", point.build), limit_s=BUILD_LIMIT_S
            )
            log = self.folder / f"{build.name}.log"
            _, error, seconds = self._execute(build, log)
            self.built[point.build] = error and f"{build.name} failed: {error} (see {log})"
            print(f"{build.name}: {error or 'done'} ({seconds:.0f} s)", flush=True)
        return self.built.get(point.build, "")

    def _measure(self, suite: str, point: Point) -> None:
        """Runs one point and writes its result, with the figures until then if the end of the run cuts it off."""
        if time.monotonic() > self.end_s:
            self.counts[NOT_RUN] += 1
            return
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        figures, error, seconds = self._execute(point, self._log_of(suite, point))
        if not error and not figures:
            error = "it printed no figures"
        status = FAILED if error else MEASURED
        if error == CUT_OFF:
            status = NOT_RUN
        self.counts[status] += 1
        write_result(
            self.folder,
            self._result(
                suite, point, status=status, error=error, figures=figures, seconds=round(seconds, 1), started=started
            ),
        )
        outcome = f"FAILED: {error}" if status == FAILED else error or status
        print(f"{suite}/{point.name}: {outcome} ({seconds:.0f} s)", flush=True)

    def _result(self, suite: str, point: Point, status: str = "", **fields: Any) -> Result:
        return Result(suite, point.name, status, command=list(point.command), **self.setting.as_json(), **fields)

    def _log_of(self, suite: str, point: Point) -> Path:
        return self.folder / suite / f"{point.name}.log"

    def _execute(self, point: Point, log_path: Path) -> tuple[list[Figures], str, float]:
        """Runs a command. Returns its figures, why it failed if it did, and the seconds it took."""
        command = [sys.executable if point.command[0] == "python" else point.command[0], *point.command[1:]]
        log_path.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        with open(log_path, "w") as log, tempfile.TemporaryFile("w+", errors="replace") as output:
            try:
                child = self._start(command, point, output, log)
            except OSError as error:
                return [], f"{command[0]} does not start: {error.strerror}", 0
            try:
                status = child.wait(min(point.limit_s, max(self.end_s - start, 0)))
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _kill(child)  # Together with its child processes.
                child.wait()
                with self.lock:
                    self.children.discard(child)
            seconds = time.monotonic() - start
            if self.is_stopped:
                raise Stopped
            output.seek(0)
            printed = output.read()
            log.write(f"{OUTPUT_MARK}{printed}" if printed else "")
        if status is None and time.monotonic() >= self.end_s:
            return point.read(printed), CUT_OFF, seconds
        if status is None:
            return point.read(printed), f"more than its limit of {point.limit_s:g} s", seconds
        return point.read(printed), _error_of(status, log_path) if status else "", seconds

    def _start(self, command: Sequence[str], point: Point, output: IO[str], log: IO[str]) -> subprocess.Popen[bytes]:
        with self.lock:
            if self.is_stopped:
                raise Stopped
            child = subprocess.Popen(
                command,
                cwd=ROOT / point.folder,
                env={**environment(self.jobs), **point.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                start_new_session=True,
                pass_fds=[self.lock_file.fileno()],
            )
            self.children.add(child)
            return child


def environment(jobs: int) -> dict[str, str]:
    """Returns the environment of points, in which Python finds the output of `build.py`.

    Points that run side by side share the processors.
    """
    threads = str(max(1, len(os.sched_getaffinity(0)) // jobs))
    shared = {} if jobs == 1 else {"TORCHINDUCTOR_COMPILE_THREADS": threads, "OMP_NUM_THREADS": threads}
    paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(ROOT / "build" / "gpu" / "inductor"),
        **shared,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONWARNINGS": "ignore",
    }


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Ends a process and its child processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _error_of(status: int, log_path: Path) -> str:
    """Returns a line on why a process failed: its exception, a compiler's first error, or the last that it printed."""
    log, _, output = log_path.read_text(errors="replace").partition(OUTPUT_MARK)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    exceptions = [
        line for line in lines if re.match(r"([\w.]*(Error|Exception|Failed|Unsupported)\b|what\(\): )", line)
    ]
    errors = [line for line in lines if "error:" in line]
    verdicts = [line for line in output.splitlines() if line.strip() and not line.startswith("{")]
    reasons = [*exceptions[-1:], *errors[:1], *verdicts[-1:], *lines[-1:], "it printed no reason"]
    end = f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
    return f"{end}: {reasons[0].removeprefix('what(): ').strip()}"[:ERROR_LENGTH]
