"""Compares the results of a program through headroom with those of plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from programs.prelude import IN_PLACE, Log

# Traits of programs whose arithmetic differs when traced, with the reason. Values of such a program may differ from the
# plain ones by rounding, but with every budget they must have the bits that they have with "1x".
# (Backend aot_eager is no reference for these: it reads buffers in backward after they have been updated.)
TRACED_ARITHMETIC = {
    "sums in another order": "A graph hands on one gradient of a tensor that it uses several times; plain PyTorch adds "
    "the gradients from inside and outside of the graph one by one.",
    "expanded gradient": "AOTAutograd makes the gradient of an output contiguous; plain PyTorch hands on the expanded "
    "one of a sum, for which kernels add in another order.",
    "transposed": "AOTAutograd gives the gradient of an output the output's layout; plain PyTorch hands on another "
    "one, for which kernels take other elements by vector instructions, which round differently.",
    "scaled addition": "Dynamo writes add_(x, alpha=a) as add_(a * x), which a GPU rounds once more.",
    "autocast": "The gradient of a weight that is used twice is summed in bf16.",
}
# Largest difference of a tensor's elements that is rounding, as a share of the largest element.
ROUNDING = {"float64": 1e-8, "float32": 2e-5, "bfloat16": 3e-2}
# Training in which numbers are larger, or not finite, has diverged: its results depend on rounding.
DIVERGED = 1e8


@dataclass
class Failure:
    """A difference: its kind, its place, and the budget."""

    kind: str  # "value", "rounding", "error", "missing error", "leak", "peak", "crash" or "timeout"
    detail: str
    budget: str = ""
    is_refusal: bool = False  # the budget cannot be kept

    def is_like(self, other: Failure) -> bool:
        """Returns whether it is of the same kind with the same kind of budget."""
        return (self.kind, self.kind_of_budget()) == (other.kind, other.kind_of_budget())

    def kind_of_budget(self) -> str:
        return self.budget if self.budget == "1x" else self.budget[-1:]

    def __str__(self) -> str:
        return f"{self.kind} ({self.budget}): {self.detail}"


@dataclass(frozen=True)
class Rules:
    """Defines which values are equal."""

    tolerance: float = 0.0  # as a share of the largest element; 0: the same bits
    may_refuse_change: bool = False  # to raise where the user changes a tensor, though plain PyTorch does not
    may_accept_change: bool = False  # the same where plain PyTorch raises: a rerun has its own copy of a result
    may_be_zeros: bool = False  # in the place of no gradient
    noise: Mapping[tuple[int, str], float] = field(default_factory=dict)  # that values have anyway, by step and name

    def is_same(self, expected: Any, actual: Any, scale: float, noise: float = 0.0) -> bool:
        """Returns whether two logged values agree; `scale` is the largest number that was logged in their step."""
        if expected is None and self.may_be_zeros:
            return actual is None or not np.any(actual)
        if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
            return type(expected) is type(actual) and expected == actual
        if expected.shape != actual.shape or expected.dtype != actual.dtype:
            return False
        if self.tolerance == 0 or expected.dtype.kind != "f":
            return np.array_equal(expected, actual, equal_nan=expected.dtype.kind == "f")
        # Gradients that are zero but for rounding have no scale of their own.
        floor = min(self.tolerance, ROUNDING["float32"]) * (0.05 + 0.5 * scale)
        atol = self.tolerance * largest(expected) + floor + noise
        return np.allclose(expected, actual, rtol=0, atol=atol, equal_nan=True)


def largest(value: Any) -> float:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return 0.0
    return float(np.max(np.abs(value), initial=0, where=np.isfinite(value)))


def is_finite(value: Any) -> bool:
    return not isinstance(value, np.ndarray) or value.dtype.kind != "f" or bool(np.all(np.isfinite(value)))


def describe(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)
    return f"{value.dtype}{list(value.shape)} {np.array2string(value.ravel()[:4], precision=6)}"


def entries_of(log: Log, step: int) -> list[tuple[str, Any]]:
    return [(name, value) for at, name, value in log.entries if at == step]


def step_difference(expected: Log, actual: Log, step: int, rules: Rules) -> Failure | None:
    """Returns the first difference in a step without an error."""
    left, right = entries_of(expected, step), entries_of(actual, step)
    if [name for name, _ in left] != [name for name, _ in right]:
        return Failure("value", f"step {step}: {[n for n, _ in left]} logged, found {[n for n, _ in right]}")
    scale = max([largest(value) for _, value in left], default=0.0)
    if rules.tolerance > 0 and (scale > DIVERGED or not all(is_finite(value) for _, value in left)):
        return None
    for (name, first), (_, second) in zip(left, right, strict=True):
        if not rules.is_same(first, second, scale, rules.noise.get((step, name), 0.0)):
            return Failure("value", f"step {step}: {name} is {describe(second)}, expected {describe(first)}")
    return None


def distances(log: Log, other: Log) -> dict[tuple[int, str], float]:
    """Returns the largest difference of each logged tensor of numbers in two runs, by step and name."""
    values = {(step, name): value for step, name, value in other.entries}
    result = {}
    for step, name, value in log.entries:
        moved = values.get((step, name))
        if isinstance(value, np.ndarray) and isinstance(moved, np.ndarray) and value.shape == moved.shape:
            result[step, name] = largest(value - moved) if value.dtype.kind == "f" else 0.0
    return result


def difference(expected: Log, actual: Log, rules: Rules, rounding: Rules) -> Failure | None:
    """Returns the first difference, as "rounding" if its whole step is the same but for rounding.

    In a step that raises only the errors are compared.
    """
    for step in range(-1, max(expected.step, actual.step) + 1):
        kinds = [log.errors.get(step, ("", ""))[0] for log in (expected, actual)]
        if kinds[0] != kinds[1]:
            if kinds[1] == IN_PLACE and rules.may_refuse_change:
                return None
            if kinds == [IN_PLACE, ""] and rules.may_accept_change:
                return None
            if kinds[1] == "":
                return Failure("missing error", f"step {step}: plain raises {expected.errors[step][1]}")
            detail = f"step {step}: {actual.errors[step][1]}, plain: {kinds[0] or 'no error'}"
            return Failure("error", detail, is_refusal=kinds[1] == "BudgetError")
        if kinds[0]:
            continue
        failure = step_difference(expected, actual, step, rules)
        if failure is not None:
            is_rounding = step_difference(expected, actual, step, rounding) is None
            return replace(failure, kind="rounding") if is_rounding else failure
    return None
