#!/usr/bin/env python3
"""Bundles report/src into one HTML file that requests nothing: report/build.py [OUT.html]

It needs no node: esbuild is one executable. esbuild and uPlot are fetched from npm's registry (NPM_CONFIG_REGISTRY
names another one), in the versions of package-lock.json and checked by its hashes, and are kept beside OUT.html, which
is build/report/template.html by default. Nothing happens if OUT.html was made from the same sources already.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

REPORT = Path(__file__).resolve().parent
LOCK = REPORT / "package-lock.json"
BROWSERS = "chrome123,firefox120,safari17.5"


def fetch_package(name: str, packages: Path) -> Path:
    """Returns the folder of an npm package in the folder `packages`, to which it is fetched if it is missing."""
    locked = json.loads(LOCK.read_text(encoding="utf-8"))["packages"].get(f"node_modules/{name}")
    if locked is None:
        raise OSError(f"package-lock.json has no package {name}")
    base, version = name.split("/")[-1], locked["version"]
    folder = packages / f"{base}-{version}"
    if folder.exists():
        return folder / "package"
    registry = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
    url = f"{registry}/{name}/-/{base}-{version}.tgz"
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            data = response.read()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise OSError(f"cannot fetch {url}: {error}") from error
    algorithm, _, digest = locked["integrity"].partition("-")
    if hashlib.new(algorithm, data).digest() != base64.b64decode(digest):
        raise OSError(f"{url} is not the file that package-lock.json expects")
    packages.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=packages) as scratch, tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and newer have it.
        unpacked = Path(scratch) / "unpacked"
        archive.extractall(unpacked)
        if not folder.exists():
            unpacked.rename(folder)
    return folder / "package"


def bundle(packages: Path) -> tuple[str, str]:
    """Returns the page's script and style."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    esbuild = fetch_package(f"@esbuild/{sys.platform}-{machine}", packages) / "bin" / "esbuild"
    uplot = fetch_package("uplot", packages)
    notice = (uplot / "LICENSE").read_text(encoding="utf-8").strip()
    options = ["--bundle", "--minify", "--format=iife", "--charset=ascii", "--log-level=warning"]
    options += [f"--target={BROWSERS}", f"--alias:uplot={uplot}", f"--banner:js=/*! uPlot\n{notice}\n*/"]
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([esbuild, "src/main.ts", f"--outdir={out}", *options], cwd=REPORT, check=True)
        script, style = ((Path(out) / f"main.{end}").read_text(encoding="utf-8").strip() for end in ("js", "css"))
    if re.search("</script|<!--", script, re.IGNORECASE) or re.search("</style", style, re.IGNORECASE):
        raise OSError("the bundle would end its own block")
    return script, style


def hash_sources() -> str:
    """Returns a hash of all that the page is made from."""
    sources = hashlib.sha256()
    for file in sorted([Path(__file__), LOCK, REPORT / "tsconfig.json", *(REPORT / "src").iterdir()]):
        sources.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return sources.hexdigest()


def build(out: Path, sources: str) -> None:
    """Writes the page, which has the hash of its sources."""
    script, style = bundle(out.parent / "packages")
    # Only this very script runs, whatever a graph's names are.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = (REPORT / "src" / "page.html").read_text(encoding="utf-8")
    for place, text in (("script-hash", digest), ("sources", sources), ("style", style), ("script", script)):
        page = page.replace(f"{{{{{place}}}}}", text)
    part = out.with_suffix(f".{os.getpid()}")
    part.write_text(page, encoding="utf-8")
    part.replace(out)
    print(f"{out}: {len(page)} characters")


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else REPORT.parent / "build" / "report" / "template.html").resolve()
    sources = hash_sources()
    try:
        if not out.exists() or sources not in out.read_text(encoding="utf-8"):
            build(out, sources)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"report/build.py: {error}")


if __name__ == "__main__":
    main()
