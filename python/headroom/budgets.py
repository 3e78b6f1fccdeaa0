"""What users write for a budget."""

from __future__ import annotations

import decimal
import math
import operator

from headroom import _C

_FORMS = (
    'a budget is a number of bytes (8_000_000_000), a size ("8GB", "7.5GiB"), a share of what plain training adds '
    '("0.5x", "50%"), or None'
)
# A smaller float is taken for a share that lacks its x.
_LEAST_FLOAT = 1024


def read_bytes(amount: object, name: str) -> int:
    """A number of bytes from a number of any kind or from text like 512MB; parts of a byte are dropped."""
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
    """Bytes, or a share like 0.5x."""
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
    """For units that could be those of 1000 or of 1024."""
    unit = str(text).strip()[-1:].upper()
    if not isinstance(text, str) or unit not in "KMGT" or not unit:
        return ""
    return f'; {unit}B is by 1000, {unit}iB by 1024: write "{text.strip()}B" or "{text.strip()[:-1]}{unit}iB"'
