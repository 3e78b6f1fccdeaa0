#!/usr/bin/env python3
"""Checks C++ sources by clang-tidy: tools/tidy.py [--jobs N] [--except BUILD_FOLDER] BUILD_FOLDER

It checks the sources below headroom/ and python/ that a build folder compiles. `--except` leaves out those that another
build folder compiles too. A file that was found clean is not checked again until it, a header of this project that it
includes, its compile command, .clang-tidy, clang-tidy or torch changes. build/lint remembers what was clean.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLANG_TIDY = "clang-tidy-14"
FOLDERS = ("headroom", "python")
REMEMBERED = ROOT / "build" / "lint"


def compile_commands(build: Path) -> dict[Path, str]:
    """Returns the compile commands of a build folder by source, of the sources that are checked."""
    entries = json.loads((build / "compile_commands.json").read_text())
    commands = {Path(entry["file"]): entry["command"] for entry in entries}
    return {file: commands[file] for file in sorted(commands) if file.is_relative_to(ROOT) and is_checked(file)}


def is_checked(file: Path) -> bool:
    return file.relative_to(ROOT).parts[0] in FOLDERS


@functools.cache
def included_by(file: Path) -> tuple[Path, ...]:
    """Returns the headers of this project that a file itself includes."""
    names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read_text(), re.MULTILINE)
    candidates = (folder / name for name in names for folder in (file.parent, ROOT))
    return tuple(header.resolve() for header in candidates if header.is_file())


def with_headers(file: Path) -> list[Path]:
    """Returns a file and all headers of this project that it includes, in a fixed order."""
    found, waiting = {file}, [file]
    while waiting:
        new = set(included_by(waiting.pop())) - found
        found |= new
        waiting += new
    return sorted(found)


@functools.cache
def torch_version(include: str) -> str:
    """Returns the text of the header with torch's version, if this include folder has it."""
    header = Path(include) / "torch" / "headeronly" / "version.h"
    return header.read_text() if header.is_file() else ""


def key_of(file: Path, command: str, tool: str) -> str:
    """Returns a hash of everything that decides what clang-tidy says of a file."""
    parts = [tool, (ROOT / ".clang-tidy").read_text(), command]
    parts += [torch_version(include) for include in re.findall(r"-(?:isystem |I)(\S+)", command)]
    parts += [f"{part}\0{part.read_text()}" for part in with_headers(file)]
    return hashlib.sha256("\0\0".join(parts).encode()).hexdigest()


def check(file: Path, build: Path, key: str) -> bool:
    """Checks a file, prints what clang-tidy says of it, and remembers its key if it is clean."""
    name = file.relative_to(ROOT).as_posix()
    memory = REMEMBERED / name.replace("/", "-")
    if memory.is_file() and memory.read_text() == key:
        return True
    memory.unlink(missing_ok=True)
    start = time.monotonic()
    run = subprocess.run(
        [CLANG_TIDY, "-p", str(build), "--quiet", str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if run.returncode == 0:
        memory.write_text(key)
        print(f"clang-tidy: {name} in {time.monotonic() - start:.0f} s", flush=True)
        return True
    errors = "\n".join(line for line in run.stderr.splitlines() if not line.endswith("warnings generated."))
    print(f"{run.stdout}{errors}", flush=True)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--except", dest="other", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    commands = compile_commands(options.build)
    others = compile_commands(options.other) if options.other else {}
    files = [file for file in commands if file not in others]
    if not files:
        print(f"{options.build} compiles nothing to check", file=sys.stderr)
        return 1
    tool = subprocess.run([CLANG_TIDY, "--version"], capture_output=True, text=True, check=True).stdout
    REMEMBERED.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        clean = pool.map(lambda file: check(file, options.build, key_of(file, commands[file], tool)), files)
        return 0 if all(list(clean)) else 1


if __name__ == "__main__":
    sys.exit(main())
