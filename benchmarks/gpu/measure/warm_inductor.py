"""Fills Inductor's cache with the code of several points of compile_curve.py in parallel.

    python benchmarks/gpu/measure/warm_inductor.py MODEL [POINT ...] [--exact POINT ...] [--jobs 10]

Plans depend on what calls cost, so that is measured first, with nothing beside it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CURVE = Path(__file__).with_name("compile_curve.py")
COMPILE_THREADS = 3  # Of each process.


def curve(*arguments: str) -> int:
    """Runs compile_curve.py, with its output on standard error."""
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(COMPILE_THREADS)}
    command = [sys.executable, "-W", "ignore", CURVE, *arguments]
    return subprocess.run(command, env=environment, stdout=sys.stderr, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("points", nargs="*", metavar="POINT")
    parser.add_argument("--exact", nargs="*", default=[], metavar="POINT")
    parser.add_argument("--jobs", type=int, default=10, help="processes side by side")
    options = parser.parse_args()
    failed = curve(options.model, "costs") != 0
    tasks = [(options.model, "--turns", "1", point) for point in options.points]
    tasks += [(options.model, "--turns", "1", "--exact", point) for point in options.exact]
    with ThreadPoolExecutor(options.jobs) as pool:
        failed += sum(status != 0 for status in pool.map(lambda task: curve(*task), tasks))
    # Repeats choices of kernels that were timed while other processes ran.
    if folder := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        for path in Path(folder).rglob("*.best_config"):
            path.unlink(missing_ok=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
