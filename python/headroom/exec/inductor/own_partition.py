"""Estimates what a step takes that is split by PyTorch's own partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import fx
from torch.utils import _pytree as pytree

from headroom.graph.capture import Capture
from headroom.graph.operators import is_tensor
from headroom.graph.step_graph import base_order, overwritten

if TYPE_CHECKING:
    from headroom.graph.step_graph import Rest


def saved_names(forward: fx.GraphModule, output_count: int) -> set[str]:
    """Returns the names of the nodes that a partition saves for backward."""
    results = pytree.arg_tree_leaves(*forward.graph.output_node().args)
    return {one.name for one in results[output_count:] if isinstance(one, fx.Node) and is_tensor(one.meta.get("val"))}


def estimate_peak(
    captured: Capture, fused: Capture, saved: set[str], rest: Rest, is_library_call: Sequence[bool]
) -> int:
    """Returns the peak, in bytes with what is resident, of a step that saves these nodes.

    Forward and backward run in the base order. Forward frees all but the saved tensors and the outputs. What backward
    reads and forward did not save is recomputed inside its kernels; for library calls it is live while they run.
    Saved tensors that the fused graph computes inside its kernels are live from the end of forward to their last
    reader in backward. That leaves out what recomputation takes at other times: the estimate is rather too low.
    """
    values = captured.values
    maker = {value: position for position, call in enumerate(fused.calls) for value in call.values}
    kept = {fused.value_of_tensor[one] for one in [*fused.forward_outputs, *fused.backward_outputs] if one >= 0}
    tangents = {fused.value_of_tensor[one] for one in fused.backward_inputs if one >= 0}
    saved_values = {captured.value_of_tensor[number] for node, number in captured.number.items() if node.name in saved}
    inlined = {one for one in saved_values if one not in maker and not values[one].resident}
    forward, backward = base_order(fused)
    order = [*forward, *backward]

    time_of = {position: time for time, position in enumerate(order)}
    last_read: dict[int, int] = {}
    for time, position in enumerate(order):
        last_read.update({fused.value_of_tensor[one]: time for one in fused.calls[position].reads})
    for position, call in enumerate(captured.calls):
        for value in {captured.value_of_tensor[one] for one in call.reads} & inlined:
            last_read[value] = max(last_read.get(value, 0), time_of.get(position, 0))

    live: set[int] = set()
    current = peak = captured.resident_bytes()
    for time, position in enumerate(order):
        call = fused.calls[position]
        reads = {fused.value_of_tensor[one] for one in call.reads}
        if time == len(forward):
            peak = max(peak, current + rest.peak_bytes)
            dropped = live - saved_values - kept
            added = (tangents | inlined) - live
            live = (live - dropped) | added
            current += sum(values[one].bytes for one in added) - sum(values[one].bytes for one in dropped)
            current += rest.left_bytes
        missing = [one for one in reads - live if not values[one].resident] if is_library_call[position] else []
        dying = {one for one in live if last_read.get(one, -1) <= time and one not in kept}
        if time < len(forward):
            dying -= saved_values
        in_place = next((one for one in overwritten(call, fused) if one in dying and len(call.values) == 1), None)
        if in_place is not None:
            live.remove(in_place)
            dying.remove(in_place)
            current -= values[in_place].bytes
        made = set(call.values) - live
        current += sum(values[one].bytes for one in made)
        peak = max(peak, current + call.workspace_bytes + sum(values[one].bytes for one in missing))
        is_unread = {one for one in made if last_read.get(one, -1) <= time} - kept - saved_values
        live = (live | made) - dying - is_unread
        current -= sum(values[one].bytes for one in dying | is_unread)
    return peak
