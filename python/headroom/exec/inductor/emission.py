"""Writes a schedule as the forward and backward graphs that Inductor compiles."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from headroom import _C
from headroom._torch import extract_halves, pytree
from headroom._torch.inductor import ir, lowerings, register_lowering, rng_prims
from headroom.graph import mutation  # noqa: F401 - headroom::copy is defined there
from headroom.graph.capture import Capture
from headroom.graph.operators import is_tensor
from headroom.graph.step_graph import HANDS_ON

if TYPE_CHECKING:
    from headroom.exec.inductor.partitioner import KernelStep

aten, prims = torch.ops.aten, torch.ops.prims

for _name in ("headroom::store", "headroom::inside"):
    torch.library.define(_name, "(Tensor x) -> Tensor")
    torch.library.impl(_name, "CompositeExplicitAutograd", torch.clone)
torch.library.define("headroom::in_layout", "(Tensor x, int[] dimensions) -> Tensor")


@torch.library.impl("headroom::in_layout", "CompositeExplicitAutograd")
def _in_layout(x: torch.Tensor, dimensions: Sequence[int]) -> torch.Tensor:
    """Returns a copy with these dimensions from the largest stride to the smallest."""
    return torch.empty_permuted(x.shape, dimensions, dtype=x.dtype, device=x.device).copy_(x)


@register_lowering(torch.ops.headroom.store.default)
def _lower_store(x: Any) -> Any:
    """Makes Inductor store a value that it would otherwise compute inside its readers, or fuse with one of them."""
    x.realize()
    return x


@register_lowering(torch.ops.headroom.copy.default)
def _lower_copy(x: Any) -> Any:
    """Makes Inductor store a copy, even of an input, for which it would otherwise use the input itself."""
    copy = lowerings[aten.clone.default](x)
    copy.realize()
    return copy


@register_lowering(torch.ops.headroom.inside.default)
def _lower_inside(x: Any) -> Any:
    """Makes Inductor compute a value inside each reader that it would otherwise store, such as random numbers."""
    stored = x.data.data
    is_pointwise = isinstance(stored, ir.ComputedBuffer) and isinstance(stored.data, ir.Pointwise)
    return ir.TensorBox.create(stored.data) if is_pointwise else x


@register_lowering(torch.ops.headroom.in_layout.default)
def _lower_in_layout(x: Any, dimensions: Sequence[int]) -> Any:
    """Makes Inductor store a value with these dimensions from the largest stride to the smallest."""
    order = [len(dimensions) - 1 - dimensions.index(dimension) for dimension in range(len(dimensions))]
    return ir.ExternKernel.require_stride_order(x, order)


class Emission:
    """Rewrites a joint graph in the order of a schedule."""

    def __init__(self, joint: fx.GraphModule, fused: Capture) -> None:
        self.graph = fx.Graph()
        self.stored = {call.node for call in fused.calls if call.values}
        self.now: dict[fx.Node, fx.Node] = {}  # New nodes of inputs, constants and live stored results.
        self.random_states: dict[fx.Node, fx.Node] = {}  # By drawing node: the generator's state before its first run.
        for node in joint.graph.find_nodes(op="placeholder"):
            self.now[node] = self.graph.node_copy(node)
        for node in joint.graph.find_nodes(op="get_attr"):
            self.now[node] = self.graph.node_copy(node)

    def add(
        self,
        node: fx.Node,
        target: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any] | None = None,
        **meta: Any,
    ) -> fx.Node:
        """Adds a call of another target with a node's metadata, updated with `meta`."""
        new = self.graph.call_function(target, arguments, keywords)
        new.meta = {**node.meta, **meta}
        return new

    def get(self, node: fx.Node, inside: dict[fx.Node, fx.Node] | None = None) -> fx.Node:
        """Returns the new node that stands for a node at this point of the schedule.

        Results that are not stored are recomputed for each reader. If several readers shared such a node, Inductor
        would make it a kernel of its own, and keep its result from the first reader to the last.
        """
        inside = {} if inside is None else inside
        if node in self.now:
            return self.now[node]
        if node not in inside:
            if node in self.stored:
                raise RuntimeError(f"{node.name} is read and not there")
            inputs = {source: self.get(source, inside) for source in node.all_input_nodes}
            new = self.graph.node_copy(node, inputs.__getitem__)
            is_random = node.target is prims.inductor_random.default
            inside[node] = self.add(node, torch.ops.headroom.inside.default, (new,)) if is_random else new
        return inside[node]

    def run(self, node: fx.Node, *, draws: bool, is_rerun: bool) -> None:
        """Adds a call whose results are stored. `is_rerun`: the schedule runs it more than once.

        Kernels that draw random numbers fill memory from its beginning. If a value that they read were laid out
        otherwise than traced, its elements would get other numbers than in plain training, or in another run.
        """
        inside: dict[fx.Node, fx.Node] = {}
        inputs = {source: self.get(source, inside) for source in node.all_input_nodes}
        if draws:
            inputs = {source: self.as_traced(source, new) for source, new in inputs.items()}
        new = self.draw(node, inputs) if draws and is_rerun else self.graph.node_copy(node, inputs.__getitem__)
        if is_tensor(node.meta.get("val")):
            new = self.add(node, torch.ops.headroom.store.default, (new,))
        self.now[node] = new
        for user in node.users:
            if user.target is operator.getitem:
                self.now[user] = self.graph.node_copy(user, lambda _, new=new: new)

    def as_traced(self, node: fx.Node, new: fx.Node) -> fx.Node:
        """Adds a copy of a new node in the traced layout of the node for which it stands, if that is a tensor."""
        value = node.meta.get("val")
        if not is_tensor(value) or value.dim() < 2:
            return new
        dimensions = sorted(range(value.dim()), key=value.stride().__getitem__, reverse=True)
        return self.add(node, torch.ops.headroom.in_layout.default, (new, dimensions))

    def draw(self, node: fx.Node, inputs: dict[fx.Node, fx.Node]) -> fx.Node:
        """Adds a call that draws: its first run saves the generator's state, and reruns start from that state."""
        arguments = fx.map_arg(node.args, inputs.__getitem__)
        keywords = fx.map_arg(node.kwargs, inputs.__getitem__)
        state = self.random_states.get(node)
        if state is not None:
            return self.add(node, rng_prims.run_with_rng_state, (state, node.target, *arguments), keywords)
        result = node.meta["val"]
        first = next(tensor for tensor in pytree.tree_leaves(result) if is_tensor(tensor))
        now = torch.cuda.get_rng_state(first.device) if first.device.type == "cuda" else torch.get_rng_state()
        before = first.fake_mode.from_tensor(now)
        run_and_save = rng_prims.run_and_save_rng_state
        both = self.add(node, run_and_save, (node.target, *arguments), keywords, val=(before, result))
        self.random_states[node] = self.add(node, operator.getitem, (both, 0), val=before)
        return self.add(node, operator.getitem, (both, 1))

    def drop(self, nodes: Iterable[fx.Node]) -> None:
        for node in nodes:
            self.now.pop(node, None)


