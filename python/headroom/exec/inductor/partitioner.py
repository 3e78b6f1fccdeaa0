"""Plans a step at the granularity of Inductor's kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from headroom import _C
from headroom._torch import OpOverload, min_cut_partition
from headroom._torch.inductor import CustomPartitionerFn, GraphLowering
from headroom.budget.excess import Excess, counts_whole_blocks
from headroom.costs.op_costs import CostCache, cost_cache, draw_time_ns, fill_costs, move_time_ns
from headroom.exec.inductor.aliases import refresh_views
from headroom.exec.inductor.emission import emit
from headroom.exec.inductor.own_partition import estimate_peak, saved_names
from headroom.graph.capture import Call, Capture, capture
from headroom.graph.effects import save_opaque
from headroom.graph.mutation import is_backward_write, is_forward_write, keep_what_forward_overwrites
from headroom.graph.operators import concrete, is_tensor
from headroom.graph.rewrite import separate_gradients
from headroom.graph.step_graph import Rest, make_graph
from headroom.graph.unsupported import Unsupported
from headroom.settings import Settings

aten, prims = torch.ops.aten, torch.ops.prims

# Max pooling stores the offset of each maximum in its window as one byte; the kernel that reads it computes the index.
_POOL, _INDEX_IN_POOL = prims._low_memory_max_pool_with_offsets, prims._low_memory_max_pool_offsets_to_indices
# Calls that Inductor computes inside the kernels that read them, though they are not tagged as pointwise.
_ALSO_INLINED = {
    _INDEX_IN_POOL,
    aten._unsafe_index,
    aten.clone,
    aten.constant_pad_nd,
    aten.embedding,
    aten.full,
    aten.full_like,
    aten.gather,
    aten.index,
    aten.lift_fresh_copy,
    aten.repeat,
    aten.scalar_tensor,
    aten.select_scatter,
    aten.slice_scatter,
    prims.broadcast_in_dim,
    prims.convert_element_type,
    prims.inductor_lookup_seed,
    prims.inductor_random,
    prims.iota,
}
_REDUCTIONS = {aten.sum, aten.mean, aten.amax, aten.amin, aten.var_mean, aten.var, aten.any, aten.argmax, aten.prod}
# Calls that write into a copy of their first argument. That argument is computed where the copy is made.
_INTO_COPIES = {
    aten._unsafe_index_put,
    aten._unsafe_masked_index_put_accumulate,
    aten.index_put,
    aten.scatter,
    aten.scatter_add,
    aten.scatter_reduce,
}
_SEEDS = {prims.inductor_seed, prims.inductor_seeds}
_CONVOLUTIONS = {aten.convolution, aten.convolution_backward}
# Maximum number of large tensors that a kernel may read to compute a result inside its readers; a result that needs
# more is stored. A result with a single reader may need more than one that is computed several times.
_MOST_READS = 4
_MOST_READS_IF_READ_ONCE = 8
# Maximum size of the allocation of a single number, as allocators round it.
_SCALAR_BYTES = 512
# Share of the bytes that a step may add that is left free for what is not planned, such as partial sums, because one
# more compilation is expensive.
_MARGIN = 0.003
# Share of its estimated added bytes by which PyTorch's own partition may exceed the budget and still be compiled and
# tried. The estimate for T5 on a GPU is 11 % above the real peak.
_ESTIMATE_ERROR = 0.15
# Up to this multiple of the smallest plan's peak, budgets are first tried with the smallest plan: measured peaks may
# exceed simulated ones by that much (a quarter in ConvNeXt-B on a GPU).
_NEAR_SMALLEST = 1.25
# Upper bounds of what a loss outside the graph takes, assumed until it is measured: this multiple of the outputs'
# gradients, which are themselves computed from three times as much, as in the mean of squares, and this many numbers.
# Cross entropy takes less.
_ASSUMED_REST = 4
_ASSUMED_NUMBERS = 4


def _packet(call: Call) -> object:
    return getattr(call.node.target, "_overloadpacket", call.node.target)


def _is_inlined(call: Call) -> bool:
    tags = getattr(call.node.target, "tags", ())
    return (torch.Tag.pointwise in tags or _packet(call) in _ALSO_INLINED) and call.may_recompute


def _is_own(call: Call) -> bool:
    """Returns whether Inductor generates a kernel for the call, instead of calling a library."""
    return _is_inlined(call) or _packet(call) in _REDUCTIONS or _packet(call) is _POOL


def find_masks(of: Capture) -> set[int]:
    """Returns the calls that reduce random numbers to something smaller, such as the bits of a dropout mask.

    Such a mask is worth more than its bytes: drawing the numbers again takes longer than reading the mask.
    """
    drawn: set[int] = set()  # Values that are computed from random numbers alone.
    masks: dict[int, int] = {}  # The smaller ones among them, and their calls.
    for position, call in enumerate(of.calls):
        reads = {of.value_of_tensor[tensor] for tensor in call.reads}
        if call.node.target is prims.inductor_random.default:
            drawn.update(call.values)
        elif _is_inlined(call) and not call.is_view and reads and reads <= drawn:
            size = sum(of.values[value].bytes for value in call.values)
            if size < min(of.values[value].bytes for value in reads):
                for value in reads:
                    masks.pop(value, None)
                masks.update(dict.fromkeys(call.values, position))
            elif not reads.isdisjoint(masks):
                continue
            drawn.update(call.values)
    return set(masks.values())


def copy_of(gm: fx.GraphModule) -> fx.GraphModule:
    """Returns a copy of the graph that may be changed; parameters and constants are shared."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {})).meta = dict(gm.graph.output_node().meta)
    return fx.GraphModule(gm, graph)


