"""Has AOTAutograd trace the kernels that eager calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch._C import DispatchKey

# Operators that PyTorch decomposes in Python while it traces, though eager runs a kernel, or another decomposition, of
# which the results differ in their last bits.
_DECOMPOSED = (
    "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa",
    "_upsample_lanczos2d_aa",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "dropout",
    "hardshrink",
    "multi_margin_loss",
    "multilabel_margin_loss_forward",
    "softshrink",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_trilinear3d",
)
_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    """Removes PyTorch's decompositions of `_DECOMPOSED` while it lasts. Dynamo compiles one graph at a time."""
    removed = []
    packets = [getattr(torch.ops.aten, name) for name in _DECOMPOSED if hasattr(torch.ops.aten, name)]
    for operator in [getattr(packet, name) for packet in packets for name in packet.overloads()]:
        for key in _KEYS:
            if key in operator.py_kernels:
                removed.append((operator, key, operator.py_kernels.pop(key)))
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, key, kernel in removed:
            operator.py_kernels[key] = kernel
            operator._dispatch_cache.clear()
