"""The contents of docs/ are right: commands print what is shown (except planning times), C++ compiles or equals the
example project has, messages and links exist, and the site builds."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headroom_command import ROOT, headroom
from reports import REQUIRED
from transcripts import PAGES, run, transcripts, without_solve_time

DOCS = sorted((ROOT / "docs").rglob("*.md"))
OTHER_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "headroom").rglob("README.md"))]
SOURCES = [path for folder in ("headroom", "report") for path in (ROOT / folder).rglob("*.cpp")]


def blocks_of(path: Path, language: str) -> Iterator[str]:
    for block_language, block in re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL):
        if block_language == language:
            yield block


def name(path: Path) -> str:
    return str(path.relative_to(ROOT / "docs"))


@pytest.mark.parametrize("path", [path for path in PAGES if transcripts(path)], ids=lambda path: path.name)
def test_commands_print_what_is_shown(path: Path, tmp_path: Path) -> None:
    """Runs the blocks of a page in order, because a block reads the plan of an earlier one."""
    for command, shown in transcripts(path):
        done = run(command, tmp_path)
        assert done.returncode == 0, done.stderr
        assert without_solve_time(done.stdout) == without_solve_time(shown), f"{command}: see tools/transcripts.py"


def test_transcripts_are_found() -> None:
    assert len(transcripts(ROOT / "README.md")) >= 1
    assert sum(len(transcripts(path)) for path in PAGES) >= 18


@pytest.mark.parametrize("path", [path for path in DOCS if list(blocks_of(path, "sh"))], ids=name)
def test_commands_work(path: Path, tmp_path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    options = (ROOT / "headroom" / "cli" / "train_main.cpp").read_text()
    for command, _ in transcripts(path):  # Writes the files that the others read.
        run(command, tmp_path)
    for line in (line for block in blocks_of(path, "sh") for line in block.splitlines()):
        words = shlex.split(line, comments=True)
        if words[0] == "make":
            assert words[1] in targets
        elif words[0] == "build/headroom-train":
            assert all(f'"{word}"' in options for word in words if word.startswith("--"))
        else:
            done = run(shlex.join(words), tmp_path)
            if "without the report page" in done.stderr and not REQUIRED:
                pytest.skip("headroom was built without the report page")
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", [path for path in DOCS if list(blocks_of(path, "cpp"))], ids=name)
def test_cpp(path: Path, tmp_path: Path) -> None:
    """Compiles blocks with includes. The lines of other blocks must be in the example project, which a test builds."""
    project = (ROOT / "examples" / "cmake_project" / "main.cpp").read_text().splitlines()
    for block in blocks_of(path, "cpp"):
        if "#include" in block:
            source = tmp_path / "block.cpp"
            source.write_text(block)
            command = ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{ROOT}", str(source)]
            done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8", timeout=120)
            assert done.returncode == 0, done.stderr
        else:
            missing = [line for line in block.splitlines() if line.strip() and line not in project]
            assert missing == []


def test_messages_are_those_of_the_program() -> None:
    # What installers say is in a table of its own.
    page = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## Installing the Python package")[0]
    rows = re.findall(r"^\| (.*?) \|", page, re.MULTILINE)
    messages = [message for row in rows for message in re.findall(r"^`(.*?)`$", row)]
    assert len(messages) > 10
    sources = "".join(path.read_text() for path in SOURCES)
    # A string of the program may continue in the next line of the source.
    sources = re.sub(r'"\s*\n\s*"', "", sources)
    missing = [part for message in messages for part in message.split("\u2026") if part.strip() not in sources]
    assert missing == []


def test_every_planner_has_its_page() -> None:
    named = set(re.findall(r"^(\S+)", headroom("planners").stdout, re.MULTILINE)) - {"planner"}
    assert named == {path.stem for path in (ROOT / "docs" / "planners").glob("*.md")} - {"index", "adding"}


@pytest.mark.parametrize("path", [*DOCS, *OTHER_PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_links(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if not link.startswith(("http://", "https://", "#")):
            assert (path.parent / link.partition("#")[0]).exists(), link


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    for path in DOCS:
        assert (tmp_path / "site" / path.relative_to(ROOT / "docs").with_suffix(".html")).exists()