def lay_out(joint: fx.GraphModule) -> None:
    """Makes Inductor's copies of convolution inputs explicit, where convolutions are channels-last.

    Inductor saves the copies for backward instead of the inputs, so they must not be recomputed.
    """
    copies: dict[fx.Node, fx.Node] = {}
    for node in list(joint.graph.nodes):
        if getattr(node.target, "_overloadpacket", None) not in _CONVOLUTIONS:
            continue
        for source in node.all_input_nodes:
            value = source.meta.get("val")
            if (
                source.op != "placeholder"
                or not is_tensor(value)
                or value.dim() != 4
                or value.is_contiguous(memory_format=torch.channels_last)
            ):
                continue
            if source not in copies:
                layout = {"memory_format": torch.channels_last}
                with joint.graph.inserting_before(node), torch.no_grad():
                    copies[source] = joint.graph.call_function(aten.clone.default, (source,), layout)
                    policy = CheckpointPolicy.MUST_SAVE
                    copies[source].meta = {**node.meta, "val": aten.clone.default(value, **layout), "recompute": policy}
            node.replace_input_with(source, copies[source])


def share_pads(joint: fx.GraphModule) -> None:
    """Replaces a second, transposed padding of the same tensor by a view of the first padded tensor.

    Inductor pads the operands of matrix products to sizes for which they are fast, for each product separately. In a
    language model that gives two copies of the gradient of the logits that are live together.
    """
    # By what is padded and how: the first padding node, and the axes of its source.
    made: dict[object, tuple[fx.Node, list[int]]] = {}
    for node in list(joint.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)):
        source, pads, *value = node.args
        axes = list(range(node.meta["val"].dim()))
        by_axis = {axis: tuple(pads[2 * i : 2 * i + 2]) for i, axis in enumerate(reversed(axes)) if 2 * i < len(pads)}
        while source.target is aten.permute.default:
            source, order = source.args
            axes = [order[axis] % len(axes) for axis in axes]
        by_axis = {axes[axis]: pad for axis, pad in by_axis.items() if any(pad)}
        first, first_axes = made.setdefault((source, *sorted(by_axis.items()), *value), (node, axes))
        if first is node:
            continue
        order = [first_axes.index(axis) for axis in axes]
        with joint.graph.inserting_before(node), torch.no_grad():
            view = joint.graph.call_function(aten.permute.default, (first, order))
            view.meta = {**node.meta, "val": aten.permute.default(first.meta["val"], order)}
        node.replace_all_uses_with(view)
        joint.graph.erase_node(node)


