"""Ways of running backward that a compiled step refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headroom._torch import is_batch, is_legacy_batch
from headroom.graph.unsupported import Unsupported


def refuse_unsupported_backwards(node: Any) -> None:
    """Has the backward of an autograd node raise an error for gradients in batches and for create_graph=True.

    The memory of a batch of gradients is in no plan, and compiled code cannot read it. Gradients that are to be
    differentiated raise an error of AOTAutograd's only through the tensors that backward reads. Where none of these is
    connected to an input of the step, autograd finds no path to the inputs, and second derivatives would silently be
    left out: with eager kernels, which save no tensors, and with Inductor's where an input is a view.
    """
    node.register_prehook(_check)


def _check(gradients: Sequence[torch.Tensor | None]) -> None:
    if any(gradient is not None and _is_batch(gradient) for gradient in gradients):
        raise Unsupported("gradients in batches (is_grads_batched=True, vectorize=True)")
    if torch.is_grad_enabled():
        raise RuntimeError("double backward (create_graph=True) is not supported by headroom")


def _is_batch(gradient: torch.Tensor) -> bool:
    return is_batch(gradient) or is_legacy_batch(gradient)
