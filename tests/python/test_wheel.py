"""The package as users get it: a wheel in an environment that has PyTorch and nothing else of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from headroom_command import ROOT

WHEEL = os.environ.get("HEADROOM_WHEEL")

torch = pytest.importorskip("torch")
if WHEEL is None:
    pytest.importorskip("headroom._C", reason="the Python package is not built")

# The flags of build/dev, and a folder as deep, so that ccache has every object.
LIKE_DEV = {"build-dir": "build/dev-wheel", "cmake.args": "--preset=dev", "cmake.build-type": "RelWithDebInfo"}

MODEL = """
import torch

torch.manual_seed(0)
blocks = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(8)]
model, inputs = torch.nn.Sequential(*blocks), torch.randn(512, 64)

def gradients_of(run):
    model.zero_grad()
    run(inputs).sum().backward()
    return [parameter.grad for parameter in model.parameters()]

def check(run):
    assert all(map(torch.equal, gradients_of(run), plain))

plain = gradients_of(model)
"""


def run(*command: str | Path, folder: Path) -> str:
    """Returns what a command prints that must succeed, without headroom's build folder on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"XDG_CACHE_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """$HEADROOM_WHEEL, or a wheel that is built here."""
    if WHEEL is not None:
        return Path(WHEEL).resolve()
    folder = tmp_path_factory.mktemp("wheels")
    settings = [f"--config-settings={name}={value}" for name, value in LIKE_DEV.items()]
    options = ["--no-build-isolation", "--no-deps", "--no-cache-dir", "--wheel-dir", folder, *settings]
    run(sys.executable, "-m", "pip", "wheel", *options, ROOT, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the wheel is installed, and which reads PyTorch from this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    found = folder / "bin" / "python"
    site = Path(run(found, "-c", "import site; print(site.getsitepackages()[0])", folder=folder).strip())
    (site / "torch.pth").write_text(str(Path(torch.__file__).parents[1]))
    run(sys.executable, "-m", "pip", "--python", found, "install", "--no-cache-dir", "--no-index", wheel, folder=folder)
    return found


def test_its_name_and_contents(wheel: Path) -> None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert wheel.name.startswith(f"headroom-0.1.0-{tag}-{tag}-linux_")
    names = set(zipfile.ZipFile(wheel).namelist())
    information = {name for name in names if ".dist-info/" in name}
    (module,) = (name for name in names if name.endswith(".so"))
    assert module.startswith(f"headroom/_C.cpython-{tag[2:]}-")
    files = [file for file in (ROOT / "python" / "headroom").rglob("*") if file.suffix in {".py", ".pyi", ".typed"}]
    assert names - information - {module} == {str(file.relative_to(ROOT / "python")) for file in files}
    assert {Path(name).name for name in information} >= {"LICENSE", "NOTICE", "entry_points.txt"}


def test_it_trains_within_a_budget(python: Path, tmp_path: Path) -> None:
    script = f"import headroom\n{MODEL}\ncheck(headroom.compile(model, budget='0.6x'))\nprint(headroom.__file__)"
    printed = run(python, "-c", script, folder=tmp_path)
    assert Path(printed.strip()).is_relative_to(python.parents[1])


def test_it_is_a_backend_of_torch_compile(python: Path, tmp_path: Path) -> None:
    """The entry point is found without an import of headroom."""
    script = f"{MODEL}\ncheck(torch.compile(model, backend='headroom', options={{'budget': '0.9x'}}))"
    run(python, "-c", script, folder=tmp_path)


def test_it_writes_the_report_page(python: Path, tmp_path: Path) -> None:
    script = f"import headroom\n{MODEL}\nheadroom.plan(model, inputs, budget='0.6x').report('plan.html')"
    run(python, "-c", script, folder=tmp_path)
    assert "uPlot" in (tmp_path / "plan.html").read_text()


def test_it_refuses_another_pytorch(python: Path, tmp_path: Path) -> None:
    script = """
import torch
torch.__version__ = "2.9.1"
try:
    import headroom
except ImportError as error:
    print(error)
"""
    printed = run(python, "-c", script, folder=tmp_path)
    assert printed.startswith("headroom was built for PyTorch 2.")
    assert "and 2.9.1 is installed; build it again with `pip install --no-build-isolation .`" in printed
