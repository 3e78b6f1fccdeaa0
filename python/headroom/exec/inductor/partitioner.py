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
from headroom.costs.op_costs import cost_cache
from headroom.exec.inductor.aliases import refresh_views
from headroom.exec.inductor.emission import emit
from headroom.exec.inductor.fusion import CONVOLUTIONS, fill_kernel_costs, find_masks, fuse, is_generated, packet
from headroom.exec.inductor.own_partition import estimate_peak, saved_names
from headroom.graph.capture import Capture, capture
from headroom.graph.effects import save_opaque
from headroom.graph.mutation import is_backward_write, is_forward_write, keep_what_forward_overwrites
from headroom.graph.operators import is_tensor
from headroom.graph.rewrite import separate_gradients
from headroom.graph.step_graph import Rest, make_graph
from headroom.graph.unsupported import Unsupported
from headroom.settings import Settings

aten, prims = torch.ops.aten, torch.ops.prims

_SEEDS = {prims.inductor_seed, prims.inductor_seeds}
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
        if getattr(node.target, "_overloadpacket", None) not in CONVOLUTIONS:
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
        may_draw_again = isinstance(call.node.target, OpOverload) and packet(call) not in _SEEDS
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
            is_library_call = [not is_generated(call) for call in step.captured.calls]
            own_bytes = estimate_peak(step.captured, step.fused, saved, step.rest, is_library_call)
            most_bytes = self.budget_bytes + int(_ESTIMATE_ERROR * (own_bytes - self.resident_bytes))
            if target >= step.store_all_bytes or own_bytes <= most_bytes:
                self.simulated_bytes, self.time_ns = own_bytes, step.plain_time_ns
                return halves
        target -= int(_MARGIN * (target - self.resident_bytes))
        if self.is_first and counts_whole_blocks(step.captured.device) and self._is_near_smallest(target):
            self._aimed_bytes, target = target - self.resident_bytes, 0
        plan = self._make_plan(target)
        if plan.schedule is None:
            self.is_smallest = True
            plan = self._make_plan(plan.smallest_budget_bytes)
        self.schedule, self.simulated_bytes, self.time_ns = plan.schedule, plan.peak_bytes, plan.time_ns
        return emit(joint, step, plan.schedule)

    def _make_plan(self, budget_bytes: int) -> _C.Plan:
        settings = self.settings
        return _C.make_plan(self.step.problem, settings.planner, max(budget_bytes, 0), settings.keep_order)

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
        return self._make_plan(0).smallest_budget_bytes - self.resident_bytes

    def allowed_bytes(self) -> int:
        """Returns the bytes that the step may add to the memory in use before it."""
        return self.budget_bytes - self.resident_bytes

    def allow(self, added_bytes: int) -> None:
        """Lets the step add this many bytes to the memory in use before it."""
        self.budget_bytes = self.resident_bytes + added_bytes

    def uuid(self) -> str:
        """Returns one key for all plans, because the key of Inductor's cache includes the partitioned graphs."""
        return "headroom"
