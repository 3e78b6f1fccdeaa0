"""Writes a schedule as the forward and backward graphs that Inductor compiles."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._functorch import partitioners
from torch._inductor import ir
from torch._inductor.lowering import lowerings, register_lowering
from torch._prims import rng_prims
from torch.utils import _pytree as pytree

from headroom import _C
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


@register_lowering(torch.ops.headroom.store.default)
def _lower_store(x: Any) -> Any:
    """Has Inductor store what it would rather compute inside each kernel that reads it, or together with its reader."""
    x.realize()
    return x


@register_lowering(torch.ops.headroom.copy.default)
def _lower_copy(x: Any) -> Any:
    """Has Inductor store a copy, also of an input, which it would take for the input itself."""
    copy = lowerings[aten.clone.default](x)
    copy.realize()
    return copy


@register_lowering(torch.ops.headroom.inside.default)
def _lower_inside(x: Any) -> Any:
    """Has Inductor compute inside each kernel that reads it what it would rather store, such as random numbers."""
    stored = x.data.data
    is_pointwise = isinstance(stored, ir.ComputedBuffer) and isinstance(stored.data, ir.Pointwise)
    return ir.TensorBox.create(stored.data) if is_pointwise else x


class Emission:
    """A joint graph written anew in the order of a schedule."""

    def __init__(self, joint: fx.GraphModule, fused: Capture) -> None:
        self.graph = fx.Graph()
        self.stored = {call.node for call in fused.calls if call.values}
        self.now: dict[fx.Node, fx.Node] = {}  # placeholders, constants, stored results: what stands for them
        self.random_states: dict[fx.Node, fx.Node] = {}  # of what draws: before it drew
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
        """A call of another target in the place of a node, with what is known of that but for `meta`."""
        new = self.graph.call_function(target, arguments, keywords)
        new.meta = {**node.meta, **meta}
        return new

    def get(self, node: fx.Node, inside: dict[fx.Node, fx.Node] | None = None) -> fx.Node:
        """What stands for a node now.

        What kernels compute inside is written anew for each that reads it: of a node that several read, Inductor would
        make one kernel, and keep its result from the first reader to the last.
        """
        inside = {} if inside is None else inside
        if node in self.now:
            return self.now[node]
        if node not in inside:
            if node in self.stored:
                raise RuntimeError(f"{node.name} is read and not there")
            inputs = {one: self.get(one, inside) for one in node.all_input_nodes}
            new = self.graph.node_copy(node, inputs.__getitem__)
            is_random = node.target is prims.inductor_random.default
            inside[node] = self.add(node, torch.ops.headroom.inside.default, (new,)) if is_random else new
        return inside[node]

    def run(self, node: fx.Node, *, draws_again: bool) -> None:
        """Writes a call whose results are stored; `draws_again`: one that draws, and that the schedule runs again."""
        inside: dict[fx.Node, fx.Node] = {}
        inputs = {one: self.get(one, inside) for one in node.all_input_nodes}
        new = self.draw(node, inputs) if draws_again else self.graph.node_copy(node, inputs.__getitem__)
        if is_tensor(node.meta.get("val")):
            new = self.add(node, torch.ops.headroom.store.default, (new,))
        self.now[node] = new
        for user in node.users:
            if user.target is operator.getitem:
                self.now[user] = self.graph.node_copy(user, lambda _, new=new: new)

    def draw(self, node: fx.Node, inputs: dict[fx.Node, fx.Node]) -> fx.Node:
        """The first time with the state of the generator kept, then from that state, so that it draws the same."""
        arguments = fx.map_arg(node.args, inputs.__getitem__)
        keywords = fx.map_arg(node.kwargs, inputs.__getitem__)
        state = self.random_states.get(node)
        if state is not None:
            return self.add(node, rng_prims.run_with_rng_state, (state, node.target, *arguments), keywords)
        result = node.meta["val"]
        first = next(one for one in pytree.tree_leaves(result) if is_tensor(one))
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
    """Forward and backward in the order of the schedule, with a copy of what it runs again for each time it does."""
    fused, count = step.fused, step.output_count
    emission = Emission(joint, fused)
    results = pytree.arg_tree_leaves(*joint.graph.output_node().args)
    wanted = [one for one in [*results[:count], *step.writes.values()] if isinstance(one, fx.Node)]
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
            emission.graph.node_copy(write, lambda one, inputs=inputs: inputs.get(one) or emission.get(one))
        forward_nodes.update(emission.graph.nodes)

    steps = schedule.steps()
    runs = Counter(op for op, _ in steps)
    end = max((i for i, (op, _) in enumerate(steps) if op >= 0 and step.call_of_op[op] == HANDS_ON), default=-1) + 1
    for position, (op, value) in enumerate(steps):
        if position == end:
            end_forward()
        if op < 0:
            emission.drop(nodes_in.get(value, ()))
        elif step.call_of_op[op] >= 0:
            call = fused.calls[step.call_of_op[op]]
            emission.run(call.node, draws_again=call.draws and runs[op] > 1)
            emission.drop(nodes_in.get(value, ()))
        elif step.call_of_op[op] == HANDS_ON:
            for node in wanted:
                if fused.value_of_tensor[fused.number[node]] in step.graph.op_inputs(op):
                    handed_on[node] = emission.get(node)
    forward = [handed_on.get(one, one) for one in results[:count]]
    backward = [emission.get(one) if isinstance(one, fx.Node) else one for one in results[count:]]
    for write in step.late_writes:
        emission.graph.node_copy(write, emission.get)
    new_nodes = [one for one in emission.graph.nodes if one not in forward_nodes]
    read_late = {one for node in new_nodes for one in node.all_input_nodes} | set(backward)
    saved = [one for one in emission.graph.nodes if one in forward_nodes and one in read_late]
    saved = [one for one in saved if one.op != "get_attr" and not one.name.startswith("tangents")]
    emission.graph.output((*forward, *backward)).meta = dict(joint.graph.output_node().meta)
    halves = partitioners._extract_fwd_bwd_modules(
        fx.GraphModule(joint, emission.graph), saved, saved_sym_nodes=[], num_fwd_outputs=count
    )
    # With `fallback_random`, what forward draws would be drawn in backward too, for nobody.
    halves[1].graph.eliminate_dead_code(is_impure_node=lambda one: one.is_impure(impure_random=False))
    return halves
