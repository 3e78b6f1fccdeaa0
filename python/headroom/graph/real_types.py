"""Corrects the types of results for kernels that return another type than tracing predicts.

The types of inputs select kernels, and with them the sizes of results and workspaces. On the CPU, for instance, the
statistics of a norm with bf16 inputs and fp32 weights are fp32, while tracing says bf16.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx

from headroom._torch import OpOverload
from headroom.graph.capture import Call, Capture, real_strides, set_layouts
from headroom.graph.operators import flat_results, is_tensor, needs_a_tensor, storage_bytes


class RealTypes:
    """The nodes of a graph whose values have another type than the traced one. It sees calls in their order."""

    def __init__(self, captured: Capture) -> None:
        self._captured = captured
        self._changed: set[fx.Node] = set()

    def infer(self, call: Call) -> None:
        """Infers the types of a call's results again, if it reads a value whose type has changed."""
        node = call.node
        if not isinstance(node.target, OpOverload) or self._changed.isdisjoint(needs_a_tensor(node)):
            return
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
        try:
            with next(iter(self._changed)).meta["val"].fake_mode:
                results = flat_results(node.target(*args, **kwargs))
        except Exception:  # A kernel may accept what its fake rejects; only a measurement can tell.
            return
        self.set(call, [result.dtype if is_tensor(result) else None for result in results])

    def set(self, call: Call, dtypes: Sequence[torch.dtype | None]) -> None:
        """Records the real types of a call's results, and their bytes. None: as traced."""
        node = call.node
        is_single = is_tensor(node.meta.get("val"))
        for result in [node] if is_single else [user for user in node.users if user.target is operator.getitem]:
            position = 0 if is_single else result.args[1]
            dtype = dtypes[position] if position < len(dtypes) else None
            value = result.meta.get("val")
            if dtype is None or not is_tensor(value) or value.dtype is dtype:
                continue
            with value.fake_mode:
                result.meta["val"] = value.to(dtype)
            self._changed.add(result)
            layout = (real_strides(result.meta["val"], None), storage_bytes(result.meta["val"]))
            set_layouts(self._captured, call, [*[None] * position, layout])
