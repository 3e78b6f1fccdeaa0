"""Compares what a program computed through headroom with what it computes plainly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from programs.prelude import IN_PLACE, Log

# Where the arithmetic of a traced program is not that of the plain one. A program whose values differ from the plain
# ones by no more than rounding may have the bits of backend aot_eager instead.
# A program with the trait "gradients of aliases" is compared with aot_eager throughout: of outputs that are views of
# each other, each is a result of the graph, so that the gradient of one no longer contains that of its views.
TRACED_ARITHMETIC = (
    "in bf16 dropout scales the mask before it is applied, which differs for scales that are no power of two",
    "under autocast a weight that is used twice is cast twice, and its gradient is summed in bf16",
    "three and more gradients of one tensor are summed in another order, where some come from outside the graph",
)


@dataclass
class Failure:
    """A difference: of what kind, where, and with which budget."""

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


@dataclass
class Rules:
    """What counts as the same."""

    is_exact: bool
    may_refuse_change: bool  # to raise where the user changes a tensor, though plain PyTorch does not
    may_be_zeros: bool  # in the place of no gradient

    def is_same(self, expected: Any, found: Any) -> bool:
        if expected is None and self.may_be_zeros:
            return found is None or not np.any(found)
        if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray):
            return type(expected) is type(found) and expected == found
        if expected.shape != found.shape or expected.dtype != found.dtype:
            return False
        if self.is_exact or expected.dtype.kind != "f":
            return np.array_equal(expected, found, equal_nan=expected.dtype.kind == "f")
        return np.allclose(expected, found, rtol=1e-3, atol=1e-4, equal_nan=True)


def describe(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)
    return f"{value.dtype}{list(value.shape)} {np.array2string(value.ravel()[:4], precision=6)}"


def difference(expected: Log, found: Log, rules: Rules) -> Failure | None:
    """Returns the first difference. In a step that raises only the errors are compared."""
    close = replace(rules, is_exact=False)
    by_step: dict[int, tuple[list, list]] = {}
    for side, log in enumerate((expected, found)):
        for step, name, value in log.entries:
            by_step.setdefault(step, ([], []))[side].append((name, value))
    for step in range(-1, max(expected.step, found.step) + 1):
        kinds = [log.errors.get(step, ("", ""))[0] for log in (expected, found)]
        if kinds[0] != kinds[1]:
            if kinds == ["", IN_PLACE] and rules.may_refuse_change:
                return None
            if kinds[1] == "":
                return Failure("missing error", f"step {step}: plain raises {expected.errors[step][1]}")
            detail = f"step {step}: {found.errors[step][1]}, plain: {kinds[0] or 'no error'}"
            return Failure("error", detail, is_refusal=kinds[1] == "BudgetError")
        if kinds[0]:
            continue
        left, right = by_step.get(step, ([], []))
        if [name for name, _ in left] != [name for name, _ in right]:
            return Failure("value", f"step {step}: {[n for n, _ in left]} logged, found {[n for n, _ in right]}")
        for (name, one), (_, two) in zip(left, right, strict=True):
            if not rules.is_same(one, two):
                kind = "rounding" if close.is_same(one, two) else "value"
                return Failure(kind, f"step {step}: {name} is {describe(two)}, plain {describe(one)}")
    return None
