"""What calls cost: measured one by one on the device, each kind once, and remembered on disk."""

from __future__ import annotations

import json
import operator
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from headroom import _C
from headroom.capture import Call, Capture, concrete, is_tensor


def cache_file(device: torch.device) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headroom"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu-{torch.get_num_threads()}"
    return folder / f"costs-{torch.__version__}-{name.replace(' ', '-').replace('/', '-')}.json"


class CostCache:
    """Costs by kind of call. Files that cannot be read or written are done without."""

    def __init__(self, device: torch.device, *, persistent: bool = True) -> None:
        self.path = cache_file(device) if persistent else None
        self.costs = self.read()
        self.is_changed = False

    def read(self) -> dict[str, tuple[int, int]]:
        if self.path is None:
            return {}
        try:
            return {key: (one[0], one[1]) for key, one in json.loads(self.path.read_text()).items()}
        except (OSError, ValueError, TypeError, IndexError, AttributeError):
            return {}

    def save(self) -> None:
        """Adds to what is on disk. What others measured in the meantime holds: with it they have planned."""
        if self.path is None or not self.is_changed:
            return
        self.costs |= self.read()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(self.costs))
            part.replace(self.path)
        except OSError:
            pass
        self.is_changed = False


# What it takes to start a kernel.
_START_NS = 2000


def arithmetic() -> str:
    """What users choose of how kernels compute. Other kernels take other times, and other workspaces."""
    backends = torch.backends
    precisions = (
        backends,
        backends.cuda.matmul,
        backends.cudnn.conv,
        backends.cudnn.rnn,
        backends.mkldnn.matmul,
        backends.mkldnn.conv,
    )
    chosen = (
        *(one.fp32_precision for one in precisions),
        backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        backends.cudnn.enabled,
        backends.cudnn.benchmark,
        backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
    )
    return " ".join(map(str, chosen))


def kind_of(call: Call, constants: dict[fx.Node, Any]) -> str:
    """The same for calls that cost the same."""

    def describe(one: fx.Node) -> object:
        constant = constants.get(one)
        if isinstance(constant, fx.GraphModule):
            return constant.code
        value = one.meta.get("val")
        if not is_tensor(value):
            return constant if isinstance(constant, int) else type(value).__name__
        return f"{value.dtype}{_sizes(value.shape)}{_strides(value, call)}{value.device.type}"

    return (
        f"{call.node.target} {fx.node.map_arg(call.node.args, describe)} {fx.node.map_arg(call.node.kwargs, describe)}"
    )


def _sizes(sizes: Sequence[object]) -> list[int]:
    return [concrete(one) for one in sizes]


def _strides(value: torch.Tensor, call: Call) -> list[int]:
    """As the call reads it."""
    if call.channels_last and value.dim() == 4:
        _, channels, height, width = _sizes(value.shape)
        return [channels * height * width, 1, width * channels, channels]
    return _sizes(value.stride())


def _real(value: torch.Tensor, call: Call) -> torch.Tensor:
    """A tensor like this one, in memory of its own: fractions, or zeros, which every index may be."""
    shape, strides = _sizes(value.shape), _strides(value, call)
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    storage = torch.zeros(0 if 0 in shape else last, dtype=value.dtype, device=value.device)
    if value.dtype.is_floating_point:
        storage.uniform_(0.1, 0.9)
    return storage.as_strided(shape, strides)


def _is_seed(node: fx.Node) -> bool:
    """Whether it is the state of a generator that attention hands to its backward.

    What is known of it may name another device than it is on, and kernels read it wherever it is said to be.
    """
    value = node.meta.get("val")
    if node.target is not operator.getitem or not is_tensor(value) or value.numel() > 2:
        return False
    is_number = not value.dtype.is_floating_point and value.dtype is not torch.bool
    return is_number and torch.Tag.nondeterministic_seeded in getattr(node.args[0].target, "tags", ())


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measure(call: Call, constants: dict[fx.Node, Any], device: torch.device, meter: _C.Meter) -> tuple[int, int]:
    """Nanoseconds and workspace bytes of a call that is not the first of its kind, for which libraries set up."""

    def real(one: fx.Node) -> object:
        if one in constants:
            return constants[one]
        value = one.meta.get("val")
        if _is_seed(one):
            source, index = one.args
            return source.target(*fx.node.map_arg(source.args, real), **fx.node.map_arg(source.kwargs, real))[index]
        return _real(value, call) if is_tensor(value) else value

    args, kwargs = fx.node.map_arg(call.node.args, real), fx.node.map_arg(call.node.kwargs, real)

    def run() -> object:
        return call.node.target(*args, **kwargs)

    run()
    _synchronize(device)
    before = meter.current_bytes()
    meter.reset_peak()
    made = run()
    workspace = (meter.peak_bytes() - before) - _made_bytes(made, args, kwargs)
    del made
    return _time_ns(run, device), workspace


