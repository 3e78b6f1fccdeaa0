"""Plans for Inductor: made on the kernels that it will make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._functorch import partitioners
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch._inductor.graph import GraphLowering
from torch.utils.checkpoint import CheckpointPolicy

from headroom import _C
from headroom.budget.excess import Excess, counts_whole_blocks
from headroom.costs.op_costs import CostCache, cost_cache, draw_time_ns, fill_costs, move_time_ns
from headroom.exec.inductor.aliases import refresh_views
from headroom.exec.inductor.emission import emit
from headroom.exec.inductor.own_partition import estimate_peak, saved_names
from headroom.graph.capture import Call, Capture, capture
from headroom.graph.mutation import is_backward_write, is_forward_write, keep_what_forward_overwrites
from headroom.graph.operators import concrete, is_tensor
from headroom.graph.step_graph import Rest, make_graph
from headroom.graph.unsupported import Unsupported
from headroom.settings import Settings

aten, prims = torch.ops.aten, torch.ops.prims

# Of a largest value's place: a byte in memory, from which the kernel that reads it computes the index.
_POOL, _INDEX_IN_POOL = prims._low_memory_max_pool_with_offsets, prims._low_memory_max_pool_offsets_to_indices
# Inductor computes these inside the kernels that read them, though they are not tagged as pointwise.
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
# Write into a copy of their first argument, which is computed where the copy is made.
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
# As many large tensors as a kernel may read before what it computes is stored, if that is read more than once or once.
_MOST_READS = 4
_MOST_READS_IF_READ_ONCE = 8
_SCALAR_BYTES = 512  # that a number takes at most, as allocators round it
# Of what a step may add, left free for what is not planned, such as partial sums: one more compilation is dear.
_MARGIN = 0.003
# PyTorch's own partition is compiled and tried if its estimated peak is over the budget by this part at most. The
# estimate for T5 on a GPU is 11 % above the real peak.
_ESTIMATE_ERROR = 0.15
# Budgets up to this multiple of the smallest plan are first tried with that one: so far real peaks may be above
# simulated ones there (a quarter in ConvNeXt-B on a GPU).
_NEAR_SMALLEST = 1.25
# What a loss outside of the graph has at most, as long as that is not known: some numbers, the gradients of the
# results, and three times as much from which they are computed, as in the mean of squares. Cross entropy takes less.
_ASSUMED_REST = 4
_ASSUMED_NUMBERS = 4


def _packet(call: Call) -> object:
    return getattr(call.node.target, "_overloadpacket", call.node.target)


def _is_inlined(call: Call) -> bool:
    tags = getattr(call.node.target, "tags", ())
    return (torch.Tag.pointwise in tags or _packet(call) in _ALSO_INLINED) and call.may_recompute


def _is_own(call: Call) -> bool:
    """Whether Inductor makes a kernel of the call, and calls no library."""
    return _is_inlined(call) or _packet(call) in _REDUCTIONS or _packet(call) is _POOL


def find_masks(of: Capture) -> set[int]:
    """Calls that make something smaller of random numbers alone, as dropout's bits.

    To keep that is worth more than its bytes: to draw the numbers again takes longer than to read it.
    """
    drawn: set[int] = set()  # values that are made of random numbers alone
    masks: dict[int, int] = {}  # those of them that are smaller, and their calls
    for position, call in enumerate(of.calls):
        reads = {of.value_of_tensor[one] for one in call.reads}
        if call.node.target is prims.inductor_random.default:
            drawn.update(call.values)
        elif _is_inlined(call) and not call.is_view and reads and reads <= drawn:
            size = sum(of.values[one].bytes for one in call.values)
            if size < min(of.values[one].bytes for one in reads):
                for one in reads:
                    masks.pop(one, None)
                masks.update(dict.fromkeys(call.values, position))
            elif not reads.isdisjoint(masks):
                continue
            drawn.update(call.values)
    return set(masks.values())


def copy_of(gm: fx.GraphModule) -> fx.GraphModule:
    """For others to change; parameters and constants are shared."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {})).meta = dict(gm.graph.output_node().meta)
    return fx.GraphModule(gm, graph)


