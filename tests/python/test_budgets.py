"""Forms of budgets that users may write, none of which is silently ignored."""

from __future__ import annotations

import gc
import inspect
import re
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")

from headroom.exec import eager  # noqa: E402
from headroom.settings import Settings, read_budget, read_bytes  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import unset_fake_temporarily  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import headroom  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")


class Integer:
    """Stands for numpy.int64 and the like."""

    def __index__(self) -> int:
        return 4096


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (7, 7),
        (0.9 * 10**9, 900_000_000),
        (1e6 + 0.7, 1_000_000),
        (Integer(), 4096),
        (torch.tensor(9), 9),
        (torch.tensor(2e4), 20_000),
        ("4096", 4096),
        ("8GiB", 8 << 30),
        (" 8 gb ", 8_000_000_000),
        ("0.5x", "0.5x"),
        ("0.5X", "0.5x"),
        ("50%", "0.5x"),
        ("12.5 %", "0.125x"),
    ],
)
def test_forms_of_budgets(given: Any, expected: int | str | None) -> None:
    assert read_budget(given) == expected


@pytest.mark.parametrize(
    ("given", "error", "hint"),
    [
        ("8G", ValueError, 'write "8GB" or "8GiB"'),
        (0.5, ValueError, 'write "0.5x"'),
        (1.0, ValueError, 'write "1.0x"'),
        (-3, ValueError, "found -3"),
        (float("nan"), ValueError, "found nan"),
        (float("inf"), ValueError, "found inf"),
        ("half", ValueError, "found 'half'"),
        ("-0.5x", ValueError, "found '-0.5x'"),
        ("%", ValueError, "found '%'"),
        ("", ValueError, "found ''"),
        (True, TypeError, "found True"),
        ([], TypeError, r"found \[\]"),
        (b"8GB", TypeError, "found b'8GB'"),
    ],
)
def test_other_budgets_are_refused_with_the_forms(given: Any, error: type[Exception], hint: str) -> None:
    with pytest.raises(error, match=hint) as caught:
        headroom.compile(nn.Linear(2, 2), given)
    assert '"8GB", "7.5GiB"' in str(caught.value)
    assert '"0.5x", "50%"' in str(caught.value)


def test_reserves_are_bytes() -> None:
    assert read_bytes("1KiB", "reserve") == 1024
    assert read_bytes(1e3, "reserve") == 1000
    with pytest.raises(ValueError, match=r"^reserve: .*found '1G'.*write \"1GB\" or \"1GiB\""):
        Settings(reserve="1G")
    with pytest.raises(TypeError, match=r"^reserve: .*found None"):
        Settings(reserve=None)


def test_shares_mean_the_same_in_every_form() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    x = torch.randn(16, 8)
    budgets = {headroom.plan(model, x, budget=budget).budget for budget in ("0.9x", "0.9X", "90%")}
    assert len(budgets) == 1
    in_bytes = budgets.pop()
    assert headroom.plan(model, x, budget=float(in_bytes)).budget == in_bytes


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def compiled_call() -> tuple[Any, Any]:
    model = two_layers()
    model.compile(backend=headroom.backend, options={"budget": "1x"})
    return model, torch.randn(2, 4)


def recurrent() -> tuple[Any, Any]:
    return torch.compile(nn.LSTM(4, 4), backend=headroom.backend, options={"budget": "1x"}), torch.randn(2, 3, 4)


@pytest.mark.parametrize("make", [compiled_call, recurrent])
def test_a_warning_where_torch_compile_captures_nothing(make: Any) -> None:
    model, x = make()
    with pytest.warns(UserWarning, match=r"captured nothing of the model.*headroom\.compile"):
        model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x)  # One call is enough.
        with torch.no_grad():
            make()[0](x)  # The call takes no gradient.


def test_no_warning_where_something_is_captured() -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 4)
    model = two_layers()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*captured nothing")
        for _ in range(2):  # The second call runs the code of the first.
            run = torch.compile(model, backend=headroom.backend, options={"budget": "1x"})
            run(x).sum().backward()
            run(x).sum().backward()
            with pytest.raises(RuntimeError, match=r"shapes|reduction dim"):
                run(torch.randn(2, 3))


def test_the_recompile_limit_of_other_backends_is_left_alone() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    headroom.compile(two_layers(), "1x")(torch.randn(2, 4)).sum().backward()
    other = torch.compile(twice, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=1):
        for size in (2, 3, 4):
            assert torch.equal(other(torch.ones(size)), torch.full((size,), 2.0))
    assert not torch._dynamo.config.fail_on_recompile_limit_hit


def test_planning_leaves_what_others_have_compiled() -> None:
    compilations = []

    def count(gm: torch.fx.GraphModule, _: Any) -> Any:
        compilations.append(gm)
        return gm

    model = two_layers()
    x = torch.randn(2, 4)
    other = torch.compile(model, backend=count)
    other(x)
    for _ in range(10):  # More than Dynamo's limit of recompilations.
        headroom.plan(model, x)
    headroom.max_batch(model, lambda batch: (torch.randn(batch, 4),), headroom.current_bytes() + 4000, most=16)
    other(x)
    assert len(compilations) == 1


def test_a_compiled_model_can_be_planned() -> None:
    model = two_layers()
    x = torch.randn(2, 4)
    compiled = headroom.compile(model, "1x")
    compiled(x).sum().backward()
    assert headroom.plan(compiled, x).peak == headroom.plan(model, x).peak


