"""Estimates what a step takes that is split by PyTorch's own partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import fx
from torch.utils import _pytree as pytree

from headroom.capture import Capture, base_order, is_tensor, overwritten

if TYPE_CHECKING:
    from headroom.capture import Rest


def saved_names(forward: fx.GraphModule, output_count: int) -> set[str]:
    """Returns the names of the nodes that a partition saves for backward."""
    results = pytree.arg_tree_leaves(*forward.graph.output_node().args)
    return {one.name for one in results[output_count:] if isinstance(one, fx.Node) and is_tensor(one.meta.get("val"))}


def estimate_peak(captured: Capture, fused: Capture, saved: set[str], rest: Rest) -> int:
    """Returns the peak, in bytes with what is resident, of a step that saves these nodes.

    Forward runs in the base order and frees all but the saved tensors and the outputs. Backward runs in the base order
    and recomputes on demand what was not saved. Saved tensors that the fused graph computes inside its kernels are
    live from the end of forward to their last reader in backward.
    """
    maker = {value: position for position, call in enumerate(fused.calls) for value in call.values}
    saved_values = {captured.value_of_tensor[number] for node, number in captured.number.items() if node.name in saved}
    inlined = {one for one in saved_values if one not in maker and not captured.values[one].resident}
    forward, backward = base_order(fused)
    runs, first_backward = _runs(fused, maker, forward, backward, saved_values)

    kept = {fused.value_of_tensor[one] for one in [*fused.forward_outputs, *fused.backward_outputs] if one >= 0}
    tangents = {fused.value_of_tensor[one] for one in fused.backward_inputs if one >= 0}
    last_use: dict[int, int] = {}
    positions: dict[int, int] = {}  # by call: when it runs last
    for time, position in enumerate(runs):
        positions[position] = time
        last_use.update({fused.value_of_tensor[one]: time for one in fused.calls[position].reads})
    for position, call in enumerate(captured.calls):
        for value in {captured.value_of_tensor[one] for one in call.reads} & inlined:
            last_use[value] = max(last_use.get(value, first_backward), positions.get(position, first_backward))

    resident = captured.resident_bytes()
    sizes = [value.bytes for value in captured.values]
    live = {number for number, value in enumerate(captured.values) if value.resident}
    current = peak = resident
    for time, position in enumerate(runs):
        call = fused.calls[position]
        if time == first_backward:
            peak = max(peak, current + rest.peak_bytes)
            added = (tangents | inlined) - live
            live |= added
            current += sum(sizes[one] for one in added) + rest.left_bytes
        dying = [one for one in live if last_use.get(one, -1) <= time and not captured.values[one].resident]
        dying = [one for one in dying if one not in kept and (time >= first_backward or one not in saved_values)]
        made = [one for one in call.values if one not in live]
        in_place = next((one for one in overwritten(call, fused) if one in dying and len(made) == 1), None)
        current += sum(sizes[one] for one in made) - (0 if in_place is None else sizes[in_place])
        peak = max(peak, current + call.workspace_bytes)
        live |= set(made)
        unused = [one for one in made if last_use.get(one, -1) <= time and one not in kept | saved_values]
        for one in {*dying, *unused}:
            live.discard(one)
            current -= 0 if one == in_place else sizes[one]
    return peak


def _runs(
    fused: Capture, maker: dict[int, int], forward: list[int], backward: list[int], saved: set[int]
) -> tuple[list[int], int]:
    """Returns the calls in the order in which they run, and when backward begins."""
    runs = list(forward)
    outputs = {fused.value_of_tensor[one] for one in fused.forward_outputs if one >= 0}
    is_made = {value for position in forward for value in fused.calls[position].values if value in saved | outputs}

    def run(position: int) -> None:
        stack = [position]
        while stack:
            top = stack[-1]
            needed = [maker.get(fused.value_of_tensor[one]) for one in fused.calls[top].reads]
            missing = [
                one
                for one in dict.fromkeys(needed)
                if one is not None and one not in stack and not is_made.issuperset(fused.calls[one].values)
            ]
            if missing:
                stack.append(missing[0])
                continue
            stack.pop()
            runs.append(top)
            is_made.update(fused.calls[top].values)

    for position in backward:
        if not fused.calls[position].values or not is_made.issuperset(fused.calls[position].values):
            run(position)
    return runs, len(forward)