def lay_out(joint: fx.GraphModule) -> None:
    """Writes out the copies that Inductor makes of inputs for convolutions, where these are channels-last.

    Inductor keeps them for backward in the place of the inputs, so they are not to be made again.
    """
    copies: dict[fx.Node, fx.Node] = {}
    for node in list(joint.graph.nodes):
        if getattr(node.target, "_overloadpacket", None) not in _CONVOLUTIONS:
            continue
        for one in node.all_input_nodes:
            value = one.meta.get("val")
            if (
                one.op != "placeholder"
                or not is_tensor(value)
                or value.dim() != 4
                or value.is_contiguous(memory_format=torch.channels_last)
            ):
                continue
            if one not in copies:
                layout = {"memory_format": torch.channels_last}
                with joint.graph.inserting_before(node), torch.no_grad():
                    copies[one] = joint.graph.call_function(aten.clone.default, (one,), layout)
                    policy = CheckpointPolicy.MUST_SAVE
                    copies[one].meta = {**node.meta, "val": aten.clone.default(value, **layout), "recompute": policy}
            node.replace_input_with(one, copies[one])


def share_pads(joint: fx.GraphModule) -> None:
    """Makes of a tensor that is padded twice, the second time transposed, one padded tensor and a view of it.

    Inductor pads what matrix products read to sizes that they are fast with, for each product by itself: in a language
    model two copies of the gradient of the logits, alive together.
    """
    made: dict[object, tuple[fx.Node, list[int]]] = {}  # by what is padded and how: the node, and its source's axes
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


def fuse(of: Capture, masks: set[int]) -> Capture:
    """The capture with only those calls as ops whose results are to be stored.

    Results of pointwise calls are where a kernel of another kind or the user reads them, where a kernel would read too
    many tensors, where several large tensors meet in one that is read more than once, and where they are `masks`. All
    others are computed inside the kernels that read them: such a call has no values, and its readers read what it
    reads.
    """
    outputs = {one for one in [*of.forward_outputs, *of.backward_outputs] if one >= 0}
    output_values = {of.value_of_tensor[one] for one in outputs}
    readers: dict[int, list[int]] = {}  # by value: calls, views left out
    for position, call in enumerate(of.calls):
        if not call.is_view:
            for value in {of.value_of_tensor[one] for one in call.reads}:
                readers.setdefault(value, []).append(position)
    maker = {value: position for position, call in enumerate(of.calls) for value in call.values}
    inlined = [_is_inlined(call) and not call.is_view for call in of.calls]
    stored: list[bool] = []
    # By call, by stored value that it reads: one tensor of it, and whether it is read only where the call writes.
    reads: list[dict[int, tuple[int, bool]]] = []

    def needs_memory(reader: int, values: list[int]) -> bool:
        """Whether a reader of these values wants them in memory."""
        call = of.calls[reader]
        if inlined[reader] or _packet(call) in _REDUCTIONS:
            return False
        first = of.number.get(call.node.args[0]) if _packet(call) in _INTO_COPIES else None
        return first is None or of.value_of_tensor[first] not in values

    def stored_reads(call: Call) -> dict[int, tuple[int, bool]]:
        tags = getattr(call.node.target, "tags", ())
        keeps = torch.Tag.pointwise in tags or _packet(call) in (aten.clone, prims.convert_element_type)
        result = call.node.meta.get("val")
        found: dict[int, tuple[int, bool]] = {}
        for tensor in call.reads:
            read = of.tensors[tensor].meta["val"]
            is_here = keeps and all(is_tensor(one) and one.is_contiguous() for one in (read, result))
            is_here = is_here and read.numel() == result.numel()
            value = of.value_of_tensor[tensor]
            position = maker.get(value)
            behind = {value: (tensor, True)} if position is None or stored[position] else reads[position]
            for one, (first, is_there) in behind.items():
                known, was_here = found.get(one, (first, True))
                found[one] = (known, was_here and is_there and is_here)
        return found

    for position, call in enumerate(of.calls):
        reads.append(stored_reads(call))
        if not inlined[position]:
            stored.append(True)
            continue
        size = max((of.values[value].bytes for value in call.values), default=0)
        uses = _uses(call, readers)
        by_others = _packet(call) is not _INDEX_IN_POOL and any(needs_memory(one, call.values) for one in uses)
        large = sum(of.values[value].bytes * 2 >= size for value in reads[-1])
        meets = large > 1 and len(uses) > 1
        is_output = any(value in output_values for value in call.values)
        most_reads = _MOST_READS if len(uses) > 1 else _MOST_READS_IF_READ_ONCE
        stored.append(by_others or is_output or meets or large > most_reads or position in masks)
    calls = [
        replace(call, reads=[one for one, _ in read.values()], values=call.values if is_stored else [], overwrites=[])
        for call, read, is_stored in zip(of.calls, reads, stored, strict=True)
    ]
    for position, call in enumerate(calls):
        if inlined[position] and len(call.values) == 1:
            size = of.values[call.values[0]].bytes
            here = [value for value, (_, is_here) in reads[position].items() if is_here]
            call.overwrites = [one for one in here if of.values[one].bytes == size and not of.values[one].resident]
    return replace(of, calls=calls)


