"""What calls cost: measured on the device, each kind once and when it is first needed, and remembered on disk.

Exact peaks need the memory of calls, which running each kind once or twice tells. Times are needed only where a plan
has to choose what to recompute. Elementwise calls are not measured one by one: their memory is known, and one call of
an operator gives the times of all calls of about its size.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import operator
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from headroom import _C
from headroom.costs.elementwise import (
    SAMPLE_BLOCK,
    fill_sample,
    has_known_memory,
    is_elementwise,
    sample_arguments,
    sample_kind,
    sample_size,
)
from headroom.graph.capture import Call, Capture, real_strides, set_layouts
from headroom.graph.operators import concrete, flat_results, is_tensor, needs_a_tensor, storage_bytes
from headroom.graph.real_types import RealTypes

if TYPE_CHECKING:
    from headroom.settings import Settings

# Changes with what is measured here, and how.
_VERSION = 5


class Layout(NamedTuple):
    """A result that is laid out otherwise than tracing knows."""

    strides: list[int]
    bytes: int  # of its storage
    dtype: str


class Cost(NamedTuple):
    """What a call takes."""

    time_ns: int | None  # None: not measured yet
    workspace_bytes: int
    layouts: list[Layout | None] = []  # noqa: RUF012  (of its results; none: all are as tracing knows)


def cache_file(device: torch.device) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headroom"
    if device.type == "cuda":
        name = f"{torch.cuda.get_device_name(device)}-{torch.version.cuda}-{torch.backends.cudnn.version()}"
    else:
        name = f"{_processor()}-{torch.backends.cpu.get_cpu_capability()}-{torch.get_num_threads()}"
    return folder / f"costs-{_VERSION}-{torch.__version__}-{re.sub('[^0-9A-Za-z.]+', '-', name)}.json"


@functools.cache
def _processor() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


class CostCache:
    """Costs by kind of call. Files that cannot be read or written are done without."""

    def __init__(self, device: torch.device, *, persistent: bool = True) -> None:
        self.path = cache_file(device) if persistent else None
        self.costs = self.read()
        self.is_changed = False

    def read(self) -> dict[str, Cost]:
        if self.path is None:
            return {}
        try:
            return {key: _cost_of(one) for key, one in json.loads(self.path.read_text()).items()}
        except (OSError, ValueError, TypeError, IndexError, AttributeError):
            return {}

    def save(self) -> None:
        """Adds to what is on disk. What others measured in the meantime holds: with it they have planned."""
        if self.path is None or not self.is_changed:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
                for key, cost in self.read().items():
                    known = self.costs.get(key)
                    self.costs[key] = cost if cost.time_ns is not None or known is None else known
                part = self.path.with_suffix(f".{os.getpid()}")
                part.write_text(json.dumps(self.costs))
                part.replace(self.path)
        self.is_changed = False


def _cost_of(given: list[Any]) -> Cost:
    time_ns, workspace_bytes, layouts = given
    time_ns = None if time_ns is None else int(time_ns)
    return Cost(time_ns, int(workspace_bytes), [None if one is None else Layout(*one) for one in layouts])


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
        return f"{value.dtype}{_sizes(value.shape)}{real_strides(value, call)}{value.device.type}"

    return (
        f"{call.node.target} {fx.node.map_arg(call.node.args, describe)} {fx.node.map_arg(call.node.kwargs, describe)}"
    )


def _sizes(sizes: Sequence[object]) -> list[int]:
    return [concrete(one) for one in sizes]


def _index_limit(call: Call) -> int:
    """What the indices that it reads are less than; 1, which every index is, where that is not known."""

    def given(position: int) -> Any:
        one = call.node.args[position]
        return one.meta["val"] if isinstance(one, fx.Node) else one

    aten = torch.ops.aten
    packet = getattr(call.node.target, "overloadpacket", None)
    if packet is aten.embedding:
        return concrete(given(0).shape[0])
    if packet is aten.embedding_dense_backward:
        return concrete(given(2))
    if packet in (aten.gather, aten.index_select, aten.scatter, aten.scatter_add, aten.index_add):
        return concrete(given(0).shape[given(1)]) if given(0).dim() > 0 else 1
    return 1


def _real(value: torch.Tensor, call: Call) -> torch.Tensor:
    """A tensor like this one, in memory of its own: fractions, or indices that are spread over what they may be."""
    shape, strides = _sizes(value.shape), real_strides(value, call)
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    storage = fill_sample(torch.empty(0 if 0 in shape else last, dtype=value.dtype, device=value.device))
    if value.dtype in (torch.int32, torch.int64) and (limit := _index_limit(call)) > 1:
        storage.random_(0, limit)
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


def _real_arguments(call: Call, constants: dict[fx.Node, Any]) -> tuple[Any, Any]:
    def real(one: fx.Node) -> object:
        if one in constants:
            return constants[one]
        value = one.meta.get("val")
        if _is_seed(one):
            source, index = one.args
            return source.target(*fx.node.map_arg(source.args, real), **fx.node.map_arg(source.kwargs, real))[index]
        return _real(value, call) if is_tensor(value) else value

    return fx.node.map_arg((call.node.args, call.node.kwargs), real)


def _measure(call: Call, constants: dict[fx.Node, Any], device: torch.device, meter: _C.Meter) -> Cost:
    """Returns the memory that a call takes, by running it. Its time stays open.

    Libraries set up in the first call of a kind, and may take more for it, but not less on the CPU.
    """
    args, kwargs = _real_arguments(call, constants)
    is_set_up = False
    while True:
        _synchronize(device)
        before = meter.current_bytes()
        meter.reset_peak()
        made = call.node.target(*args, **kwargs)
        workspace = (meter.peak_bytes() - before) - _made_bytes(made, call, args, kwargs)
        if is_set_up or (workspace == 0 and device.type == "cpu"):
            return Cost(None, workspace, _layouts(made, call))
        del made
        is_set_up = True


def _measure_time(call: Call, constants: dict[fx.Node, Any], device: torch.device) -> int:
    args, kwargs = _real_arguments(call, constants)
    return _time_ns(lambda: call.node.target(*args, **kwargs), device)


def _elementwise_ns(call: Call, constants: dict[fx.Node, Any], cache: CostCache, device: torch.device) -> int:
    """Returns the time of an elementwise call, by that of a call of the same operator with as many results or fewer."""
    key = f"{sample_kind(call, constants)} {arithmetic()}"
    if key not in cache.costs:
        args, kwargs = sample_arguments(call, constants)
        cache.costs[key] = Cost(_time_ns(lambda: call.node.target(*args, **kwargs), device), 0)
        cache.is_changed = True
    sample_ns = cache.costs[key].time_ns
    start_ns = min(_START_NS, sample_ns)
    return start_ns + (sample_ns - start_ns) * concrete(call.node.meta["val"].numel()) // sample_size(call)


def _layouts(made: Any, call: Call) -> list[Layout | None]:
    layouts: list[Layout | None] = []
    for one, known in zip(flat_results(made), flat_results(call.node.meta.get("val")), strict=False):
        if not is_tensor(one) or not is_tensor(known):
            layouts.append(None)
            continue
        found = Layout(_sizes(one.stride()), one.untyped_storage().nbytes(), str(one.dtype))
        strides = real_strides(known, call)
        is_same = all(size == 1 or a == b for size, a, b in zip(one.shape, found.strides, strides, strict=True))
        last = sum((size - 1) * stride for size, stride in zip(one.shape, strides, strict=True)) + 1
        is_known = is_same and one.dtype is known.dtype and found.bytes <= last * known.element_size()
        layouts.append(None if one.numel() == 0 or is_known else found)
    return layouts if any(layouts) else []


# Numbers in the tensors by which kernels are timed that only move memory. Such a tensor is no larger than the largest
# of the step: what a measurement takes counts as memory in use.
_MOST_SAMPLED = 1 << 24
_LEAST_SAMPLED = 1 << 12
# Random numbers come by four. A library's kernel uses all; one of Inductor's computes four for each that it uses.
_DRAWN_PER_USED = 4


def move_time_ns(moved_bytes: int, cache: CostCache, device: torch.device, largest_bytes: int) -> int:
    """What a kernel takes that only moves memory, by one that does, measured once. `largest_bytes`: of a tensor."""
    sample_ns = _sample_ns("a copy", lambda one, other: other.copy_(one), cache, device, largest_bytes)
    return _START_NS + moved_bytes * sample_ns // (8 * _MOST_SAMPLED)


def draw_time_ns(count: int, cache: CostCache, device: torch.device, largest_bytes: int) -> int:
    """What it takes to draw random numbers inside a kernel of Inductor's, by a library that does, measured once."""
    sample_ns = _sample_ns("random numbers", lambda one, _: one.uniform_(), cache, device, largest_bytes)
    return _DRAWN_PER_USED * count * sample_ns // _MOST_SAMPLED