def _readers(of: Capture) -> dict[int, list[int]]:
    """Returns the calls that read each value, without views."""
    readers: dict[int, list[int]] = {}
    for position, call in enumerate(of.calls):
        if not call.is_view:
            for value in {of.value_of_tensor[tensor] for tensor in call.reads}:
                readers.setdefault(value, []).append(position)
    return readers


def fuse(of: Capture, masks: set[int]) -> Capture:
    """Returns the capture with only those calls as ops whose results are stored.

    The result of a pointwise call is stored if a kernel of another kind or the user reads it, if a kernel would
    otherwise read too many tensors, if it combines several large tensors and is read more than once, or if its call is
    one of `masks`. All other results are computed inside the kernels that read them: such a call has no values, and its
    readers read what it reads.
    """
    outputs = {tensor for tensor in [*of.forward_outputs, *of.backward_outputs] if tensor >= 0}
    output_values = {of.value_of_tensor[tensor] for tensor in outputs}
    readers = _readers(of)
    maker = {value: position for position, call in enumerate(of.calls) for value in call.values}
    inlined = [_is_inlined(call) and not call.is_view for call in of.calls]
    stored: list[bool] = []
    # By call and by stored value that it reads: one tensor of the value, and whether each element is read only where
    # the call writes it.
    reads: list[dict[int, tuple[int, bool]]] = []

    def needs_memory(reader: int, values: list[int]) -> bool:
        """Returns whether a reader of these values needs them in memory."""
        call = of.calls[reader]
        if inlined[reader] or _packet(call) in _REDUCTIONS:
            return False
        first = of.number.get(call.node.args[0]) if _packet(call) in _INTO_COPIES else None
        return first is None or of.value_of_tensor[first] not in values

    def stored_reads(call: Call) -> dict[int, tuple[int, bool]]:
        tags = getattr(call.node.target, "tags", ())
        keeps = torch.Tag.pointwise in tags or _packet(call) in (aten.clone, prims.convert_element_type)
        result = call.node.meta.get("val")
        sources: dict[int, tuple[int, bool]] = {}
        for tensor in call.reads:
            read = of.tensors[tensor].meta["val"]
            is_in_place = keeps and all(is_tensor(fake) and fake.is_contiguous() for fake in (read, result))
            is_in_place = is_in_place and read.numel() == result.numel()
            value = of.value_of_tensor[tensor]
            position = maker.get(value)
            origins = {value: (tensor, True)} if position is None or stored[position] else reads[position]
            for source, (first, origin_is_in_place) in origins.items():
                known, was_in_place = sources.get(source, (first, True))
                sources[source] = (known, was_in_place and origin_is_in_place and is_in_place)
        return sources

    for position, call in enumerate(of.calls):
        reads.append(stored_reads(call))
        if not inlined[position]:
            stored.append(True)
            continue
        size = max((of.values[value].bytes for value in call.values), default=0)
        uses = _uses(call, readers)
        by_others = _packet(call) is not _INDEX_IN_POOL and any(needs_memory(reader, call.values) for reader in uses)
        large = sum(of.values[value].bytes * 2 >= size for value in reads[-1])
        meets = large > 1 and len(uses) > 1
        is_output = any(value in output_values for value in call.values)
        most_reads = _MOST_READS if len(uses) > 1 else _MOST_READS_IF_READ_ONCE
        stored.append(by_others or is_output or meets or large > most_reads or position in masks)
    calls = [
        replace(
            call, reads=[tensor for tensor, _ in read.values()], values=call.values if is_stored else [], overwrites=[]
        )
        for call, read, is_stored in zip(of.calls, reads, stored, strict=True)
    ]
    for call, is_inlined, read in zip(calls, inlined, reads, strict=True):
        if is_inlined and len(call.values) == 1:
            in_place = [value for value, (_, is_in_place) in read.items() if is_in_place]
            call.overwrites = _overwritable(of, call, in_place)
    return replace(of, calls=calls)