def test_plans_are_shown_in_one_line() -> None:
    shown = repr(headroom.plan(two_layers(), torch.randn(2, 4)))
    assert shown.startswith("MemoryPlan(status=")
    assert len(shown) < 300
    assert "\n" not in shown


def test_every_option_is_documented() -> None:
    options = [name for name in inspect.signature(headroom.compile).parameters if name != "model"]
    assert options == list(Settings.__dataclass_fields__)
    assert all(f"\n    {name}\n" in headroom.compile.__doc__ for name in options)


def test_refusals_name_what_works_in_the_users_own_unit() -> None:
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh())])
    x = torch.randn(64, 16)

    def step(budget: Any, **options: Any) -> None:
        torch._dynamo.reset()
        headroom.compile(lambda x: model(x).square().mean(), budget, cache=False, **options)(x).backward()
        model.zero_grad(set_to_none=True)

    with pytest.raises(headroom.BudgetError) as caught:
        step("10%")
    share = re.search(r"the smallest that can is (0\.\d+x), \d+ bytes", str(caught.value)).group(1)
    step(share)
    smallest = caught.value.smallest_budget_bytes
    for _ in range(2):  # asked twice
        with pytest.raises(headroom.BudgetError, match=f"the smallest that can is {smallest} bytes"):
            step(smallest - 1)
        step(smallest)
    other = torch.zeros(10_000)
    with pytest.raises(headroom.BudgetError, match=r"1\.00 KiB reserved; \d+\.\d\d KiB .*beside the model") as caught:
        step(smallest, reserve=1024)
    assert caught.value.smallest_budget_bytes == smallest + other.nbytes + 1024
    step(caught.value.smallest_budget_bytes, reserve=1024)


def test_what_tracing_leaves_to_the_garbage_collector_takes_no_part_of_a_budget(monkeypatch: Any) -> None:
    """Dynamo keeps a copy of the generator's state in frames that form cycles where it has started again."""
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())])
    x = torch.randn(64, 16)
    make_calls = eager.make_calls

    def leaving(*arguments: Any) -> Any:
        calls = make_calls(*arguments)
        with unset_fake_temporarily():
            cycle: list[Any] = [torch.zeros(10_000)]
        cycle.append(cycle)
        gc.collect()  # Moves it to the old generation: Dynamo collects the young one after compiling.
        return calls

    monkeypatch.setattr(eager, "make_calls", leaving)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(headroom.BudgetError) as caught:
            headroom.compile(lambda x: model(x).square().mean(), 1, cache=False)(x)
        gc.collect()
        smallest = caught.value.smallest_budget_bytes
        assert smallest < headroom.current_bytes() + 40_000
        meter = headroom.Meter(torch.device("cpu"))
        run = headroom.compile(lambda x: model(x).square().mean(), smallest, cache=False)
        run(x).backward()
        meter.reset_peak()
        model.zero_grad()
        run(x).backward()
        assert meter.peak_bytes() <= smallest
    finally:
        gc.enable()


def test_numbers_that_a_model_makes_tensors_of_take_no_part_of_a_budget() -> None:
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())])
    x = torch.randn(64, 16)

    def loss(x: torch.Tensor) -> torch.Tensor:
        y = model(x) / torch.sqrt(torch.tensor(3.0)) + torch.tensor([1.0, 2.0] * 8)
        return (y * torch.tensor(2, dtype=torch.bfloat16)).square().mean()

    def compiled(budget: int) -> Any:
        function = loss.__code__.replace()
        return headroom.compile(type(loss)(function, globals(), closure=loss.__closure__), budget, cache=False)

    loss(x).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with pytest.raises(headroom.BudgetError) as caught:
        compiled(1)(x)
    smallest = caught.value.smallest_budget_bytes
    runs = []
    for _ in range(2):
        runs.append(compiled(smallest))
        runs[-1](x).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        assert all(map(torch.equal, gradients, expected))
        del gradients
        model.zero_grad()


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x / 0.9

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / 0.9


@pytest.mark.parametrize(
    ("kind", "kernels"), [("unused", "eager"), ("checkpoint", "eager"), ("function", "eager"), ("unused", "inductor")]
)
def test_compilations_leave_no_numbers_behind(kind: str, kernels: str) -> None:
    """Histories of Dynamo's example values keep them, also those of nodes that it erases and of graphs inside."""
    layer = nn.Linear(16, 16)
    x = torch.randn(64, 16)

    def compiled() -> Any:
        def loss(x: torch.Tensor) -> torch.Tensor:
            if kind == "checkpoint":
                y = checkpoint(lambda x: layer(x).div(0.9).tanh(), x, use_reentrant=False)
            elif kind == "function":
                y = Scaled.apply(layer(x).div(0.9))
            else:
                y = layer(x).div(0.9)
                y[:, 0]  # Nothing reads this.
            return y.square().mean()

        loss.__code__ = loss.__code__.replace()
        return headroom.compile(loss, "1x", cache=False, kernels=kernels)

    runs, left = [], []
    for _ in range(3):
        runs.append(compiled())
        runs[-1](x).backward()
        layer.zero_grad()
        gc.collect()
        left.append(headroom.current_bytes())
    assert left[1:] == left[:1] * 2
