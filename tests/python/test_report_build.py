"""report/build.py: what it does without npm's registry, and with a wrong one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from headroom_command import ROOT
from reports import REQUIRED


def build(out: Path, registry: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "report" / "build.py", out],
        check=False,
        env={**os.environ, "NPM_CONFIG_REGISTRY": registry},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


def test_a_registry_that_cannot_be_reached(tmp_path: Path) -> None:
    out = tmp_path / "report" / "page.html"
    done = build(out, tmp_path.as_uri())
    assert done.returncode == 1
    assert re.fullmatch(r"report/build\.py: cannot fetch file://\S+/@esbuild/\S+\.tgz: .*No such file.*\n", done.stderr)
    assert not out.parent.exists()


def test_a_registry_with_other_files(tmp_path: Path) -> None:
    tried = re.search(r"file://(\S+\.tgz)", build(tmp_path / "page.html", tmp_path.as_uri()).stderr)
    assert tried is not None
    other = Path(tried[1])
    other.parent.mkdir(parents=True)
    other.write_bytes(b"something else")
    done = build(tmp_path / "page.html", tmp_path.as_uri())
    assert done.returncode == 1
    assert done.stderr.endswith(f"{tried[0]} is not the file that package-lock.json expects\n")


def test_a_page_is_built_again_only_from_other_sources(tmp_path: Path) -> None:
    page = ROOT / "build" / "report" / "template.html"
    if not page.exists() and not REQUIRED:
        pytest.skip("the report page is not built")
    out = tmp_path / "page.html"
    text = page.read_text()
    out.write_text(text)
    done = build(out, tmp_path.as_uri())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    sources = re.findall('<meta name="headroom-sources" content="([0-9a-f]{64})">', text)
    out.write_text(text.replace(*sources, "0" * 64))
    assert "cannot fetch" in build(out, tmp_path.as_uri()).stderr