def _overwritable(of: Capture, call: Call, values: list[int]) -> list[int]:
    """Returns the values among these whose memory the one value that the call makes can take over."""
    size = of.values[call.values[0]].bytes
    return [value for value in values if of.values[value].bytes == size and not of.values[value].resident]


def _uses(call: Call, readers: dict[int, list[int]]) -> list[int]:
    return [reader for value in call.values for reader in readers.get(value, [])]


def fill_kernel_costs(of: Capture, fused: Capture, masks: set[int], cache: CostCache, *, channels_last: bool) -> None:
    """Sets the time and the workspace of every call of `fused`.

    Kernels that Inductor generates take the time to move their inputs and results. Library calls are measured in the
    layout that Inductor will choose.
    """
    own = [_is_own(call) for call in of.calls]
    largest = max([value.bytes for value in of.values], default=0)
    others = [call for call, is_own in zip(fused.calls, own, strict=True) if not is_own]
    for call in others:
        call.channels_last = channels_last and _packet(call) in _CONVOLUTIONS
    fill_costs(replace(fused, calls=others), cache, _C.Meter(of.device))
    # Values that reductions directly before this call have read; Inductor fuses consecutive reductions into one kernel.
    just_read: set[int] = set()
    for position, (call, is_own) in enumerate(zip(fused.calls, own, strict=True)):
        if not call.values:
            continue
        reads = {of.value_of_tensor[tensor] for tensor in call.reads} if is_own else set()
        if is_own:
            moved = [*(reads - just_read), *call.values]
            call.time_ns = move_time_ns(sum(of.values[value].bytes for value in moved), cache, of.device, largest)
        if position in masks:
            call.time_ns += draw_time_ns(concrete(call.node.meta["val"].numel()), cache, of.device, largest)
        just_read = just_read | reads if _packet(call) in _REDUCTIONS else set()


@dataclass
class KernelStep:
    """A captured step as the kernels that Inductor will generate for it."""

    captured: Capture
    fused: Capture
    rest: Rest  # Work between forward and backward.
    graph: _C.Graph
    problem: _C.Problem
    call_of_op: list[int]
    output_count: int
    writes: dict[fx.Node, fx.Node]  # Nodes that write over inputs in forward, and what they write.
    late_writes: dict[fx.Node, fx.Node]  # Nodes that write over inputs in backward, and what they write.
    store_all_bytes: int
    plain_time_ns: int
    result_bytes: int  # Bytes of the outputs that take gradients, without scalars.


