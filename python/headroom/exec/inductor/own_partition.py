"""Estimates the peak of a step under PyTorch's own partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import fx

from headroom._torch import pytree
from headroom.graph.capture import Capture
from headroom.graph.operators import is_tensor
from headroom.graph.step_graph import base_order, overwritten

if TYPE_CHECKING:
    from headroom.graph.step_graph import Rest


def saved_names(forward: fx.GraphModule, output_count: int) -> set[str]:
    """Returns the names of the nodes that a partition saves for backward."""
    results = pytree.arg_tree_leaves(*forward.graph.output_node().args)
    return {
        node.name for node in results[output_count:] if isinstance(node, fx.Node) and is_tensor(node.meta.get("val"))
    }


def estimate_peak(
    captured: Capture, fused: Capture, saved: set[str], rest: Rest, is_library_call: Sequence[bool]
) -> int:
    """Returns the peak, in bytes with resident memory, of a step that saves these nodes.

    Forward and backward run in the base order. Forward frees all but the saved activations and the outputs. What
    backward reads and forward did not save is recomputed inside backward's kernels; an input of a library call that is
    recomputed is live during that call. Saved activations that the fused graph computes inside its kernels are live
    from the end of forward to their last reader in backward. Memory that recomputation takes at other times is left
    out, so the estimate tends to be too low.
    """
    values = captured.values
    maker = {value: position for position, call in enumerate(fused.calls) for value in call.values}
    kept = {
        fused.value_of_tensor[tensor] for tensor in [*fused.forward_outputs, *fused.backward_outputs] if tensor >= 0
    }
    tangents = {fused.value_of_tensor[tensor] for tensor in fused.backward_inputs if tensor >= 0}
    saved_values = {captured.value_of_tensor[number] for node, number in captured.number.items() if node.name in saved}
    inlined = {value for value in saved_values if value not in maker and not values[value].resident}
    forward, backward = base_order(fused)
    order = [*forward, *backward]

    time_of = {position: time for time, position in enumerate(order)}
    last_read: dict[int, int] = {}
    for time, position in enumerate(order):
        last_read.update({fused.value_of_tensor[tensor]: time for tensor in fused.calls[position].reads})
    for position, call in enumerate(captured.calls):
        for value in {captured.value_of_tensor[tensor] for tensor in call.reads} & inlined:
            last_read[value] = max(last_read.get(value, 0), time_of.get(position, 0))

    live: set[int] = set()
    current = peak = captured.resident_bytes()
    for time, position in enumerate(order):
        call = fused.calls[position]
        reads = {fused.value_of_tensor[tensor] for tensor in call.reads}
        if time == len(forward):
            peak = max(peak, current + rest.peak_bytes)
            dropped = live - saved_values - kept
            added = (tangents | inlined) - live
            live = (live - dropped) | added
            current += sum(values[value].bytes for value in added) - sum(values[value].bytes for value in dropped)
            current += rest.left_bytes
        missing = [value for value in reads - live if not values[value].resident] if is_library_call[position] else []
        dying = {value for value in live if last_read.get(value, -1) <= time and value not in kept}
        if time < len(forward):
            dying -= saved_values
        in_place = next((value for value in overwritten(call, fused) if value in dying and len(call.values) == 1), None)
        if in_place is not None:
            live.remove(in_place)
            dying.remove(in_place)
            current -= values[in_place].bytes
        made = set(call.values) - live
        current += sum(values[value].bytes for value in made)
        peak = max(peak, current + call.workspace_bytes + sum(values[value].bytes for value in missing))
        is_unread = {value for value in made if last_read.get(value, -1) <= time} - kept - saved_values
        live = (live | made) - dying - is_unread
        current -= sum(values[value].bytes for value in dying | is_unread)
    return peak
