"""Optimizer state that is not allocated yet, and budgets that count it from the first step on."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")

from fixed_costs import fixed_costs  # noqa: E402
from headroom.budget.optimizers import PendingState  # noqa: E402
from headroom.settings import Settings  # noqa: E402
from torch import nn, optim  # noqa: E402

import headroom  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")

Parameters = Sequence[nn.Parameter]


def matrices(parameters: Parameters) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if parameter.dim() == 2]


OPTIMIZERS: dict[str, Callable[[Parameters], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9),
    "AdamW": lambda p: optim.AdamW(p, 1e-3),
    "amsgrad": lambda p: optim.Adam(p, 1e-3, amsgrad=True),
    "fused": lambda p: optim.AdamW(p, 1e-3, fused=True),
    "RMSprop": lambda p: optim.RMSprop(p, centered=True),
    "Adagrad": lambda p: optim.Adagrad(p),  # Allocates its state when it is constructed.
    "Adafactor": lambda p: optim.Adafactor(p),
    "NAdam": lambda p: optim.NAdam(p),
    "ASGD": lambda p: optim.ASGD(p),
    "Muon": lambda p: optim.Muon(matrices(p)),
    "two groups": lambda p: optim.Adafactor([{"params": matrices(p)}, {"params": [p[1]], "lr": 0.5}]),
}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return nn.Sequential(*layers, nn.BatchNorm1d(32))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_is_foreseen_to_the_byte(name: str) -> None:
    model = make_model()
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    pending = PendingState(optimizer)
    expected = pending.missing_bytes()
    model(torch.randn(8, 32)).square().mean().backward()
    before = headroom.current_bytes()
    optimizer.step()
    assert headroom.current_bytes() - before == expected
    assert pending.missing_bytes() == 0
    assert len(optimizer.param_groups) == (2 if name == "two groups" else 1)


def test_a_frozen_parameter_and_one_without_gradient_have_no_state() -> None:
    model = make_model()
    model[0].weight.requires_grad_(False)
    assert PendingState(optim.AdamW(model.parameters())).missing_bytes() == sum(
        2 * parameter.nbytes + 4 for parameter in model.parameters() if parameter.requires_grad
    )


def test_a_restored_optimizer_has_nothing_to_come() -> None:
    model = make_model()
    first = optim.AdamW(model.parameters())
    model(torch.randn(8, 32)).square().mean().backward()
    first.step()
    second = optim.AdamW(model.parameters())
    second.load_state_dict(first.state_dict())
    assert PendingState(second).missing_bytes() == 0


def test_hooks_of_the_optimizer_are_not_called() -> None:
    model = make_model()
    optimizer = optim.AdamW(model.parameters())
    calls: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    assert PendingState(optimizer).missing_bytes() > 0
    assert not calls
    assert not optimizer.state


def test_an_optimizer_whose_state_is_not_known_is_refused() -> None:
    optimizer = optim.LBFGS(make_model().parameters())
    with pytest.raises(ValueError, match=r"^optimizer: the state of LBFGS .* reserve= instead"):
        Settings(10**9, optimizer=optimizer).limit_bytes()
    with pytest.raises(TypeError, match=r"^optimizer: expected a torch.optim.Optimizer, found 'adamw'"):
        headroom.compile(make_model(), 10**9, optimizer="adamw")


def train(model: nn.Module, inputs: torch.Tensor, budget: int, **options: Any) -> tuple[list[int], list[Any]]:
    """Returns the peaks of four steps, and the plans that they ran."""
    torch._dynamo.reset()
    model.zero_grad()
    gc.collect()
    optimizer = optim.AdamW(model.parameters(), 1e-3)
    plans: list[Any] = []
    if options.pop("counted", True):
        options["optimizer"] = optimizer
    run = headroom.compile(lambda x: model(x).square().mean(), budget, cache=False, on_plan=plans.append, **options)
    meter, peaks = headroom.Meter(torch.device("cpu")), []
    for _ in range(4):
        optimizer.zero_grad()
        meter.reset_peak()
        run(inputs).backward()
        peaks.append(meter.peak_bytes())
        optimizer.step()
    return peaks, plans


def smallest_budget(message: str, *arguments: Any, **options: Any) -> int:
    """Returns the number that an error names."""
    with pytest.raises(headroom.BudgetError, match=message) as caught:
        train(*arguments, 1, **options)
    return caught.value.smallest_budget_bytes


def test_a_budget_has_room_for_the_state_from_the_first_step_on() -> None:
    step = make_model(), torch.randn(64, 32)
    with fixed_costs():
        smallest = smallest_budget("for the optimizer's state, which is yet to come", *step)
        peaks, plans = train(*step, smallest)
        assert 0 <= smallest - max(peaks) < 64
        assert len(plans) == 1
        # Without it, the number that is named leaves no room for the state, and the second step says so.
        smallest = smallest_budget("comes on top, unless optimizer= names it", *step, counted=False)
        with pytest.raises(headroom.BudgetError):
            train(*step, smallest, counted=False)


def test_what_is_compiled_keeps_no_optimizer_alive_and_can_be_copied() -> None:
    model = make_model()
    optimizer = optim.AdamW(model.parameters())
    settings = Settings(10**9, optimizer=optimizer)
    assert settings == Settings(10**9, optimizer=optimizer)
    assert settings.kept_free_bytes() > 0
    assert pickle.loads(pickle.dumps(settings)).kept_free_bytes() == 0
    alive = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert alive() is None
    assert settings.kept_free_bytes() == 0