def make_kernel_step(
    joint: fx.GraphModule, output_count: int, settings: Settings, rest: Rest | None = None
) -> KernelStep:
    """Returns the step to plan, and rewrites the joint graph as it will be compiled.

    If `rest` is None, an ordinary loss is assumed between forward and backward.
    """
    channels_last = GraphLowering.decide_layout_opt(joint, is_inference=False)
    if channels_last:
        lay_out(joint)
    share_pads(joint)
    captured = capture(joint, output_count, "step")
    for call in captured.calls:
        # A call that draws random numbers may be rerun from a saved generator state. Seeds are smaller than such a
        # state, and higher-order operators cannot be given one.
        may_draw_again = isinstance(call.node.target, OpOverload) and _packet(call) not in _SEEDS
        call.may_recompute = call.may_recompute and (may_draw_again or not call.draws)
    writes, late_writes = _writes(joint, captured, is_forward_write), _writes(joint, captured, is_backward_write)
    # The values written over inputs live until the end of forward or backward, like outputs.
    captured = replace(
        captured,
        forward_outputs=[*captured.forward_outputs, *[captured.number[source] for source in writes.values()]],
        backward_outputs=[*captured.backward_outputs, *[captured.number[source] for source in late_writes.values()]],
    )

    cache = cost_cache(captured.device, settings)
    masks = find_masks(captured)
    fused = fuse(captured, masks)
    fill_kernel_costs(captured, fused, masks, cache, channels_last=channels_last)
    tangents = {fused.value_of_tensor[tensor] for tensor in fused.backward_inputs if tensor >= 0}
    # backward() itself creates the gradient of a scalar loss.
    sizes = [fused.values[value].bytes for value in tangents if fused.values[value].bytes > _SCALAR_BYTES]
    if rest is None:
        numbers = _ASSUMED_NUMBERS * _C.allocated_bytes(4, captured.device)
        rest = Rest(_ASSUMED_REST * sum(sizes) + numbers if sizes else 0)
    # Gradients are not accumulated in this graph, because Inductor chooses their layouts. A trial measures that.
    graph, call_of_op = make_graph(fused, rest, accumulates=False)
    plain = _C.simulate(graph, _C.store_all(graph))
    problem = _C.Problem(graph)
    return KernelStep(
        captured,
        fused,
        rest,
        graph,
        problem,
        call_of_op,
        output_count,
        writes,
        late_writes,
        plain.peak_bytes,
        plain.time_ns,
        sum(sizes),
    )


def _writes(joint: fx.GraphModule, captured: Capture, is_write: Callable[[fx.Node], bool]) -> dict[fx.Node, fx.Node]:
    """Returns the nodes that write over inputs, and what they write."""
    writes: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.nodes:
        if not is_write(node):
            continue
        if node.target is not aten.copy_.default or node.args[1] not in captured.number:
            raise Unsupported(f"{node.name}: {node.target} changes memory in a way that cannot be planned")
        writes[node] = node.args[1]
    return writes


