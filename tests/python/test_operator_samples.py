"""A part of PyTorch's operator and module samples, trained through headroom; `make test-ops` trains all of them."""

from __future__ import annotations

import argparse
import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
pytest.importorskip("expecttest", reason="PyTorch's samples need it")

import operator_samples  # noqa: E402
from bits import difference  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")

# Every eighth operator in the order of names, so that each family has some. The seed chooses the samples.
PART, PARTS, SEED = 1, 8, 0


@pytest.fixture(scope="module")
def units() -> list[operator_samples.Unit]:
    return operator_samples.all_units("cpu")


def options(kernels: str) -> argparse.Namespace:
    return argparse.Namespace(seed=SEED, samples=1, only=[], kernels=kernels, device="cpu", verbose=False)


def test_gradients_of_operators_and_modules_are_those_of_plain_pytorch(
    units: list[operator_samples.Unit], capsys: pytest.CaptureFixture[str]
) -> None:
    part = operator_samples.part_of(units, PART, PARTS)
    tally = operator_samples.run_units(part, options("eager"))
    assert tally.verdicts["failed"] == 0, capsys.readouterr().out
    assert tally.verdicts["passed"] >= 0.9 * len(part)
    assert tally.reran >= 0.5 * len(part)


@pytest.mark.parametrize(
    "name", ["nn.functional.layer_norm float32", "nn.functional.dropout float32", "nn.GRUCell module"]
)
def test_gradients_with_inductor_are_close_to_those_of_plain_pytorch(
    units: list[operator_samples.Unit], name: str
) -> None:
    (unit,) = (unit for unit in units if unit.name == name)
    (sample,) = unit.samples(1, SEED)
    outcome = operator_samples.check_inductor(sample, "cpu", ["1x"])
    assert outcome.verdict == "passed", outcome.reason


def test_a_difference_of_one_bit_is_seen() -> None:
    tensor = torch.tensor([1.0, float("nan"), 0.0])
    assert difference(tensor.clone(), tensor) == ""
    for place, number in ((0, 1.0000001), (1, 1.0), (2, -0.0)):
        other = tensor.clone()
        other[place] = number
        assert "1 of 3 numbers differ" in difference(other, tensor)
    assert difference(None, torch.zeros(2)) == ""
    assert difference(None, torch.ones(2)) == "no gradient on one side"
    assert "for torch.float32" in difference(tensor.double(), tensor)


def test_a_wrong_gradient_and_a_leak_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = operator_samples.Sample(
        "twice", lambda x: (((x * 2).sin()).sum(), []), [torch.ones(4, requires_grad=True)]
    )
    assert operator_samples.check(sample, "eager", "cpu").verdict == "passed"
    right = operator_samples.run_once
    kept: list[torch.Tensor] = []

    def wrong(sample: operator_samples.Sample, function: object) -> operator_samples.Ran:
        ran = right(sample, function)
        if function is not sample.function:
            kept.append(torch.empty(1000))
            ran.tensors["gradient 0"] = ran.tensors["gradient 0"] + 1
        return ran

    monkeypatch.setattr(operator_samples, "run_once", wrong)
    outcome = operator_samples.check(sample, "eager", "cpu")
    assert outcome.verdict == "failed"
    assert "at 1x, gradient 0: 4 of 4 numbers differ" in outcome.reason
    assert "at the smallest, gradient 0: 4 of 4 numbers differ" in outcome.reason
    assert re.search(r"a step leaves \d{4} bytes", outcome.reason)
