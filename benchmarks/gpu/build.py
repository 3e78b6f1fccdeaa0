"""Compiles the dependencies of the suites against the PyTorch of the running Python, without CMake.

    python benchmarks/gpu/build.py python      the Python package's C++ side, into python/headroom/_C.so
    python benchmarks/gpu/build.py programs    train_check and hong, into build/gpu; for PyTorch with CUDA

Needs g++ and the headers of nlohmann-json: the system's, or those in .cache/include. Objects are compiled side by side
and used again as long as their sources, headers and options stay the same.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "gpu"
# Folders of headroom/ that the Python package and the programs do not need.
NOT_IN_PYTHON = ("cli", "train", "zoo")
NOT_IN_PROGRAMS = ("cli", "report")
PROGRAMS = ("train_check", "hong")


class BuildError(Exception):
    """Something is missing, or a command failed."""


@dataclass
class Torch:
    """The installed PyTorch, found without importing it."""

    folder: Path
    version: str
    cuda: str | None

    @staticmethod
    def find() -> Torch:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            raise BuildError("torch is not installed")
        folder = Path(spec.origin).parent
        version = runpy.run_path(str(folder / "version.py"))
        return Torch(folder, version["__version__"], version["cuda"])

    def cuda_folders(self) -> list[Path]:
        """Returns folders that can have CUDA's headers and libraries: the toolkit's, and those of pip's packages."""
        packages = self.folder.parent / "nvidia"
        folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")), packages / "cuda_runtime"]
        return [folder for folder in [*folders, *sorted(packages.glob("cu[0-9]*"))] if folder.is_dir()]


@dataclass
class Build:
    """Compiles objects and links them."""

    torch: Torch
    objects: Path = BUILD / "objects"
    hashes: dict[Path, str] = field(default_factory=dict)

    @cached_property
    def options(self) -> list[str]:
        folders = [
            ROOT / ".cache" / "include",
            self.torch.folder / "include",
            self.torch.folder / "include" / "torch" / "csrc" / "api" / "include",
            *[folder / "include" for folder in self.torch.cuda_folders()],
            Path(sysconfig.get_paths()["include"]),
        ]
        options = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-DTORCH_EXTENSION_NAME=_C", f"-I{ROOT}"]
        return options + [f"-isystem{folder}" for folder in folders if folder.is_dir()]

    def compile(self, sources: Sequence[Path]) -> list[Path]:
        """Returns the object of each source. Compiles changed sources on all cores."""
        self.objects.mkdir(parents=True, exist_ok=True)
        stale = [source for source in sources if not self._is_fresh(source)]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            try:
                for number, source in enumerate(pool.map(self._compile, stale), 1):
                    print(f"[{number}/{len(stale)}] {_name_of(source)}", flush=True)
            except BuildError:
                pool.shutdown(cancel_futures=True)
                raise
        return [self._object_of(source) for source in sources]

    def link(self, target: Path, objects: Sequence[Path], options: Sequence[str]) -> None:
        """Links a program or library if an input has changed."""
        command = ["g++", *map(str, objects), "-o", str(target), *options]
        record = self.objects / f"{target.name}.link.json"
        state = [command, [self._hash(path) for path in objects]]
        if target.exists() and _read_json(record) == state:
            return
        _run(command)
        record.write_text(json.dumps(state))
        print(f"linked {target.relative_to(ROOT)}", flush=True)

    def _object_of(self, source: Path) -> Path:
        return self.objects / f"{_name_of(source).replace('/', '_')}.o"

    def _record_of(self, source: Path) -> Path:
        return self._object_of(source).with_suffix(".json")

    def _command(self, source: Path) -> list[str]:
        return ["g++", *self.options, "-c", str(source), "-o", str(self._object_of(source))]

    def _is_fresh(self, source: Path) -> bool:
        record = _read_json(self._record_of(source))
        if record is None or not self._object_of(source).exists():
            return False
        return record["state"] == self._state(source, record["files"])

    def _state(self, source: Path, files: Sequence[str]) -> list[str]:
        return [self.torch.version, *self._command(source), *[self._hash(Path(file)) for file in files]]

    def _compile(self, source: Path) -> Path:
        rules = self._object_of(source).with_suffix(".d")
        self._record_of(source).unlink(missing_ok=True)  # An interrupted compilation leaves an incomplete object.
        _run([*self._command(source), "-MMD", "-MF", str(rules)])
        # "object: source header \ header ...", of the project's own files.
        files = rules.read_text().partition(":")[2].replace("\\\n", " ").split()
        self._record_of(source).write_text(json.dumps({"files": files, "state": self._state(source, files)}))
        return source

    def _hash(self, path: Path) -> str:
        if path.suffix == ".o":
            return _hash_of(path)
        if path not in self.hashes:
            self.hashes[path] = _hash_of(path)
        return self.hashes[path]


