"""The setting of measurements: the machine, its GPU, the versions of packages and of headroom."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.suite import ROOT

# Folders whose files affect measurements.
SOURCES = ("headroom", "python", "benchmarks/gpu", "tests/python")
PACKAGES = ("torch", "triton", "torchvision", "transformers", "timm")

# Runs in a separate process, so that the harness neither loads PyTorch nor takes memory of the GPU.
PROBE = """
import json, torch
found = {"cuda": torch.version.cuda}
if torch.cuda.is_available():
    one = torch.cuda.get_device_properties(0)
    found["gpu"] = {"name": one.name, "memory_gib": round(one.total_memory / 2**30, 1)}
elif torch.version.cuda is None:
    found["missing"] = f"PyTorch {torch.__version__} is built without CUDA"
else:
    found["missing"] = "there is none"
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Setting:
    """Everything that a result depends on, except the command of the point."""

    commit: str
    versions: dict[str, str]
    machine: dict[str, Any]
    gpu: dict[str, Any] | None
    gpu_missing: str = ""  # Why there is no GPU.

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        del fields["gpu_missing"]
        return fields


def find_setting(*, with_gpu: bool) -> Setting:
    """Returns the setting of the machine, with its GPU if `with_gpu`."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    properties: dict[str, Any] = probe() if with_gpu else {}
    if properties.get("cuda"):
        versions["cuda"] = properties["cuda"]
    return Setting(commit(), versions, machine(), properties.get("gpu"), properties.get("missing", ""))


def probe() -> dict[str, Any]:
    """Returns the properties of the GPU that PyTorch finds."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    lines = done.stderr.strip().splitlines()
    return {"missing": f"PyTorch does not start: {lines[-1] if lines else f'exit status {done.returncode}'}"}


def machine() -> dict[str, Any]:
    def first(path: str, key: str) -> str:
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            return ""
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")

    memory_kib = first("/proc/meminfo", "MemTotal").split()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": first("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory_kib[0]) / 2**20, 1) if memory_kib else None,
    }


def commit() -> str:
    """Returns the commit, with a hash of the sources if they have changed since or there is no git."""
    head = git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return f"files-{hash_of_sources()}"
    return f"{head}+{hash_of_sources()}" if git("status", "--porcelain", "--", *SOURCES) else head


def git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def hash_of_sources() -> str:
    whole = hashlib.sha256()
    for path in sorted(sources()):
        whole.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()[:8]


def sources() -> Iterator[Path]:
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".cpp", ".h", ".in"):
                yield path
