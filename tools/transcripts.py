"""Transcripts of `headroom` in the documentation: blocks with `$ build/headroom ...` and what it prints.

Run as a program it runs all commands again, by build/headroom or $HEADROOM_BIN, and writes what they print now where
more than the time of planning differs.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Blocks of other commands, such as `build/headroom-train`, show times that no one can repeat; BLOCK leaves them out.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A line that ends with how long planning or placing took, in the tables of `plan`, `place` and `compare`.
SOLVED = re.compile(r"planned in |placed in |[a-z-]+ +(optimal|feasible|infeasible|not-found|timeout) ")
BLOCK = re.compile(r"^```\n(\$ build/headroom .*?\n)```$", re.MULTILINE | re.DOTALL)


def split_block(block: str) -> list[tuple[str, str]]:
    """The commands of a block, each with what is shown below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def transcripts(page: Path) -> list[tuple[str, str]]:
    return [part for block in BLOCK.findall(page.read_text()) for part in split_block(block)]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Files that it names without a folder are in `folder`."""
    words = shlex.split(command)
    if words[0] != "build/headroom":
        raise ValueError(f"not a command that can be run here: {command}")
    words[0] = os.environ.get("HEADROOM_BIN", str(ROOT / "build" / "headroom"))
    return subprocess.run(
        [str(folder / word) if re.fullmatch(r"[\w-]+\.(json|html)", word) else word for word in words],
        check=False,
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        timeout=120,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )


def without_solve_time(text: str) -> list[str]:
    """What does not differ from one machine to the next. The list of planners that do not apply may be left out."""
    lines = text.split("\n\nnot applicable to this")[0].rstrip().splitlines()
    return [re.sub(r"\s+[\d.]+ ms$", "", line) if SOLVED.match(line) else line.rstrip() for line in lines]


def update(page: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:

        def again(match: re.Match[str]) -> str:
            text = ""
            for command, shown in split_block(match.group(1)):
                done = run(command, Path(folder))
                if done.returncode != 0:
                    sys.exit(f"{page}: {command}: {done.stderr}")
                same = without_solve_time(done.stdout) == without_solve_time(shown)
                text += f"$ {command}\n{shown if same else done.stdout}"
            return f"```\n{text}```"

        before = page.read_text()
        after = BLOCK.sub(again, before)
    page.write_text(after)
    return before != after


if __name__ == "__main__":
    for page in PAGES:
        if update(page):
            print(f"{page.relative_to(ROOT)}: updated")
