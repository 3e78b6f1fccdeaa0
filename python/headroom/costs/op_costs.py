"""Measures the costs of calls on the device, each kind once and when it is first needed, and caches them on disk.

Exact peaks need the memory of calls, for which each kind runs once or twice. Times are needed only if a plan has to
choose what to recompute. Elementwise calls are not measured one by one: their memory is known, and one timed call of an
operator gives the times of all its calls of about the same size.
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

from headroom import _C
from headroom._torch import pytree, unset_fake_temporarily
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

# Version of the cache file; it changes with what is measured here, and how.
_VERSION = 5


class Layout(NamedTuple):
    """The layout of a result that differs from what tracing predicts."""

    strides: list[int]
    bytes: int  # Bytes of its storage.
    dtype: str


class Cost(NamedTuple):
    """The time and memory of a call."""

    time_ns: int | None  # None: not measured yet.
    workspace_bytes: int
    # Layouts of its results. Empty, or None for a result: as tracing predicts.
    layouts: list[Layout | None] = []  # noqa: RUF012


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
    """Costs by kind of call. Cache files that cannot be read or written are ignored."""

    def __init__(self, device: torch.device, *, persistent: bool = True) -> None:
        self.path = cache_file(device) if persistent else None
        self.costs = self.read()
        self.is_changed = False

    def read(self) -> dict[str, Cost]:
        if self.path is None:
            return {}
        try:
            return {key: _cost_of(entry) for key, entry in json.loads(self.path.read_text()).items()}
        except (OSError, ValueError, TypeError, IndexError, AttributeError):
            return {}

    def save(self) -> None:
        """Merges the costs into the file; costs that other processes saved meanwhile win, as they planned with them."""
        if self.path is None or not self.is_changed:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # The lock is held until the file is closed.
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
    return Cost(time_ns, int(workspace_bytes), [None if layout is None else Layout(*layout) for layout in layouts])


# Assumed time in nanoseconds to launch a kernel.
_START_NS = 2000


def arithmetic() -> str:
    """Returns the user's settings for arithmetic as text. They select kernels, and so change times and workspaces."""
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
        *(precision.fp32_precision for precision in precisions),
        backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        backends.cudnn.enabled,
        backends.cudnn.benchmark,
        backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
    )
    return " ".join(map(str, chosen))


def kind_of(call: Call, constants: dict[fx.Node, Any]) -> str:
    """Returns a key that is equal for calls that cost the same."""

    def describe(argument: fx.Node) -> object:
        constant = constants.get(argument)
        if isinstance(constant, fx.GraphModule):
            return constant.code
        value = argument.meta.get("val")
        if not is_tensor(value):
            return constant if isinstance(constant, int) else type(value).__name__
        return f"{value.dtype}{_sizes(value.shape)}{real_strides(value, call)}{value.device.type}"

    return (
        f"{call.node.target} {fx.node.map_arg(call.node.args, describe)} {fx.node.map_arg(call.node.kwargs, describe)}"
    )


def _sizes(sizes: Sequence[object]) -> list[int]:
    return [concrete(size) for size in sizes]


def _index_limit(call: Call) -> int:
    """Returns the exclusive upper bound of the indices that the call reads, or 1 if it is not known."""

    def argument_at(position: int) -> Any:
        argument = call.node.args[position]
        return argument.meta["val"] if isinstance(argument, fx.Node) else argument

    aten = torch.ops.aten
    packet = getattr(call.node.target, "overloadpacket", None)
    if packet is aten.embedding:
        return concrete(argument_at(0).shape[0])
    if packet is aten.embedding_dense_backward:
        return concrete(argument_at(2))
    if packet in (aten.gather, aten.index_select, aten.scatter, aten.scatter_add, aten.index_add):
        return concrete(argument_at(0).shape[argument_at(1)]) if argument_at(0).dim() > 0 else 1
    return 1


def _real(value: torch.Tensor, call: Call) -> torch.Tensor:
    """Returns a newly allocated tensor like this one: fractions, or indices spread over their whole range."""
    shape, strides = _sizes(value.shape), real_strides(value, call)
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    storage = fill_sample(torch.empty(0 if 0 in shape else last, dtype=value.dtype, device=value.device))
    if value.dtype in (torch.int32, torch.int64) and (limit := _index_limit(call)) > 1:
        storage.random_(0, limit)
    return storage.as_strided(shape, strides)


