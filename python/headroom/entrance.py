"""What is done around each call of a compiled function, whichever way it was compiled."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo import config
from torch._dynamo.eval_frame import innermost_backend
from torch._dynamo.repro import after_dynamo

NOTHING_CAPTURED = (
    "torch.compile captured nothing of the model, so nothing keeps to the budget; see why with "
    "TORCH_LOGS=graph_breaks. An nn.Sequential is captured by headroom.compile(model), and trained without being "
    "captured by headroom.Sequential(model)"
)


class _Graphs(threading.local):
    """How many graphs of headroom's this thread has compiled or run."""

    count = 0


_graphs = _Graphs()


def count_graph() -> None:
    _graphs.count += 1


class Calls:
    """Makes the contexts of the calls of one compiled function."""

    def __init__(self, *, warns: bool) -> None:
        self.may_warn = warns

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        before, was_strict = _graphs.count, config.fail_on_recompile_limit_hit
        # Past its recompile limit Dynamo would run the model as it is, without a budget; that is an error here.
        config.fail_on_recompile_limit_hit = True
        try:
            yield
        finally:
            config.fail_on_recompile_limit_hit = was_strict
        if _graphs.count == before and self.may_warn and torch.is_grad_enabled() and sys.exc_info()[0] is None:
            self.may_warn = False
            warnings.warn(f"headroom: {NOTHING_CAPTURED}", stacklevel=4)


def watch_calls(warning: Any, raising: type) -> None:
    """From now on, calls of functions that are compiled by these backends are watched.

    Where nothing is captured, those of the backend `warning` warn; those of the class `raising` look by themselves.

    torch.compile asks a backend for a context to be in while it is called, but through a wrapper that hides it. The
    wrapper answers for our backends from now on; for others it has no such attribute, as before.
    """

    def context_of(self: Any) -> Any:
        backend = innermost_backend(self)
        backend = getattr(backend, "compiler_fn", backend)
        if backend is warning or isinstance(backend, raising):
            return Calls(warns=backend is warning)
        raise AttributeError("backend_ctx_ctor")

    after_dynamo.WrapBackendDebug.backend_ctx_ctor = property(context_of)
