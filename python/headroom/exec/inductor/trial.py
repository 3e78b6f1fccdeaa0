"""Runs a compiled step once to measure its memory, without side effects on the user's state."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from headroom import _C
from headroom._torch import (
    FakeTensor,
    no_dispatch_modes,
    pop_saved_tensor_hooks,
    push_saved_tensor_hooks,
    pytree,
    top_saved_tensor_hooks,
)
from headroom._torch.inductor import benchmarker
from headroom.budget.arena import peak_bytes
from headroom.budget.excess import block_slack_bytes, counts_whole_blocks
from headroom.exec.inductor.halves import in_flight
from headroom.graph.operators import is_tensor
from headroom.graph.step_graph import Rest


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Returns a context in which a step may be compiled and tried unnoticed.

    It restores the state of random number generators, and disables the user's dispatch modes and saved-tensor hooks.
    """
    with _random_kept(), no_dispatch_modes(), _without_saved_tensors_hooks():
        yield


@contextlib.contextmanager
def _random_kept() -> Iterator[None]:
    """Does what torch.random.fork_rng() does on all devices, but without tensors that would count as memory in use."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    state = bytes(torch.get_rng_state().tolist())
    on_devices = [bytes(torch.cuda.get_rng_state(device).tolist()) for device in devices]
    try:
        yield
    finally:
        torch.set_rng_state(torch.tensor(list(state), dtype=torch.uint8))
        for device, state in zip(devices, on_devices, strict=True):
            torch.cuda.set_rng_state(torch.tensor(list(state), dtype=torch.uint8), device)


@contextlib.contextmanager
def _without_saved_tensors_hooks() -> Iterator[None]:
    pairs = []
    while (pair := top_saved_tensor_hooks(True)) is not None:
        pairs.append(pair)
        pop_saved_tensor_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(pairs):
            push_saved_tensor_hooks(pack, unpack)


def find_changed(gm: fx.GraphModule, fakes: Sequence[Any]) -> set[int]:
    """Returns the positions of arguments that the graph may change in place.

    For arguments that take a gradient, the version counters of fake tensors tell. Any other argument may be changed
    unnoticed: batch norm updates its running statistics, for instance, and its schema does not say so.
    """
    tensors = {i: fake for i, fake in enumerate(fakes) if is_tensor(fake)}
    mutates_unseen = any("mutation" in str(node.target) for node in gm.graph.nodes if node.op == "call_function")
    mode = next((fake.fake_mode for fake in tensors.values() if isinstance(fake, FakeTensor)), None)
    if mutates_unseen or mode is None:
        return set(tensors)
    before = {i: fake._version for i, fake in tensors.items()}
    try:
        with mode:
            fx.Interpreter(gm).run(*fakes)
    except Exception:  # An operator needs real numbers, so any argument may change.
        return set(tensors)
    return {i for i, fake in tensors.items() if not fake.requires_grad or fake._version != before[i]}


class Arguments:
    """The arguments of a step. A trial gets stand-ins without history or hooks, and copies of what the step changes."""

    def __init__(self, arguments: Sequence[Any], changed: set[int]) -> None:
        self.arguments = arguments
        self.changed_storages = {_storage_of(arguments[i]) for i in changed}

    def stand_ins(self) -> tuple[list[Any], list[torch.Tensor]]:
        """Returns the stand-ins, and the leaves that take gradients among them and their bases."""
        copies = _Copies(self.changed_storages)
        return [
            copies.stand_in(argument) if is_tensor(argument) else argument for argument in self.arguments
        ], copies.leaves


class _Copies:
    """Makes stand-ins that share storages where the original tensors do."""

    def __init__(self, changed_storages: set[int]) -> None:
        self.changed_storages = changed_storages
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.bases: dict[int, torch.Tensor] = {}  # Copies of the tensors that views are of, by the id of the original.
        self.leaves: list[torch.Tensor] = []

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        if _storage_of(tensor) not in self.changed_storages:
            return self._leaf(tensor.detach(), tensor)
        base = tensor._base
        if base is None:
            base = tensor
        if id(base) not in self.bases:
            self.bases[id(base)] = self._copy(base)
        copy = self.bases[id(base)]
        if base is tensor:
            return copy
        with torch.set_grad_enabled(tensor.requires_grad):
            return copy.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        key = _storage_of(tensor)
        if key not in self.storages:
            self.storages[key] = tensor.untyped_storage().clone()
        place = (tensor.storage_offset(), tensor.size(), tensor.stride())
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(self.storages[key], *place)
        copy = self._leaf(copy, tensor)
        # Autograd allows in-place changes of a tensor with a history, but not of a leaf that takes a gradient.
        return copy if tensor.is_leaf else copy.clone()

    def _leaf(self, stand_in: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            self.leaves.append(stand_in.requires_grad_())
        return stand_in


def _storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Trial(NamedTuple):
    """Memory that a step adds to what was in use on the device before it, in bytes."""

    added_bytes: int = 0  # Added at the peak.
    held_bytes: int = 0  # Added after forward.
    left_bytes: int = 0  # Left after the first of two runs, such as library workspaces.
    is_complete: bool = True  # False: stopped before it exceeded its limit; added_bytes is then a lower bound.


class _OverLimit(Exception):
    """Raised before an allocation that would exceed the limit of a trial."""

    def __init__(self, reached_bytes: int) -> None:
        super().__init__(f"{reached_bytes} bytes")
        self.reached_bytes = reached_bytes


# The smallest buffer that is overwritten before a kernel is timed.
_LEAST_FLUSHED_BYTES = 512
# Names by which Inductor's generated code calls the functions that allocate its buffers.
_ALLOCATORS = ("empty_strided_cpu", "empty_strided_cuda")


def _namespaces(codes: Sequence[object]) -> list[dict[str, Any]]:
    """Returns the globals of the modules that Inductor generated for compiled graphs, as far as they can be found."""
    pending = [getattr(code, "current_callable", None) for code in codes]
    spaces: dict[int, dict[str, Any]] = {}
    seen: set[int] = set()
    while pending:
        function = pending.pop()
        function = getattr(function, "__func__", function)
        if id(function) in seen or not hasattr(function, "__globals__"):
            continue
        seen.add(id(function))
        if any(name in function.__globals__ for name in _ALLOCATORS):
            spaces[id(function.__globals__)] = function.__globals__
        else:  # A wrapper around the generated function.
            pending.extend(inspect.getclosurevars(function).nonlocals.values())
    return list(spaces.values())


@contextlib.contextmanager
def _limited(codes: Sequence[object], limit_bytes: int, device: torch.device) -> Iterator[None]:
    """Returns a context in which Inductor's generated code raises before an allocation that would exceed the limit.

    Allocations inside library calls count only at the next buffer.
    """
    meter = _C.Meter(device)

    def checked(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
            buffer_bytes = 0 if 0 in sizes else (last + 1) * dtype.itemsize
            reached = meter.current_bytes() + _C.allocated_bytes(buffer_bytes, device)
            reached += block_slack_bytes(buffer_bytes, device)
            if reached > limit_bytes:
                raise _OverLimit(reached)
            return allocate(sizes, strides, dtype)

        return run

    name = f"empty_strided_{device.type}"
    spaces = [space for space in _namespaces(codes) if name in space]
    allocators = [space[name] for space in spaces]
    for space, allocate in zip(spaces, allocators, strict=True):
        space[name] = checked(allocate)
    try:
        yield
    finally:
        for space, allocate in zip(spaces, allocators, strict=True):
            space[name] = allocate


@contextlib.contextmanager
def _choosing_within(limit_bytes: int, device: torch.device) -> Iterator[None]:
    """Returns a context in which Inductor times its kernels in the memory that is free below a limit.

    A kernel that may run in several ways is timed at its first launch, in the middle of the step. Before each timing, a
    buffer as large as the processor's cache is overwritten. Where it does not fit, a smaller one is.
    """
    if device.type != "cuda":
        yield
        return
    meter, benchmark, cache_bytes = _C.Meter(device), benchmarker.benchmark_gpu, benchmarker.L2_cache_size

    def run(*arguments: Any, **options: Any) -> Any:
        benchmarker.L2_cache_size = min(cache_bytes, max(limit_bytes - meter.current_bytes(), _LEAST_FLUSHED_BYTES))
        return benchmark(*arguments, **options)

    benchmarker.benchmark_gpu = run
    try:
        yield
    finally:
        del benchmarker.benchmark_gpu
        benchmarker.L2_cache_size = cache_bytes


class _Loss(torch.autograd.Function):
    """A loss whose backward creates the gradients of the results, without keeping references to them."""

    @staticmethod
    def forward(ctx: Any, *results: torch.Tensor) -> torch.Tensor:
        ctx.device = results[0].device
        ctx.likes = [torch.empty_like(result, device="meta") for result in results]
        return torch.zeros((), device=ctx.device)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ones_like(like, device=ctx.device) for like in ctx.likes)


def try_step(
    compiled: Callable[..., Any],
    arguments: Arguments,
    device: torch.device,
    codes: Sequence[object] = (),
    allowed_bytes: int | None = None,
    arena: _C.Arena | None = None,
) -> Trial:
    """Runs two steps and returns the memory of the second, as libraries allocate their workspaces in the first.

    Stops before a buffer of the compiled `codes` would exceed `allowed_bytes`. With an arena, two steps record it, and
    a third one runs in its block.
    """
    meter = _C.Meter(device)
    if counts_whole_blocks(device):
        torch.cuda.empty_cache()  # A cached block that is too large for a tensor would count in full.

    gradient_bytes = 0

    def run() -> tuple[int, int]:
        nonlocal gradient_bytes
        stand_ins, leaves = arguments.stand_ins()
        before = meter.current_bytes()
        meter.reset_peak()
        with contextlib.ExitStack() as limits:
            if allowed_bytes is not None and (arena is None or arena.memory() is None):
                limits.enter_context(_limited(codes, before + allowed_bytes, device))
                limits.enter_context(_choosing_within(before + allowed_bytes, device))
            limits.enter_context(in_flight(arena))
            results = [
                result
                for result in pytree.tree_leaves(compiled(*stand_ins))
                if is_tensor(result) and result.requires_grad
            ]
            held = meter.current_bytes() - before
            gradient_bytes = _C.storage_bytes(results)
            if results and all(result.dim() == 0 for result in results):
                torch.autograd.backward(results, [torch.ones_like(result) for result in results])
            elif results:
                _Loss.apply(*results).backward()
        peak = meter.peak_bytes()
        for leaf in leaves:
            leaf.grad = None
        return peak - before, held

    with torch.enable_grad():
        at_first = meter.current_bytes()
        try:
            run()
            left = meter.current_bytes() - at_first
            if arena is not None:
                run()
            memory = None if arena is None else arena.memory()
            if memory is not None and allowed_bytes is not None:
                added = peak_bytes(memory, Rest(), gradient_bytes)
                if added > allowed_bytes:  # One more step would show this.
                    return Trial(added, memory.block_bytes + memory.forward_left_bytes, left)
            return Trial(*run(), left)
        except _OverLimit as over:
            return Trial(over.reached_bytes - at_first, is_complete=False)