def _is_seed(node: fx.Node) -> bool:
    """Returns whether the node is the generator state that attention passes to its backward.

    Tracing may report another device for it than its real one, and kernels would read it on the reported device.
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
    def real(node: fx.Node) -> object:
        if node in constants:
            return constants[node]
        value = node.meta.get("val")
        if _is_seed(node):
            source, index = node.args
            return source.target(*fx.node.map_arg(source.args, real), **fx.node.map_arg(source.kwargs, real))[index]
        return _real(value, call) if is_tensor(value) else value

    return fx.node.map_arg((call.node.args, call.node.kwargs), real)


def _measure(call: Call, constants: dict[fx.Node, Any], device: torch.device, meter: _C.Meter) -> Cost:
    """Runs a call and returns its memory, with its time left unmeasured.

    Libraries set up in the first call of a kind. On the CPU that call takes at least as much memory as later ones.
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
    """Returns the time of an elementwise call, scaled from a sample of the same operator."""
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
    for result, known in zip(flat_results(made), flat_results(call.node.meta.get("val")), strict=False):
        if not is_tensor(result) or not is_tensor(known):
            layouts.append(None)
            continue
        layout = Layout(_sizes(result.stride()), result.untyped_storage().nbytes(), str(result.dtype))
        strides = real_strides(known, call)
        is_same = all(size == 1 or a == b for size, a, b in zip(result.shape, layout.strides, strides, strict=True))
        last = sum((size - 1) * stride for size, stride in zip(result.shape, strides, strict=True)) + 1
        is_known = is_same and result.dtype is known.dtype and layout.bytes <= last * known.element_size()
        layouts.append(None if result.numel() == 0 or is_known else layout)
    return layouts if any(layouts) else []


# Bounds of the number of elements in the tensors with which memory-bound kernels are timed. A sample is no larger than
# the step's largest tensor, because its memory counts as in use.
_MOST_SAMPLED = 1 << 24
_LEAST_SAMPLED = 1 << 12
# Random numbers are generated four at a time. A library's kernel uses all four; one of Inductor's generates four for
# each number that it uses.
_DRAWN_PER_USED = 4


def move_time_ns(moved_bytes: int, cache: CostCache, device: torch.device, largest_bytes: int) -> int:
    """Returns the time of a kernel that only moves memory, scaled from one measured copy.

    `largest_bytes` is the size of the step's largest tensor.
    """
    sample_ns = _sample_ns("a copy", lambda source, target: target.copy_(source), cache, device, largest_bytes)
    return _START_NS + moved_bytes * sample_ns // (8 * _MOST_SAMPLED)


def draw_time_ns(count: int, cache: CostCache, device: torch.device, largest_bytes: int) -> int:
    """Returns the time to draw random numbers inside one of Inductor's kernels, scaled from a library's generator."""
    sample_ns = _sample_ns("random numbers", lambda tensor, _: tensor.uniform_(), cache, device, largest_bytes)
    return _DRAWN_PER_USED * count * sample_ns // _MOST_SAMPLED


