"""Processes that each examine one program after another, and are replaced if they crash or take too long."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait


@dataclass
class Report:
    """The report of a worker on one seed."""

    seed: int
    status: str
    kind: str = ""
    text: str = ""
    is_traced_arithmetic: bool = False


def examine(seed: int, arguments: argparse.Namespace) -> Report:
    from programs.generate import generate
    from programs.run import Options, run_program
    from programs.shrink import script_of, shrink

    options = Options(arguments.device, arguments.kernels, shuffles=arguments.shuffle)
    program = generate(seed)
    result = run_program(program, options)
    if result.status != "failed":
        return Report(seed, result.status, is_traced_arithmetic=result.is_traced_arithmetic)
    failure = result.failures[0]
    text = "\n".join(map(str, result.failures))
    if arguments.shrink_seconds > 0:
        program = shrink(program, options, failure, arguments.shrink_seconds)
        alike = [other for other in run_program(program, options).failures if other.is_like(failure)]
        failure = alike[0] if alike else failure
    text += f"\nsmallest: {failure}\n{program.source()}"
    if arguments.scripts is not None:
        arguments.scripts.mkdir(parents=True, exist_ok=True)
        path = arguments.scripts / f"{failure.kind.replace(' ', '_')}_{seed}.py"
        head = "\n".join(f"# {line}" for line in f"seed {seed}: {failure}".splitlines())
        path.write_text(f"{head}\n{script_of(program, options, failure.budget)}")
        text += f"script: {path}"
    return Report(seed, "failed", failure.kind, text)


def work(connection: Connection, arguments: argparse.Namespace) -> None:
    """Examines each seed of the queue, until None."""
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="headroom-programs-")
    import torch
    from torch._inductor import config

    import programs.run  # noqa: F401

    torch.set_num_threads(1)
    config.cpp.simdlen = 1  # Scalar kernels compile in half the time of vectorized ones.
    if arguments.device == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch._logging.set_logs(all=40)
    gc.collect()
    gc.freeze()
    while (seed := connection.recv()) is not None:
        connection.send(examine(seed, arguments))


class Worker:
    """A process that examines one seed at a time."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.seed: int | None = None
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, self.arguments), daemon=True)
        self.process.start()
        other.close()
        self.deadline = 0.0
        self.examined = 0

    def give(self, seed: int) -> None:
        # Dynamo and AOTAutograd keep state of every program, so that a new process is faster after many of them.
        if self.examined == self.arguments.programs_per_process:
            self.stop()
            self.start()
        self.examined += 1
        self.seed = seed
        self.deadline = time.monotonic() + self.arguments.timeout + 10 * self.arguments.shrink_seconds
        self.connection.send(seed)

    def take(self) -> Report | None:
        """Returns the report on the seed, if it is done."""
        report = None
        if self.connection.poll():
            try:
                report = self.connection.recv()
            except (EOFError, OSError):
                self.process.join()
                report = Report(self.seed, "failed", "crash", f"the process ended with {self.process.exitcode}")
        elif time.monotonic() > self.deadline:
            report = Report(self.seed, "failed", "timeout", f"more than {self.arguments.timeout} s")
        if report is not None:
            self.seed = None
            # A leak would change the budgets of later programs in the same process.
            if report.status == "failed":
                self.process.kill()
                self.process.join()
                self.start()
        return report

    def stop(self) -> None:
        self.connection.send(None)
        self.process.join()


def examine_all(seeds: Iterator[int], arguments: argparse.Namespace) -> Iterator[Report]:
    workers = [Worker(arguments) for _ in range(arguments.jobs)]
    for worker in workers:
        if (seed := next(seeds, None)) is not None:
            worker.give(seed)
    while busy := [worker for worker in workers if worker.seed is not None]:
        wait([worker.connection for worker in busy], timeout=1)
        for worker in busy:
            if (report := worker.take()) is not None:
                yield report
                if (seed := next(seeds, None)) is not None:
                    worker.give(seed)
    for worker in workers:
        worker.stop()
