"""Computes the bytes of an optimizer's state that its first step has yet to allocate."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable

import torch
from torch.optim import Optimizer

from headroom import _C
from headroom._torch import FakeTensorMode, no_dispatch_modes, pytree
from headroom.budget.excess import assumed_bytes


class PendingState:
    """State that an optimizer is going to allocate in its first step, on the device of its parameters."""

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer: expected a torch.optim.Optimizer, found {optimizer!r}")
        self.optimizer = weakref.ref(optimizer)  # A compiled model must not keep the state alive.
        self.expected_bytes: int | None = None  # None: not computed yet.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PendingState) and self.optimizer == other.optimizer

    def __hash__(self) -> int:
        return hash(self.optimizer)

    def __getstate__(self) -> dict[str, object]:
        """Returns the state without the optimizer, because a copy of the optimizer is another one."""
        return {"optimizer": _nobody, "expected_bytes": 0}

    def missing_bytes(self) -> int:
        """Returns the bytes of the state that are not allocated yet; always 0 once all have been."""
        optimizer = self.optimizer()
        if optimizer is None:
            return 0
        if self.expected_bytes is None:
            self.expected_bytes = _state_bytes(_stepped(optimizer))
        if self.expected_bytes == 0:
            return 0
        missing = self.expected_bytes - _state_bytes(optimizer)
        if missing <= 0:
            self.expected_bytes = 0
            return 0
        return assumed_bytes(missing, _parameters(optimizer)[0].device)


def _nobody() -> None:
    """Stands for an optimizer that has been freed."""


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _stepped(optimizer: Optimizer) -> Optimizer:
    """Returns a copy of the optimizer after one step on fake tensors, which have no memory."""
    with no_dispatch_modes():
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        groups = []
        for group in optimizer.param_groups:
            fakes = [
                mode.from_tensor(parameter.detach()).requires_grad_(parameter.requires_grad)
                for parameter in group["params"]
            ]
            groups.append({**group, "params": fakes})
        stand_in = copy.copy(optimizer)
        stand_in.state = type(optimizer.state)(optimizer.state.default_factory)
        stand_in.param_groups = groups
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            setattr(stand_in, hooks, {})
        with mode:
            for fake in _parameters(stand_in):
                fake.grad = torch.zeros_like(fake) if fake.requires_grad else None
            for group in groups:
                stand_in.param_groups = [group]
                made = len(stand_in.state)
                try:
                    type(optimizer).step(stand_in)
                except Exception as error:  # Some read values, which fakes lack, after making the state.
                    if len(stand_in.state) == made:
                        name = type(optimizer).__name__
                        raise ValueError(
                            f"optimizer: the state of {name} is not known before its first step; give its bytes as "
                            f"reserve= instead ({error})"
                        ) from error
    return stand_in


def _state_bytes(optimizer: Optimizer) -> int:
    """Returns the allocated bytes of the state's tensors that are on the devices of their parameters."""
    storages: dict[int, int] = {}
    for parameter, state in optimizer.state.items():
        for tensor in _tensors(state):
            if isinstance(parameter, torch.Tensor) and tensor.device == parameter.device:
                storage = tensor.untyped_storage()
                storages[storage._cdata] = _C.allocated_bytes(storage.nbytes(), tensor.device)
    return sum(storages.values())


def _tensors(state: object) -> Iterable[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, torch.Tensor)]
