"""Trains PyTorch models inside a memory budget."""

import torch  # PyTorch's libraries must be loaded before ours.

try:
    from headroom import _C
except ImportError as error:
    raise ImportError(
        "headroom's compiled part is missing or does not fit the installed torch; build it with "
        "`pip install --no-build-isolation .` in headroom's folder"
    ) from error

if torch.__version__.split(".")[:2] != _C.torch_version.split(".")[:2]:
    raise ImportError(
        f"headroom was built for PyTorch {_C.torch_version}, and {torch.__version__} is installed; build it again with "
        "`pip install --no-build-isolation .` in headroom's folder"
    )

from headroom._C import Meter
from headroom.api import MemoryPlan, backend, compile, current_bytes, max_batch, plan  # noqa: A004
from headroom.budget.errors import BudgetError
from headroom.graph.unsupported import Unsupported
from headroom.sequential import Sequential

__all__ = [
    "BudgetError",
    "MemoryPlan",
    "Meter",
    "Sequential",
    "Unsupported",
    "backend",
    "compile",
    "current_bytes",
    "max_batch",
    "plan",
]
