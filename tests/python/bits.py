"""Compares tensors bit for bit."""

from __future__ import annotations

import torch


def difference(actual: torch.Tensor | None, expected: torch.Tensor | None) -> str:
    """Describes what differs bit for bit, where all NaNs are equal. Returns an empty text if nothing differs."""
    if expected is None or actual is None:
        present = actual if expected is None else expected
        is_zero = present is None or not present.any()
        return "" if is_zero else "no gradient on one side"
    if (actual.shape, actual.dtype, actual.layout) != (expected.shape, expected.dtype, expected.layout):
        return f"{actual.dtype} {tuple(actual.shape)} for {expected.dtype} {tuple(expected.shape)}"
    if actual.is_complex():
        actual, expected = (torch.view_as_real(tensor.resolve_conj()) for tensor in (actual, expected))
    is_same = (actual == expected) | ((actual != actual) & (expected != expected))
    if actual.is_floating_point():
        is_same &= (actual != actual) | (torch.signbit(actual) == torch.signbit(expected))
    if bool(is_same.all()):
        return ""
    worst = (actual.double() - expected.double()).abs().nan_to_num(float("inf")).max().item()
    return f"{int((~is_same).sum())} of {actual.numel()} numbers differ, by {worst:.3g} at most"
