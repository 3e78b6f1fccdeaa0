"""Watches each call of a compiled function, whichever way it was compiled."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from headroom._torch import WrapBackendDebug, innermost_backend
from headroom._torch import dynamo_config as config

NOTHING_CAPTURED = (
    "torch.compile captured nothing of the model, so nothing keeps to the budget; see why with "
    "TORCH_LOGS=graph_breaks. An nn.Sequential is captured by headroom.compile(model), and trained without being "
    "captured by headroom.Sequential(model)"
)


class _Graphs(threading.local):
    """Number of headroom's graphs that this thread has compiled or run."""

    count = 0


_graphs = _Graphs()


def count_graph() -> None:
    _graphs.count += 1


class Calls:
    """Makes the context of each call of one compiled function."""

    def __init__(self, *, warns: bool) -> None:
        self.may_warn = warns

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        before = _graphs.count
        was_strict, was_suppressing = config.fail_on_recompile_limit_hit, config.suppress_errors
        # Past its recompile limit, or where errors are suppressed, Dynamo would run the model uncompiled and without a
        # budget, so these are errors.
        config.fail_on_recompile_limit_hit, config.suppress_errors = True, False
        try:
            yield
        finally:
            config.fail_on_recompile_limit_hit, config.suppress_errors = was_strict, was_suppressing
        if _graphs.count == before and self.may_warn and torch.is_grad_enabled() and sys.exc_info()[0] is None:
            self.may_warn = False
            warnings.warn(f"headroom: {NOTHING_CAPTURED}", stacklevel=4)


def watch_calls(warning: Any, raising: type) -> None:
    """Watches the calls of functions that are compiled by these backends.

    If nothing is captured, calls with the backend `warning` warn; backends of the class `raising` check by themselves.

    torch.compile asks a backend for a context around each call, but through a wrapper that hides the backend's
    attributes. This patches the wrapper to answer for our backends; for others the attribute stays missing.
    """

    def context_of(self: Any) -> Any:
        backend = innermost_backend(self)
        backend = getattr(backend, "compiler_fn", backend)
        if backend is warning or isinstance(backend, raising):
            return Calls(warns=backend is warning)
        raise AttributeError("backend_ctx_ctor")

    WrapBackendDebug.backend_ctx_ctor = property(context_of)