_SAMPLE = 1 << 24  # numbers
# Random numbers come by four. A library's kernel uses all; one of Inductor's computes four for each that it uses.
_DRAWN_PER_USED = 4


def move_time_ns(moved_bytes: int, cache: CostCache, device: torch.device) -> int:
    """What a kernel takes that only moves memory, by one that does, measured once."""
    sample_ns = _sample_ns("a copy of 64 MiB", lambda one, other: other.copy_(one), cache, device)
    return _START_NS + moved_bytes * sample_ns // (8 * _SAMPLE)


def draw_time_ns(count: int, cache: CostCache, device: torch.device) -> int:
    """What it takes to draw random numbers inside a kernel of Inductor's, by a library that does, measured once."""
    sample_ns = _sample_ns("16 Mi random numbers", lambda one, _: one.uniform_(), cache, device)
    return _DRAWN_PER_USED * count * sample_ns // _SAMPLE


def _sample_ns(
    name: str, run: Callable[[torch.Tensor, torch.Tensor], object], cache: CostCache, device: torch.device
) -> int:
    if name not in cache.costs:
        with unset_fake_temporarily(), torch.no_grad(), forked_random(device):
            one, other = (torch.zeros(_SAMPLE, device=device) for _ in range(2))
            cache.costs[name] = (_time_ns(lambda: run(one, other), device), 0)
            cache.is_changed = True
            cache.save()
    return cache.costs[name][0]


def forked_random(device: torch.device) -> AbstractContextManager[None]:
    """In which random numbers may be drawn: afterwards they are as before."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _time_ns(run: Callable[[], object], device: torch.device) -> int:
    """Of one call among several in a row, as in a step: a GPU is not waited for in between."""

    def take(count: int) -> int:
        _synchronize(device)
        start = time.perf_counter_ns()
        for _ in range(count):
            run()
        _synchronize(device)
        return (time.perf_counter_ns() - start) // count

    once = take(1)
    if once > 100_000_000:
        return once
    count = min(2_000_000 // max(once, 1) + 1, 20)
    return int(statistics.median(take(count) for _ in range(3)))


def _estimate(call: Call) -> tuple[int, int]:
    """For a call that cannot be made alone, as where what is known of its inputs is not quite what they are."""
    leaves = pytree.tree_leaves((call.node.args, call.node.kwargs, call.node.meta.get("val")))
    values = [one.meta.get("val") if isinstance(one, fx.Node) else one for one in leaves]
    moved = sum(concrete(one.numel()) * one.element_size() for one in values if is_tensor(one))
    bytes_per_ns = 10
    return 1000 + moved // bytes_per_ns, 0


def _made_bytes(made: Any, args: Any, kwargs: Any) -> int:
    given = {one.untyped_storage()._cdata for one in pytree.tree_leaves((args, kwargs)) if is_tensor(one)}
    storages = {one.untyped_storage()._cdata: one for one in pytree.tree_leaves(made) if is_tensor(one)}
    return sum(
        _C.allocated_bytes(one.untyped_storage().nbytes(), one.device)
        for key, one in storages.items()
        if key not in given
    )


def fill_costs(captured: Capture, cache: CostCache, meter: _C.Meter) -> None:
    """Gives every call its time and workspace. Random numbers are as they were afterwards."""
    with unset_fake_temporarily(), torch.no_grad(), forked_random(captured.device):
        calls = [call for call in captured.calls if call.values and not call.is_view]
        computed = arithmetic()
        keys = [f"{kind_of(call, captured.constants)} {computed}" for call in calls]
        for call, key in zip(calls, keys, strict=True):
            if key not in cache.costs:
                if call.has_effect:  # which a measurement must not have
                    cache.costs[key] = _estimate(call)
                    continue
                try:
                    cache.costs[key] = _measure(call, captured.constants, captured.device, meter)
                except Exception:  # An operator may raise anything, and may do so only here.
                    cache.costs[key] = _estimate(call)
                cache.is_changed = True
        cache.save()
        for call, key in zip(calls, keys, strict=True):
            call.time_ns, call.workspace_bytes = cache.costs[key]