def _sample_ns(
    name: str,
    run: Callable[[torch.Tensor, torch.Tensor], object],
    cache: CostCache,
    device: torch.device,
    largest_bytes: int,
) -> int:
    """What it would take for `_MOST_SAMPLED` numbers."""
    fitting = 1 << (max(largest_bytes // 4, 1).bit_length() - 1)
    count = min(max(fitting, _LEAST_SAMPLED), _MOST_SAMPLED)
    key = f"{name} of {count} numbers"
    if key not in cache.costs:
        with unset_fake_temporarily(), torch.no_grad(), forked_random(device):
            one, other = (torch.zeros(count, device=device) for _ in range(2))
            cache.costs[key] = Cost(_time_ns(lambda: run(one, other), device), 0)
            cache.is_changed = True
            cache.save()
    return cache.costs[key].time_ns * (_MOST_SAMPLED // count)


def forked_random(device: torch.device) -> AbstractContextManager[None]:
    """In which random numbers may be drawn: afterwards they are as before."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


# What takes longer is run twice, the first time to set up; what takes less is run three times for this long.
_LONG_NS = 5_000_000
_TIMED_NS = 1_000_000


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
    if once > _LONG_NS:
        once = min(once, take(1))
    if once > _LONG_NS:
        return once
    count = min(_TIMED_NS // max(once, 1) + 1, 10)
    return int(statistics.median(take(count) for _ in range(3)))


def _estimate(call: Call) -> Cost:
    """For a call that cannot be made alone, as where what is known of its inputs is not quite what they are."""
    leaves = pytree.tree_leaves((call.node.args, call.node.kwargs, call.node.meta.get("val")))
    values = [one.meta.get("val") if isinstance(one, fx.Node) else one for one in leaves]
    moved = sum(concrete(one.numel()) * one.element_size() for one in values if is_tensor(one))
    bytes_per_ns = 10
    return Cost(1000 + moved // bytes_per_ns, 0)


def _made_bytes(made: Any, call: Call, args: Any, kwargs: Any) -> int:
    """Returns the bytes of the results that tracing knows.

    A kernel may make others: convolutions on the CPU compute a weight's gradient that nobody asked for.
    """
    given = {one.untyped_storage()._cdata for one in pytree.tree_leaves((args, kwargs)) if is_tensor(one)}
    pairs = zip(flat_results(made), flat_results(call.node.meta.get("val")), strict=False)
    known = [one for one, other in pairs if is_tensor(one) and is_tensor(other)]
    storages = {one.untyped_storage()._cdata: one for one in known}
    return sum(
        _C.allocated_bytes(one.untyped_storage().nbytes(), one.device)
        for key, one in storages.items()
        if key not in given
    )


class Counts(NamedTuple):
    """How many kinds of calls there are, and how many measurements were made for them."""

    kinds: int
    measured: int


def fill_costs(captured: Capture, cache: CostCache, meter: _C.Meter) -> None:
    """Gives every call its time and workspace. Random numbers are as they were afterwards."""
    fill_memory(captured, cache, meter)
    fill_times(captured, cache)


def _kinds(captured: Capture, types: RealTypes | None = None) -> Iterator[tuple[Call, str]]:
    """Gives the calls that take something, each with its kind, which may depend on what is known of those before."""
    computed = arithmetic()
    for call in captured.calls:
        if types is not None:
            types.infer(call)
        if call.values and not call.is_view:
            yield call, f"{kind_of(call, captured.constants)} {computed}"


def fill_memory(captured: Capture, cache: CostCache, meter: _C.Meter) -> Counts:
    """Gives every call its workspace, and its results their layouts."""
    with unset_fake_temporarily(), torch.no_grad(), forked_random(captured.device):
        estimates: dict[str, Cost] = {}  # which are kept nowhere: the next measurement may succeed
        keys: set[str] = set()
        measured = 0
        types = RealTypes(captured)
        for call, key in _kinds(captured, types):
            keys.add(key)
            if key not in cache.costs and key not in estimates:
                if has_known_memory(call):
                    estimates[key] = Cost(None, 0)
                elif call.has_effect:  # which a measurement must not have
                    estimates[key] = _estimate(call)
                else:
                    try:
                        cache.costs[key] = _measure(call, captured.constants, captured.device, meter)
                        cache.is_changed = True
                        measured += 1
                    except Exception:  # An operator may raise anything, and may do so only here.
                        estimates[key] = _estimate(call)
            cost = cache.costs.get(key) or estimates[key]
            call.workspace_bytes = cost.workspace_bytes
            types.set(call, [None if one is None else _dtype(one) for one in cost.layouts])
            set_layouts(captured, call, [None if one is None else (one.strides, one.bytes) for one in cost.layouts])
        cache.save()
    return Counts(len(keys), measured)


def _dtype(layout: Layout) -> torch.dtype:
    return getattr(torch, layout.dtype.removeprefix("torch."))


def fill_times(captured: Capture, cache: CostCache, room_bytes: int | None = None) -> Counts:
    """Gives every call its time, after fill_memory(). What would need more than `room_bytes` is estimated."""
    with unset_fake_temporarily(), torch.no_grad(), forked_random(captured.device):
        times: dict[str, int] = {}
        measured = 0
        for call, key in (kinds := list(_kinds(captured))):
            if key in times:
                continue
            cost = cache.costs.get(key)
            if cost is not None and cost.time_ns is not None:
                times[key] = cost.time_ns
                continue
            times[key] = _estimate(call).time_ns
            if call.has_effect or (room_bytes is not None and _footprint_bytes(call) > room_bytes):
                continue
            try:
                if is_elementwise(call):
                    before = len(cache.costs)
                    times[key] = _elementwise_ns(call, captured.constants, cache, captured.device)
                    measured += len(cache.costs) - before
                elif cost is not None:
                    times[key] = _measure_time(call, captured.constants, captured.device)
                    cache.costs[key] = cost._replace(time_ns=times[key])
                    cache.is_changed = True
                    measured += 1
            except Exception:  # As above.
                continue
        cache.save()
        for call, key in kinds:
            cost = cache.costs.get(key)  # by which others may have planned meanwhile
            call.time_ns = times[key] if cost is None or cost.time_ns is None else cost.time_ns
    return Counts(len(times), measured)


# Bytes beside a call's own while it is timed: the state of the random generator, and a block of fractions.
_BESIDE_BYTES = 8192
_BLOCK_BYTES = 8 * SAMPLE_BLOCK


def _footprint_bytes(call: Call) -> int:
    """Returns the bytes that timing a call takes at most: inputs of its own, its results and its workspace."""
    leaves = pytree.tree_leaves((needs_a_tensor(call.node), call.node.meta.get("val")))
    values = [one.meta.get("val") if isinstance(one, fx.Node) else one for one in leaves]
    sizes = [storage_bytes(one) for one in values if is_tensor(one)]
    if is_elementwise(call):
        count = sample_size(call)
        sizes = [count * one.element_size() for one in values if is_tensor(one)]
    block_bytes = _BLOCK_BYTES if any(size > SAMPLE_BLOCK for size in sizes) else 0
    return _BESIDE_BYTES + block_bytes + call.workspace_bytes + sum(sizes)


@functools.cache
def cache_of(device: torch.device, *, persistent: bool, threads: int) -> CostCache:
    return CostCache(device, persistent=persistent)


def cost_cache(device: torch.device, settings: Settings) -> CostCache:
    """With cudnn.benchmark every process tries out by itself how to convolve: what others measured is no help."""
    persistent = settings.cache and not torch.backends.cudnn.benchmark
    return cache_of(device, persistent=persistent, threads=torch.get_num_threads())