def _name_of(source: Path) -> str:
    return str(source.relative_to(ROOT))


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _read_json(path: Path) -> object:
    return json.loads(path.read_text()) if path.exists() else None


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise BuildError(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        raise BuildError(done.stderr.strip() or f"{command[0]}: exit status {done.returncode}")


def sources(left_out: Sequence[str]) -> Iterator[Path]:
    """Yields the C++ sources below headroom/ except those of some folders."""
    for path in sorted((ROOT / "headroom").rglob("*.cpp")):
        if path.relative_to(ROOT / "headroom").parts[0] not in left_out:
            yield path


def report_page() -> Path:
    """Returns a source with an empty report page. Bundling the page takes npm, and measurements do not need it."""
    source = BUILD / "page_template.cpp"
    template = ROOT / "headroom" / "report" / "page_template.cpp.in"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(template.read_text().replace("@report_template@", ""))
    return source


def require_json() -> None:
    places = [ROOT / ".cache" / "include", Path("/usr/include"), Path("/usr/local/include")]
    if not any((place / "nlohmann" / "json.hpp").exists() for place in places):
        raise BuildError(
            "nlohmann/json.hpp is not installed (Debian: nlohmann-json3-dev); its folder can be put into .cache/include"
        )


def build_python(build: Build) -> None:
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise BuildError("Python.h is not installed (Debian: python3-dev)")
    bindings = sorted((ROOT / "python" / "bindings").glob("*.cpp"))
    objects = build.compile([report_page(), *sources(NOT_IN_PYTHON), *bindings])
    libraries = build.torch.folder / "lib"
    options = ["-shared", f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    options += ["-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10", "-lpthread"]
    build.link(ROOT / "python" / "headroom" / "_C.so", objects, options)


def build_programs(build: Build) -> None:
    if build.torch.cuda is None:
        raise BuildError(f"the programs need PyTorch with CUDA: {build.torch.version} is built without")
    folders = [folder / name for folder in build.torch.cuda_folders() for name in ("lib64", "lib")]
    runtime = next((path for folder in folders for path in sorted(folder.glob("libcudart.so*"))), None)
    if runtime is None:
        raise BuildError("libcudart.so is not found in /usr/local/cuda; CUDA_HOME names another folder")
    mains = [ROOT / "benchmarks" / "gpu" / "measure" / f"{program}.cpp" for program in PROGRAMS]
    *objects, _, _ = build.compile([*sources(NOT_IN_PROGRAMS), *mains])
    libraries = build.torch.folder / "lib"
    options = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", f"-Wl,-rpath,{runtime.parent}", "-Wl,--no-as-needed"]
    options += ["-ltorch", "-ltorch_cuda", "-ltorch_cpu", "-lc10", "-lc10_cuda", str(runtime), "-lpthread"]
    for program, main_source in zip(PROGRAMS, mains, strict=True):
        build.link(BUILD / program, [*objects, *build.compile([main_source])], options)


TARGETS = {"python": build_python, "programs": build_programs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", choices=TARGETS, metavar="TARGET", help=", ".join(TARGETS))
    options = parser.parse_args()
    try:
        require_json()
        build = Build(Torch.find())
        for target in options.targets:
            TARGETS[target](build)
    except BuildError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
