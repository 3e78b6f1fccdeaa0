"""Helpers of every program. Printed scripts contain this file."""

from __future__ import annotations

import gc
import threading  # noqa: F401  (some programs use it)
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves  # noqa: F401

import headroom

DEVICE = "cpu"
IN_PLACE = "modified by an inplace operation"


class Boom(RuntimeError):
    """Raised on purpose by `fragile`."""


armed = {"forward": False, "backward": False}


@torch.library.custom_op("headroom_programs::fragile", mutates_args=())
def fragile(x: torch.Tensor) -> torch.Tensor:
    """Doubles a tensor, or raises Boom while `armed["forward"]` is set."""
    if armed["forward"]:
        raise Boom
    return x * 2


@torch.library.custom_op("headroom_programs::fragile_backward", mutates_args=())
def fragile_backward(gradient: torch.Tensor) -> torch.Tensor:
    if armed["backward"]:
        raise Boom
    return gradient * 2


fragile.register_fake(torch.empty_like)
fragile_backward.register_fake(torch.empty_like)
fragile.register_autograd(lambda _, gradient: fragile_backward(gradient))


def array_of(tensor: torch.Tensor) -> Any:
    """Returns a copy in memory that no meter of tensors counts."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()


class Log:
    """The results of a program, and the peak of each step, less the bytes allocated before the step."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, str, Any]] = []
        self.errors: dict[int, tuple[str, str]] = {}  # by step: kind and message
        self.peaks: list[int] = []  # of the whole device
        self.added: list[int] = []  # beyond the bytes before the step
        self.meter = headroom.Meter(torch.device(DEVICE))
        self.start_bytes = self.meter.current_bytes()
        self.warned_steps: set[int] = set()  # in which headroom warned that a graph has no room
        self.step = -1

    def begin_step(self) -> None:
        """Called before the first forward of a step."""
        self.before_bytes = self.meter.current_bytes()
        self.meter.reset_peak()

    def end_step(self) -> None:
        """Must be called after the last backward of a step: budgets do not include the optimizer's memory."""
        self.peaks.append(self.meter.peak_bytes())
        self.added.append(self.peaks[-1] - self.before_bytes)

    def __call__(self, name: str, value: Any) -> None:
        if isinstance(value, list | tuple):
            for position, part in enumerate(value):
                self(f"{name}[{position}]", part)
            return
        value = array_of(value) if isinstance(value, torch.Tensor) else value
        self.entries.append((self.step, name, value))

    def error(self, error: Exception) -> None:
        kind = IN_PLACE if IN_PLACE in str(error) else type(error).__name__
        self.errors[self.step] = (kind, f"{type(error).__name__}: {error}"[:2000])
        armed["forward"] = armed["backward"] = False


def state_of(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def first_of(model: nn.Module) -> torch.Tensor:
    """Returns the first parameter, or a tensor that nothing reads."""
    return next(model.parameters(), torch.zeros(1))


def gradients_of(model: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def bytes_left_by(program: Callable[[Compile, Log], None], compiler: Compile, log: Log) -> int:
    """Runs a program and returns the bytes that remain allocated afterwards."""
    before_bytes = headroom.current_bytes(DEVICE)
    program(compiler, log)
    if headroom.current_bytes(DEVICE) != before_bytes:
        # After an error, autograd's queue holds its pending tasks until the next backward.
        torch.ones(1, device=DEVICE, requires_grad=True).sum().backward()
        gc.collect()
    return headroom.current_bytes(DEVICE) - before_bytes