def emit(joint: fx.GraphModule, step: KernelStep, schedule: _C.Schedule) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Returns the forward and backward graphs in the order of the schedule, with one copy of a call for each run."""
    fused, count = step.fused, step.output_count
    emission = Emission(joint, fused)
    results = pytree.arg_tree_leaves(*joint.graph.output_node().args)
    wanted = [result for result in [*results[:count], *step.writes.values()] if isinstance(result, fx.Node)]
    nodes_in: dict[int, list[fx.Node]] = {}
    for node, number in fused.number.items():
        nodes_in.setdefault(fused.value_of_tensor[number], []).append(node)
    handed_on: dict[fx.Node, fx.Node] = {}
    forward_nodes: set[fx.Node] = set()

    def end_forward() -> None:
        for node in wanted:
            if node not in handed_on:
                handed_on[node] = emission.get(node)
        for write, source in step.writes.items():
            inputs = {source: handed_on[source]}
            emission.graph.node_copy(
                write, lambda argument, inputs=inputs: inputs.get(argument) or emission.get(argument)
            )
        forward_nodes.update(emission.graph.nodes)

    steps = schedule.steps
    runs = Counter(one.op for one in steps)
    hand_overs = [i for i, one in enumerate(steps) if one.is_run and step.call_of_op[one.op] == HANDS_ON]
    end = max(hand_overs, default=-1) + 1
    for position, one in enumerate(steps):
        if position == end:
            end_forward()
        if not one.is_run:
            emission.drop(nodes_in.get(one.value, ()))
        elif step.call_of_op[one.op] >= 0:
            call = fused.calls[step.call_of_op[one.op]]
            emission.run(call.node, draws=call.draws, is_rerun=runs[one.op] > 1)
            emission.drop(nodes_in.get(one.value, ()))
        elif step.call_of_op[one.op] == HANDS_ON:
            for node in wanted:
                if fused.value_of_tensor[fused.number[node]] in step.graph.op_inputs(one.op):
                    handed_on[node] = emission.get(node)
    forward = [handed_on.get(result, result) for result in results[:count]]
    backward = [emission.get(result) if isinstance(result, fx.Node) else result for result in results[count:]]
    for write in step.late_writes:
        emission.graph.node_copy(write, emission.get)
    new_nodes = [node for node in emission.graph.nodes if node not in forward_nodes]
    read_late = {source for node in new_nodes for source in node.all_input_nodes} | set(backward)
    saved = [node for node in emission.graph.nodes if node in forward_nodes and node in read_late]
    saved = [node for node in saved if node.op != "get_attr" and not node.name.startswith("tangents")]
    emission.graph.output((*forward, *backward)).meta = dict(joint.graph.output_node().meta)
    halves = extract_halves(fx.GraphModule(joint, emission.graph), saved, saved_sym_nodes=[], num_fwd_outputs=count)
    # With `fallback_random`, each half would also draw those numbers of the other that need no input.
    in_forward = {node.name for node in forward_nodes}
    for half, is_forward in zip(halves, (True, False), strict=True):
        half.graph.eliminate_dead_code(lambda node, own=is_forward: node.is_impure((node.name in in_forward) == own))
    return halves