class Partitioner(CustomPartitionerFn):
    """Splits the joint graph by a plan whose real peak should be within the budget, or else by the smallest plan.

    PyTorch's own partition is used where it may fit, unless `by_plan` is set.
    """

    def __init__(
        self,
        settings: Settings,
        limit_bytes: int | None,
        before_bytes: int,
        excess_bytes: int | None,
        rest: Rest | None,
        *,
        by_plan: bool,
        is_first: bool = False,
    ) -> None:
        self.settings = settings
        self.limit_bytes = limit_bytes  # Limit of the bytes in use on the device; None: the budget is no number.
        self.before_bytes = before_bytes  # Bytes in use on the device before the step.
        self.excess_bytes = excess_bytes  # Excess of measured over simulated peaks. None: use the smallest plan.
        self.rest = rest  # Work between forward and backward. None: not known.
        self.by_plan = by_plan
        self.is_first = is_first  # Whether no plan of the step has been tried yet.
        self.step: KernelStep | None = None
        self.schedule: _C.Schedule | None = None  # None: PyTorch's own partition.
        self.resident_bytes = 0
        self.budget_bytes = 0  # Bytes of the budget, without memory outside the step.
        self.simulated_bytes = 0  # Simulated peak of the chosen partition.
        self.time_ns = 0
        self.is_smallest = False
        # Bytes that the step may add, if the smallest plan is tried first although larger ones may fit.
        self._aimed_bytes: int | None = None

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        gm.graph.eliminate_dead_code()
        refresh_views(gm)
        save_opaque(gm)
        count = kwargs["num_fwd_outputs"]
        keep_what_forward_overwrites(gm, count)
        separate_gradients(gm, count, torch.ops.headroom.copy.default)  # Inductor may drop a clone.
        gm.recompile()
        joint = copy_of(gm)
        self.step = step = make_kernel_step(joint, count, self.settings, self.rest)
        self.rest = step.rest
        self.resident_bytes = step.graph.resident_bytes()
        self.budget_bytes = self.settings.graph_budget(step.graph, step.store_all_bytes, 0)
        if self.limit_bytes is not None:
            self.budget_bytes = self.limit_bytes - self.before_bytes + self.resident_bytes
        target = 0 if self.excess_bytes is None else self.budget_bytes - self.excess_bytes
        if self.is_first:
            target = self.resident_bytes + Excess(step.captured.device).subtract(target - self.resident_bytes)
        if not self.by_plan:
            halves = min_cut_partition(gm, joint_inputs, **kwargs)
            saved = saved_names(halves[0], count)
            is_library_call = [not _is_own(call) for call in step.captured.calls]
            own_bytes = estimate_peak(step.captured, step.fused, saved, step.rest, is_library_call)
            most_bytes = self.budget_bytes + int(_ESTIMATE_ERROR * (own_bytes - self.resident_bytes))
            if target >= step.store_all_bytes or own_bytes <= most_bytes:
                self.simulated_bytes, self.time_ns = own_bytes, step.plain_time_ns
                return halves
        target -= int(_MARGIN * (target - self.resident_bytes))
        if self.is_first and counts_whole_blocks(step.captured.device) and self._is_near_smallest(target):
            self._aimed_bytes, target = target - self.resident_bytes, 0
        plan = _C.make_plan(step.problem, self.settings.planner, max(target, 0))
        if plan.schedule is None:
            self.is_smallest = True
            plan = _C.make_plan(step.problem, self.settings.planner, plan.smallest_budget_bytes)
        self.schedule, self.simulated_bytes, self.time_ns = plan.schedule, plan.peak_bytes, plan.time_ns
        return emit(joint, step, plan.schedule)

    def _is_near_smallest(self, target_bytes: int) -> bool:
        """Returns whether to try the smallest plan first: its measured peak shows whether the budget is feasible."""
        smallest = self.smallest_bytes()
        return smallest <= target_bytes - self.resident_bytes <= _NEAR_SMALLEST * smallest

    def aimed_bytes(self) -> int:
        """Returns the bytes that the step was planned to add."""
        return self.planned_bytes() if self._aimed_bytes is None else self._aimed_bytes

    def trial_bytes(self, left_bytes: int) -> int | None:
        """Returns the limit for the bytes that a trial adds, after compilation left `left_bytes` allocated.

        None: no limit, as for the smallest plan, whose measured peak goes into the error message.
        """
        if self.step is None or self.settings.budget is None or self.is_smallest:
            return None
        return self.allowed_bytes() - left_bytes

    def set_aside(self, left_bytes: int) -> None:
        """Counts memory that compilation and trials left allocated, such as library workspaces, as outside the step."""
        self.before_bytes += left_bytes
        if self.limit_bytes is not None:
            self.budget_bytes -= left_bytes

    def planned_bytes(self) -> int:
        """Returns the bytes that the step adds according to the simulation."""
        return self.simulated_bytes - self.resident_bytes

    def smallest_bytes(self) -> int:
        """Returns the bytes that the step adds with the smallest plan."""
        plan = _C.make_plan(self.step.problem, self.settings.planner, 0)
        return plan.smallest_budget_bytes - self.resident_bytes

    def allowed_bytes(self) -> int:
        """Returns the bytes that the step may add to the memory in use before it."""
        return self.budget_bytes - self.resident_bytes

    def allow(self, added_bytes: int) -> None:
        """Lets the step add this many bytes to the memory in use before it."""
        self.budget_bytes = self.resident_bytes + added_bytes

    def uuid(self) -> str:
        """Returns one key for all plans, because the key of Inductor's cache includes the partitioned graphs."""
        return "headroom"
