"""The user's settings, and how a budget is written."""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import torch

from headroom import _C
from headroom.budget.optimizers import PendingState

if TYPE_CHECKING:
    from headroom.budget.place import Place
    from headroom.planning import Planned

_FORMS = (
    'a budget is a number of bytes (8_000_000_000), a size ("8GB", "7.5GiB"), a share of what plain training adds '
    '("0.5x", "50%"), or None'
)
# Smallest float that is taken for bytes; a smaller one is probably a share that lacks its x.
_LEAST_FLOAT = 1024


def read_bytes(amount: object, name: str) -> int:
    """Returns the number of bytes for a number of any kind or text like 512MB; fractions of a byte are dropped."""
    if isinstance(amount, str):
        try:
            return _C.parse_bytes(amount.strip())
        except ValueError as error:
            raise ValueError(f"{name}: {error}{_hint(amount)}") from None
    if isinstance(amount, bool):
        raise TypeError(f"{name}: expected bytes, found {amount!r}")
    try:
        return operator.index(amount)
    except TypeError:
        pass
    if not hasattr(amount, "__float__"):
        raise TypeError(f"{name}: expected bytes, found {amount!r}")
    if not math.isfinite(float(amount)):
        raise ValueError(f"{name}: expected bytes, found {amount!r}")
    return math.floor(amount)


def read_budget(budget: object) -> int | str | None:
    """Returns a budget in bytes, or a share like 0.5x as text."""
    if budget is None:
        return None
    try:
        if isinstance(budget, str):
            text = budget.strip().lower()
            if text.endswith("%"):
                text = f"{decimal.Decimal(text[:-1].strip()) / 100:f}x"
            if text.endswith("x"):
                _C.parse_budget(text, 0)
                return text
        bytes_ = read_bytes(budget, "budget")
    except (TypeError, ValueError, decimal.InvalidOperation) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"found {budget!r}; {_FORMS}{_hint(budget)}") from None
    if bytes_ < 0 or (isinstance(budget, float) and bytes_ < _LEAST_FLOAT):
        share = f'; for a share write "{budget}x"' if isinstance(budget, float) and budget > 0 else ""
        raise ValueError(f"found {budget!r}; {_FORMS}{share}")
    return bytes_


def _hint(text: object) -> str:
    """Returns a hint for units that could be those of 1000 or of 1024."""
    unit = str(text).strip()[-1:].upper()
    if not isinstance(text, str) or unit not in "KMGT" or not unit:
        return ""
    return f'; {unit}B is by 1000, {unit}iB by 1024: write "{text.strip()}B" or "{text.strip()[:-1]}{unit}iB"'


_UNIT = 1_000_000  # Bytes of which shares are compared.


@dataclass
class Settings:
    """The user's settings; headroom.compile() describes them."""

    budget: int | str | None = None
    planner: str = "auto"
    kernels: str = "eager"
    reserve: int | str = 0
    cache: bool = True
    on_plan: Callable[[Planned], None] | None = None  # Called with each plan before it runs.
    # Optimizer whose state is counted before it is allocated.
    optimizer: torch.optim.Optimizer | PendingState | None = None
    keep_order: bool = False  # Whether operators run in the order of plain training, but for reruns.
    arena: bool = False  # Whether a step's memory lies in one block.

    def __post_init__(self) -> None:
        if self.planner not in _C.planner_names():
            raise ValueError(f"planner must be one of {', '.join(_C.planner_names())}, found {self.planner!r}")
        if self.kernels not in ("eager", "inductor"):
            raise ValueError(f"kernels must be eager or inductor, found {self.kernels!r}")
        if not isinstance(self.arena, bool):
            raise TypeError(f"arena must be True or False, found {self.arena!r}")
        self.reserve = read_bytes(self.reserve, "reserve")
        self.budget = read_budget(self.budget)
        if self.optimizer is not None and not isinstance(self.optimizer, PendingState):
            self.optimizer = PendingState(self.optimizer)

    def graph_budget(self, graph: _C.Graph, store_all_bytes: int, outside_bytes: int) -> int:
        """Returns the limit of the simulated peak, with `outside_bytes` on the device beside the graph's values."""
        if self.budget is None:
            return store_all_bytes
        if isinstance(self.budget, str):
            resident = graph.resident_bytes()
            return resident + _C.parse_budget(self.budget, store_all_bytes - resident)
        return self.limit_bytes() - outside_bytes

    def allows_store_all(self) -> bool:
        """Returns whether the budget is a share of 1 or more, which a step that stores everything keeps by definition.

        Compiled kernels may take more for that than the simulation, where no plan takes less.
        """
        return isinstance(self.budget, str) and _C.parse_budget(self.budget, _UNIT) >= _UNIT

    def limit_bytes(self) -> int | None:
        """Returns the limit of the bytes in use on the device now; None: the budget is no number of bytes."""
        return self.budget - self.kept_free_bytes() if isinstance(self.budget, int) else None

    def kept_free_bytes(self) -> int:
        """Returns the bytes that a budget in bytes keeps free: the reserve, and the optimizer's state yet to come."""
        pending = 0 if self.optimizer is None else self.optimizer.missing_bytes()
        return int(self.reserve) + pending

    def device_bytes(self, before_bytes: int, root: Place) -> int | None:
        """Returns the limit of the bytes in use during a step that begins with `before_bytes`; None: no limit."""
        if self.budget is None:
            return None
        if isinstance(self.budget, str):
            return before_bytes + _C.parse_budget(self.budget, root.store_all_bytes())
        return self.limit_bytes()


class Options(TypedDict, total=False):
    """Settings beside the budget, as keywords of plan(), max_batch() and Sequential; see headroom.compile()."""

    planner: str
    kernels: str
    reserve: float | str
    cache: bool
    on_plan: Callable[[Planned], None] | None
    optimizer: torch.optim.Optimizer | None
    keep_order: bool
    arena: bool
