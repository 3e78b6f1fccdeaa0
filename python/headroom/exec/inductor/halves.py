"""Runs the compiled halves of a step in its arena."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from headroom import _C

_running = threading.local()  # `run`: the step whose half this thread runs next, or None.


def set_running(run: _C.ArenaRun | None) -> None:
    """Has the half that this thread runs next run in an arena."""
    _running.run = run


@contextlib.contextmanager
def in_flight(arena: _C.Arena | None) -> Iterator[_C.ArenaRun | None]:
    """Returns a context in which the halves that this thread runs are those of one step in an arena."""
    run = None if arena is None else arena.begin()
    set_running(run)
    try:
        yield run
    finally:
        set_running(None)


def run_in_arena(code: Any, *, is_backward: bool) -> None:
    """Has a compiled half run in the arena of its step. The step ends with its backward."""
    call: Callable[[list[Any]], Any] | None = getattr(code, "current_callable", None)
    if call is None:  # Another kind of code than Inductor's own, which then runs without an arena.
        return

    def run_half(arguments: list[Any]) -> Any:
        run = getattr(_running, "run", None)
        if run is None:
            return call(arguments)
        if not is_backward:
            with run.forward():
                return call(arguments)
        set_running(None)
        with run.backward():
            gradients = call(arguments)
        run.finish()
        return gradients

    code.current_callable = run_half
