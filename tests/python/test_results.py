"""docs/results/gpu: taken from runs of benchmarks/gpu, and quoted by documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import results

GIB = 1 << 30
PLAIN = {"variant": "plain", "base": "plain", "peak_bytes": 10 * GIB, "step_ms": 60.0, "time_ratio": 1.0}
OURS = {"variant": "eager:0.5x", "base": "plain", "peak_bytes": 5 * GIB, "step_ms": 80.0, "time_ratio": 1.2}


@pytest.fixture
def suites() -> dict[str, Any]:
    return results.load_suites(results.SUITES)


def write(folder: Path, commit: str, *figures: dict[str, Any]) -> None:
    """Writes a result as run.py does."""
    stored = {"suite": "torch", "point": "resnet50-eager", "status": "measured", "figures": figures, "commit": commit}
    path = folder / "torch" / "resnet50-eager.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored))


def test_results_are_kept_with_tables_charts_and_what_has_changed(tmp_path: Path, suites: dict[str, Any]) -> None:
    source, target = tmp_path / "run", tmp_path / "docs"
    write(source, "first", PLAIN, OURS)
    assert results.publish(source, target, suites) == ["torch"]
    text = (target / "torch.md").read_text()
    assert "headroom at first" in text
    assert "Changed" not in text
    assert (target / "torch-resnet50.svg").exists()
    assert "accuracy.md" in [path.name for path in target.iterdir()]  # It reads `torch`.
    write(source, "second", PLAIN, OURS | {"time_ratio": 1.1})
    results.publish(source, target, suites)
    text = (target / "torch.md").read_text()
    assert "headroom at second" in text
    assert "since first" in text
    assert "| resnet50-eager, eager:0.5x | ms | 72.0 | 66.0 | -8 % |" in text
    assert "plain | GiB |" not in text  # It has not changed.


def test_documents_quote_figures(tmp_path: Path, suites: dict[str, Any]) -> None:
    write(tmp_path / "run", "first", PLAIN, OURS)
    results.publish(tmp_path / "run", tmp_path / "docs", suites)
    stored = results.load_all(tmp_path / "docs", suites)
    text = (
        "takes <!--= gib torch/resnet50/eager:0.5x/peak_bytes -->?<!--/--> GiB, "
        "<!--= more torch/resnet50/eager:0.5x/ms torch/resnet50/plain/ms --><!--/--> more time, "
        "<!--= share torch/resnet50/eager:0.5x/peak_bytes torch/resnet50/plain/peak_bytes -->9<!--/-->"
    )
    quoted = results.quote(text, stored)
    assert "-->5.00<!--/--> GiB" in quoted
    assert "-->20 %<!--/--> more" in quoted
    assert quoted.endswith("-->50 %<!--/-->")
    assert results.quote(quoted, stored) == quoted
    for name in ("torch/resnet50/eager:0.4x/ms", "torch/vgg19/plain/ms", "nonsense"):
        with pytest.raises(results.Unknown, match=name.split("/")[-1]):
            results.quote(f"<!--= ms {name} -->1<!--/-->", stored)


def test_the_documents_have_the_figures_of_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert results.write_figures(check=True) == 0, capsys.readouterr().err
