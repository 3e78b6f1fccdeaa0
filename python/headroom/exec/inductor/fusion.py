"""Fuses the calls of a captured graph into the kernels that Inductor is going to make of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from headroom import _C
from headroom.costs.op_costs import CostCache, draw_time_ns, fill_costs, move_time_ns
from headroom.graph.capture import Call, Capture
from headroom.graph.operators import concrete, is_tensor

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
CONVOLUTIONS = {aten.convolution, aten.convolution_backward}
# Maximum number of large tensors that a kernel may read to compute a result inside its readers; a result that needs
# more is stored. A result with a single reader may need more than one that is computed several times.
_MOST_READS = 4
_MOST_READS_IF_READ_ONCE = 8


def packet(call: Call) -> object:
    return getattr(call.node.target, "_overloadpacket", call.node.target)


def _is_inlined(call: Call) -> bool:
    tags = getattr(call.node.target, "tags", ())
    return (torch.Tag.pointwise in tags or packet(call) in _ALSO_INLINED) and call.may_recompute


def is_generated(call: Call) -> bool:
    """Returns whether Inductor generates a kernel for the call, instead of calling a library."""
    return _is_inlined(call) or packet(call) in _REDUCTIONS or packet(call) is _POOL


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
        if inlined[reader] or packet(call) in _REDUCTIONS:
            return False
        first = of.number.get(call.node.args[0]) if packet(call) in _INTO_COPIES else None
        return first is None or of.value_of_tensor[first] not in values

    def stored_reads(call: Call) -> dict[int, tuple[int, bool]]:
        tags = getattr(call.node.target, "tags", ())
        keeps = torch.Tag.pointwise in tags or packet(call) in (aten.clone, prims.convert_element_type)
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
        by_others = packet(call) is not _INDEX_IN_POOL and any(needs_memory(reader, call.values) for reader in uses)
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
    generated = [is_generated(call) for call in of.calls]
    largest = max([value.bytes for value in of.values], default=0)
    others = [call for call, by_inductor in zip(fused.calls, generated, strict=True) if not by_inductor]
    for call in others:
        call.channels_last = channels_last and packet(call) in CONVOLUTIONS
    fill_costs(replace(fused, calls=others), cache, _C.Meter(of.device))
    # Values that reductions directly before this call have read; Inductor fuses consecutive reductions into one kernel.
    just_read: set[int] = set()
    for position, (call, by_inductor) in enumerate(zip(fused.calls, generated, strict=True)):
        if not call.values:
            continue
        reads = {of.value_of_tensor[tensor] for tensor in call.reads} if by_inductor else set()
        if by_inductor:
            moved = [*(reads - just_read), *call.values]
            call.time_ns = move_time_ns(sum(of.values[value].bytes for value in moved), cache, of.device, largest)
        if position in masks:
            call.time_ns += draw_time_ns(concrete(call.node.meta["val"].numel()), cache, of.device, largest)
        just_read = just_read | reads if packet(call) in _REDUCTIONS else set()