def _uses(call: Call, readers: dict[int, list[int]]) -> list[int]:
    return [one for value in call.values for one in readers.get(value, [])]


def fill_kernel_costs(of: Capture, fused: Capture, masks: set[int], cache: CostCache, *, channels_last: bool) -> None:
    """Kernels of Inductor's own move their inputs and results; the others are measured, laid out as Inductor will."""
    own = [_is_own(call) for call in of.calls]
    largest = max([value.bytes for value in of.values], default=0)
    others = [call for call, is_own in zip(fused.calls, own, strict=True) if not is_own]
    for call in others:
        call.channels_last = channels_last and _packet(call) in _CONVOLUTIONS
    fill_costs(replace(fused, calls=others), cache, _C.Meter(of.device))
    just_read: set[int] = set()  # by reductions right before, which are one kernel with those that follow
    for position, (call, is_own) in enumerate(zip(fused.calls, own, strict=True)):
        if not call.values:
            continue
        reads = {of.value_of_tensor[one] for one in call.reads} if is_own else set()
        if is_own:
            moved = [*(reads - just_read), *call.values]
            call.time_ns = move_time_ns(sum(of.values[one].bytes for one in moved), cache, of.device, largest)
        if position in masks:
            call.time_ns += draw_time_ns(concrete(call.node.meta["val"].numel()), cache, of.device, largest)
        just_read = just_read | reads if _packet(call) in _REDUCTIONS else set()


@dataclass
class KernelStep:
    """A captured step as the kernels that Inductor will make of it."""

    captured: Capture
    fused: Capture
    rest: Rest  # between forward and backward
    graph: _C.Graph
    problem: _C.Problem
    call_of_op: list[int]
    output_count: int
    writes: dict[fx.Node, fx.Node]  # nodes that write inputs over in forward, and what they write
    late_writes: dict[fx.Node, fx.Node]  # the same in backward
    store_all_bytes: int
    plain_time_ns: int
    result_bytes: int  # of the results that take gradients, but for numbers


def make_kernel_step(
    joint: fx.GraphModule, output_count: int, settings: Settings, rest: Rest | None = None
) -> KernelStep:
    """Changes the graph to what is to be emitted. A `rest` of None is assumed to be an ordinary loss."""
    channels_last = GraphLowering.decide_layout_opt(joint, is_inference=False)
    if channels_last:
        lay_out(joint)
    share_pads(joint)
    captured = capture(joint, output_count, "step")
    for call in captured.calls:
        # What draws may draw again from a state that is kept. Seeds are smaller than that, and higher-order operators
        # cannot be given one.
        may_draw_again = isinstance(call.node.target, torch._ops.OpOverload) and _packet(call) not in _SEEDS
        call.may_recompute = call.may_recompute and (may_draw_again or not call.draws)
    writes, late_writes = _writes(joint, captured, is_forward_write), _writes(joint, captured, is_backward_write)
    # What they write is kept to the end of forward or backward as the outputs are.
    captured = replace(
        captured,
        forward_outputs=[*captured.forward_outputs, *[captured.number[one] for one in writes.values()]],
        backward_outputs=[*captured.backward_outputs, *[captured.number[one] for one in late_writes.values()]],
    )

    cache = cost_cache(captured.device, settings)
    masks = find_masks(captured)
    fused = fuse(captured, masks)
    fill_kernel_costs(captured, fused, masks, cache, channels_last=channels_last)
    tangents = {fused.value_of_tensor[one] for one in fused.backward_inputs if one >= 0}
    # The gradient of a loss is made by backward() itself.
    sizes = [fused.values[one].bytes for one in tangents if fused.values[one].bytes > _SCALAR_BYTES]
    if rest is None:
        numbers = _ASSUMED_NUMBERS * _C.allocated_bytes(4, captured.device)
        rest = Rest(_ASSUMED_REST * sum(sizes) + numbers if sizes else 0)
    graph, call_of_op = make_graph(fused, rest, accumulates=False)  # Inductor chooses layouts; a trial will tell.
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
    """Returns the nodes that write inputs over, and what they write."""
    writes: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.nodes:
        if not is_write(node):
            continue
        if node.target is not aten.copy_.default or node.args[1] not in captured.number:
            raise Unsupported(f"{node.name}: {node.target} changes memory in a way that cannot be planned")
        writes[node] = node.args[1]
    return writes