def _sample_ns(
    name: str,
    run: Callable[[torch.Tensor, torch.Tensor], object],
    cache: CostCache,
    device: torch.device,
    largest_bytes: int,
) -> int:
    """Returns the time for `_MOST_SAMPLED` numbers, scaled from a smaller sample if the largest tensor is smaller."""
    fitting = 1 << (max(largest_bytes // 4, 1).bit_length() - 1)
    count = min(max(fitting, _LEAST_SAMPLED), _MOST_SAMPLED)
    key = f"{name} of {count} numbers"
    if key not in cache.costs:
        with unset_fake_temporarily(), torch.no_grad(), forked_random(device):
            left, right = (torch.zeros(count, device=device) for _ in range(2))
            cache.costs[key] = Cost(_time_ns(lambda: run(left, right), device), 0)
            cache.is_changed = True
            cache.save()
    return cache.costs[key].time_ns * (_MOST_SAMPLED // count)


def forked_random(device: torch.device) -> AbstractContextManager[None]:
    """Returns a context in which random numbers may be drawn; their state is restored afterwards."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


# Calls that take longer than this are run twice, the first time to set up. Shorter ones are run in three rounds, each
# of about _TIMED_NS.
_LONG_NS = 5_000_000
_TIMED_NS = 1_000_000


def _time_ns(run: Callable[[], object], device: torch.device) -> int:
    """Returns the time of one call among several in a row, as in a step: there is no synchronization between them."""

    def take(count: int) -> int:
        _synchronize(device)
        start = time.perf_counter_ns()
        for _ in range(count):
            run()
        _synchronize(device)
        return (time.perf_counter_ns() - start) // count

    single = take(1)
    if single > _LONG_NS:
        single = min(single, take(1))
    if single > _LONG_NS:
        return single
    count = min(_TIMED_NS // max(single, 1) + 1, 10)
    return int(statistics.median(take(count) for _ in range(3)))


def _estimate(call: Call) -> Cost:
    """Estimates the cost of a call that fails alone, for instance because tracing does not know its inputs exactly."""
    leaves = pytree.tree_leaves((call.node.args, call.node.kwargs, call.node.meta.get("val")))
    values = [leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
    moved = sum(concrete(value.numel()) * value.element_size() for value in values if is_tensor(value))
    return Cost(1000 + moved // 10, 0)  # 1 µs, and 10 GB/s


def _made_bytes(made: Any, call: Call, args: Any, kwargs: Any) -> int:
    """Returns the bytes of the results that tracing knows.

    A kernel may compute others: convolutions on the CPU compute a weight's gradient even if it is not needed.
    """
    inputs = {leaf.untyped_storage()._cdata for leaf in pytree.tree_leaves((args, kwargs)) if is_tensor(leaf)}
    pairs = zip(flat_results(made), flat_results(call.node.meta.get("val")), strict=False)
    known = [result for result, traced in pairs if is_tensor(result) and is_tensor(traced)]
    storages = {result.untyped_storage()._cdata: result for result in known}
    return sum(
        _C.allocated_bytes(result.untyped_storage().nbytes(), result.device)
        for key, result in storages.items()
        if key not in inputs
    )


class Counts(NamedTuple):
    """Number of kinds of calls, and of the measurements that were made for them."""

    kinds: int
    measured: int


def fill_costs(captured: Capture, cache: CostCache, meter: _C.Meter) -> None:
    """Sets the time and the workspace of every call. The state of random number generators is preserved."""
    fill_memory(captured, cache, meter)
    fill_times(captured, cache)


def _kinds(captured: Capture, types: RealTypes | None = None) -> Iterator[tuple[Call, str]]:
    """Yields the calls that have a cost, each with its kind, which may depend on the types found for earlier calls."""
    computed = arithmetic()
    for call in captured.calls:
        if types is not None:
            types.infer(call)
        if call.values and not call.is_view:
            yield call, f"{kind_of(call, captured.constants)} {computed}"


def fill_memory(captured: Capture, cache: CostCache, meter: _C.Meter) -> Counts:
    """Sets the workspace of every call, and the layouts of its results."""
    with unset_fake_temporarily(), torch.no_grad(), forked_random(captured.device):
        estimates: dict[str, Cost] = {}  # Not cached, since the next measurement may succeed.
        keys: set[str] = set()
        measured = 0
        types = RealTypes(captured)
        for call, key in _kinds(captured, types):
            keys.add(key)
            if key not in cache.costs and key not in estimates:
                if has_known_memory(call):
                    estimates[key] = Cost(None, 0)
                elif call.has_effect or call.is_opaque:  # A measurement would repeat its effect.
                    estimates[key] = _estimate(call)
                else:
                    try:
                        cache.costs[key] = _measure(call, captured.constants, captured.device, meter)
                        cache.is_changed = True
                        measured += 1
                    except Exception:  # An operator may raise anything, even if it runs in the step.
                        estimates[key] = _estimate(call)
            cost = cache.costs.get(key) or estimates[key]
            call.workspace_bytes = cost.workspace_bytes
            types.set(call, [None if layout is None else _dtype(layout) for layout in cost.layouts])
            set_layouts(
                captured, call, [None if layout is None else (layout.strides, layout.bytes) for layout in cost.layouts]
            )
        cache.save()
    return Counts(len(keys), measured)


def _dtype(layout: Layout) -> torch.dtype:
    return getattr(torch, layout.dtype.removeprefix("torch."))


def fill_times(captured: Capture, cache: CostCache, room_bytes: int | None = None) -> Counts:
    """Sets the time of every call, after fill_memory(). Calls that would need more than `room_bytes` are estimated."""
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
            if call.has_effect or call.is_opaque or (room_bytes is not None and _footprint_bytes(call) > room_bytes):
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
            except Exception:  # See fill_memory().
                continue
        cache.save()
        for call, key in kinds:
            cost = cache.costs.get(key)  # A saved cost wins, because another process may have planned with it.
            call.time_ns = times[key] if cost is None or cost.time_ns is None else cost.time_ns
    return Counts(len(times), measured)


# Bytes in use beside a call's own while it is timed: the random generator's state, and a block of fractions.
_BESIDE_BYTES = 8192
_BLOCK_BYTES = 8 * SAMPLE_BLOCK


def _footprint_bytes(call: Call) -> int:
    """Returns an upper bound of the bytes that timing takes: copies of inputs, results and workspace."""
    leaves = pytree.tree_leaves((needs_a_tensor(call.node), call.node.meta.get("val")))
    values = [leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
    sizes = [storage_bytes(value) for value in values if is_tensor(value)]
    if is_elementwise(call):
        count = sample_size(call)
        sizes = [count * value.element_size() for value in values if is_tensor(value)]
    block_bytes = _BLOCK_BYTES if any(size > SAMPLE_BLOCK for size in sizes) else 0
    return _BESIDE_BYTES + block_bytes + call.workspace_bytes + sum(sizes)


@functools.cache
def cache_of(device: torch.device, *, persistent: bool, threads: int) -> CostCache:
    return CostCache(device, persistent=persistent)


def cost_cache(device: torch.device, settings: Settings) -> CostCache:
    """Returns the cost cache of a device.

    With cudnn.benchmark every process selects its own convolution kernels, so costs of other processes are not read.
    """
    persistent = settings.cache and not torch.backends.cudnn.benchmark
    return cache_of(device, persistent=persistent, threads=torch.get_num_threads())