class Partitioner(CustomPartitionerFn):
    """Splits the joint graph by a plan whose real peak is to be under the budget, or by the smallest.

    Where PyTorch's own partition may fit it is that, unless it is to be `by_plan` even then.
    """

    def __init__(
        self,
        settings: Settings,
        outside_bytes: int,
        excess_bytes: int | None,
        rest: Rest | None,
        *,
        by_plan: bool,
        is_first: bool = False,
    ) -> None:
        self.settings = settings
        self.outside_bytes = outside_bytes
        self.excess_bytes = excess_bytes  # of real peaks over simulated ones; None: the smallest is wanted
        self.rest = rest  # of the step; None: not known
        self.by_plan = by_plan
        self.is_first = is_first  # no plan of the step has been tried yet
        self.step: KernelStep | None = None
        self.schedule: _C.Schedule | None = None  # None: PyTorch's own partition
        self.resident_bytes = 0
        self.budget_bytes = 0  # beside what is outside
        self.simulated_bytes = 0  # by the schedule
        self.time_ns = 0
        self.is_smallest = False
        self._aimed_bytes: int | None = None  # where the smallest plan is made though there may be room for others

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        gm.graph.eliminate_dead_code()
        refresh_views(gm)
        count = kwargs["num_fwd_outputs"]
        keep_what_forward_overwrites(gm, count)
        gm.recompile()
        joint = copy_of(gm)
        self.step = step = make_kernel_step(joint, count, self.settings, self.rest)
        self.rest = step.rest
        self.resident_bytes = step.graph.resident_bytes()
        self.budget_bytes = self.settings.graph_budget(step.graph, step.store_all_bytes, self.outside_bytes)
        target = 0 if self.excess_bytes is None else self.budget_bytes - self.excess_bytes
        if self.is_first:
            target = self.resident_bytes + Excess(step.captured.device).subtract(target - self.resident_bytes)
        if not self.by_plan:
            halves = partitioners.min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)
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
        """Whether the smallest plan is to be tried before others: its peak says whether the budget can be kept."""
        smallest = self.smallest_bytes()
        return smallest <= target_bytes - self.resident_bytes <= _NEAR_SMALLEST * smallest

    def aimed_bytes(self) -> int:
        """That the step was to add by the schedule, as far as is known."""
        return self.planned_bytes() if self._aimed_bytes is None else self._aimed_bytes

    def trial_bytes(self, left_bytes: int) -> int | None:
        """That a trial may add after so much came to stay. None: no limit, as of the smallest plan, whose peak an error
        names."""
        if self.step is None or self.settings.budget is None or self.is_smallest:
            return None
        return self.allowed_bytes() - left_bytes

    def set_aside(self, left_bytes: int) -> None:
        """Counts what came to stay on the device meanwhile, such as libraries' workspaces, as outside the step."""
        self.outside_bytes += left_bytes
        if self.settings.limit_bytes() is not None:
            self.budget_bytes -= left_bytes

    def planned_bytes(self) -> int:
        """That the step adds by the schedule."""
        return self.simulated_bytes - self.resident_bytes

    def smallest_bytes(self) -> int:
        """That the step adds by the smallest plan."""
        plan = _C.make_plan(self.step.problem, self.settings.planner, 0)
        return plan.smallest_budget_bytes - self.resident_bytes

    def allowed_bytes(self) -> int:
        """That the step may add to what is there before."""
        return self.budget_bytes - self.resident_bytes

    def uuid(self) -> str:
        """The same for all plans: Inductor's cache goes by the graphs that the partition gives."""
        return "headroom"
