"""Schedules in any order that the dependencies of a graph allow give the bits of plain PyTorch, at the predicted peak.

No planner is involved: orders are random, or as far from the base order as possible, some with random reruns.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from any_order import ORDER_NAMES, Dependencies, kernels_planned_in, planned_in, runs_in_order  # noqa: E402
from budgeted import Budgeted  # noqa: E402
from headroom.exec.inductor import partitioner  # noqa: E402
from headroom.graph.step_graph import Rest  # noqa: E402
from inductor_steps import assert_close  # noqa: E402
from programs.budgets import smallest_kernel_plans  # noqa: E402
from test_draws import OPERATIONS  # noqa: E402
from test_promises import KINDS, Stateful  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import dropout  # noqa: E402
from training_models import BEFORE_2_13, CASES, TRANSFORMERS, loss_of, train  # noqa: E402

from headroom import _C  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone", "fixed_costs", "fresh_device")

# Order, seed and share of ops that run again.
SCHEDULES = [*((name, 0, 0.0) for name in ORDER_NAMES), *((name, 1, 0.3) for name in ORDER_NAMES)]


def replan(run: Budgeted) -> None:
    run.set_budget(None)
    for step in run.steps:
        step.plans.clear()


@pytest.mark.parametrize("name", [name for name in CASES if name != "t5" or not BEFORE_2_13])
def test_bits_and_peaks_of_models(name: str) -> None:
    """The prediction counts outputs that only update counters of batches until the end, in any order."""
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = CASES[name].make()
    inputs, labels = CASES[name].inputs()
    start = copy.deepcopy(model.state_dict())
    expected = train(model, loss_of(model), inputs, labels)
    model.zero_grad()
    run = Budgeted(loss_of(model))
    for schedule in SCHEDULES:
        with planned_in(*schedule):
            model.load_state_dict(start)
            replan(run)
            actual = train(model, run, inputs, labels)
        different = [key for key, tensor in expected.tensors.items() if not torch.equal(actual.tensors[key], tensor)]
        assert (actual.losses, different) == (expected.losses, []), schedule
        peak = max(actual.peaks[1:])  # The first one may reuse memory that was freed before.
        assert 0 <= run.predicted_bytes() - peak <= 0.0005 * peak, schedule


class Branches(nn.Module):
    """Two branches with an operation each, between other draws."""

    def __init__(self, operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.operation = operation
        self.linears = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = dropout(self.operation(self.linears[0](x).tanh() + 2), 0.1)
        right = self.operation(self.linears[1](x).tanh() + 2).sin()
        return self.linears[2](dropout(x.cos(), 0.3)) * left + dropout(right, 0.2)


def steps(net: nn.Module, run: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """Returns results, gradients and random numbers after forward and after backward of two steps."""
    import test_draws

    test_draws.calls = 0
    torch.manual_seed(1)
    actual = []
    for _ in range(2):
        x = torch.randn(32, 16, requires_grad=True)
        result = run(x)
        actual.append(torch.rand(2))
        (result * torch.rand_like(result)).sum().backward()
        actual += [result.detach(), x.grad, *[parameter.grad for parameter in net.parameters()], torch.rand(2)]
        actual += [buffer.clone() for buffer in net.buffers()]
        net.zero_grad()
    return actual


def expect_plain(net: nn.Module, *, reference: Callable[..., torch.Tensor] | None = None) -> Budgeted:
    start = copy.deepcopy(net.state_dict())
    expected = steps(net, reference or net)
    run = Budgeted(net)
    for order, seed, share in [*SCHEDULES, *itertools.product(("random", "late random"), range(2, 6), (0.0, 0.5))]:
        net.load_state_dict(start)
        replan(run)
        with planned_in(order, seed, share):
            actual = steps(net, run)
        different = [
            i for i, (ours, plain) in enumerate(zip(actual, expected, strict=True)) if not torch.equal(ours, plain)
        ]
        assert different == [], (order, seed, share)
    return run


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_draws_and_hidden_state_in_branches(operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    expect_plain(Branches(operation))


@pytest.mark.parametrize("kind", KINDS)
def test_buffers_that_forward_reads_and_changes(kind: str) -> None:
    torch.manual_seed(0)
    expect_plain(Stateful(kind))


class Factor(torch.autograd.Function):
    """Computes from a state in forward what only backward reads."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(state.cos())
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.saved_tensors[0], None


class Average(nn.Module):
    """Changes a buffer of which only backward needs the old contents."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(16, 16)
        self.register_buffer("state", torch.linspace(-1, 1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Factor.apply(self.linear(x), self.state)
        self.state.mul_(0.5).add_(x.detach().mean(0))
        return x.sin()


def test_a_buffer_of_which_only_backward_needs_the_old_contents() -> None:
    expect_plain(Average())


class Update(torch.autograd.Function):
    """Changes two states in backward, each by what the other was."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, state: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, state, other)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x, state, other = ctx.saved_tensors
        result = gradient * 2 * state.cos() + x * other
        before = state.clone()
        state.mul_(0.5).add_(gradient.mean(0) * other)
        other.copy_(before.sin())
        return result, None, None


class Changing(nn.Module):
    """Changes buffers in backward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linears = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.register_buffer("state", torch.linspace(-1, 1, 16))
        self.register_buffer("other", torch.linspace(1, 2, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Update.apply(self.linears[0](x).tanh(), self.state, self.other)
        return self.linears[1](x + self.state).sin()


def test_buffers_that_backward_changes() -> None:
    run = expect_plain(Changing())
    assert any("write" in name for name in run.ran())


class Careless(nn.Module):
    """Operates in place, on views and on parts of tensors, and uses modules several times."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.wide = nn.Linear(16, 16), nn.Linear(16, 32)
        self.norm, self.last_norm = nn.BatchNorm1d(16), nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x)).relu_()
        z = y.clone()
        z[:, 3:7].mul_(2)
        z.add_(self.norm(self.linear(y)).sum(1, keepdim=True))
        left, right = self.wide(z).chunk(2, 1)
        left = left.sigmoid()
        self.last_norm(left)  # Only its statistics count.
        rows = torch.empty(32, 16).copy_(left)
        rows[1::2] = right[::2]
        turned = rows.t().reshape(4, -1).exp_().view(16, 32).t()
        return torch.cat([turned, self.last_norm(right)], 1)[:, ::2] * left + self.linear(turned).tanh()


def test_changes_in_place_and_modules_used_twice() -> None:
    expect_plain(Careless())


class Drawing(nn.Module):
    """Draws random numbers of all kinds, some of them for several readers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = self.left(x).t() * torch.bernoulli(torch.full((16, 32), 0.5))
        right = nn.functional.dropout1d(self.right(x).unsqueeze(0), 0.3)[0]
        noise = torch.randn_like(x)
        chosen = nn.functional.gumbel_softmax(self.left(x), tau=0.5) * torch.rand(16)
        heads = right.view(1, 4, 8, 16)
        seen = nn.functional.scaled_dot_product_attention(heads, heads, heads + noise.view_as(heads), dropout_p=0.2)
        return left.t() * right + nn.functional.rrelu(x, training=True) * noise + chosen + seen.view(32, 16)


def test_random_numbers_of_all_kinds() -> None:
    expect_plain(Drawing())


notes: list[str] = []


@torch.library.custom_op("headroom_tests::note", mutates_args=())
def note(x: torch.Tensor, name: str) -> torch.Tensor:
    notes.append(name)
    return x.clone()


@note.register_fake
def _(x: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(x)


note.register_autograd(
    lambda ctx, gradient: (note(gradient, f"gradient of {ctx.name}"), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "name", inputs[1]),
)


class Checked(nn.Module):
    """Calls operators with effects, some of them without results, in two branches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linears = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = note(self.linears[0](x), "left").tanh()
        torch._assert_async((left.abs() < 2).all(), "left")
        right = note(self.linears[1](x), "right").sin()
        torch._assert_async((right.abs() < 2).all(), "right")
        return left * note(right, "last")


def test_effects_happen_once_and_in_the_order_of_plain_pytorch() -> None:
    net = Checked()
    notes.clear()
    steps(net, net)
    expected = list(notes)
    run = Budgeted(net)
    for schedule in SCHEDULES:
        replan(run)
        notes.clear()
        with planned_in(*schedule):
            steps(net, run)
        assert notes == expected, schedule
        checks = [name for name in run.ran() if "assert" in name]
        assert len(checks) == 2, schedule
        assert checks == sorted(checks), schedule


def done_values(net: nn.Module, *inputs: torch.Tensor) -> list[str]:
    run = Budgeted(net)
    run(*inputs).sum().backward()
    values = json.loads(run.steps[0].shape(Rest()).graph.to_json())["values"]
    return [value["name"] for value in values if value["name"].endswith(" is done")]


def test_an_order_is_a_value_only_where_data_does_not_keep_it() -> None:
    class InARow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return dropout(dropout(x, 0.1).sin(), 0.2)

    class InParallel(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return dropout(x, 0.1) + dropout(x.sin(), 0.2) * dropout(x.cos(), 0.3)

    x = torch.randn(8, 8, requires_grad=True)
    assert done_values(InARow(), x) == []
    assert len(done_values(InParallel(), x)) == 2


@pytest.mark.parametrize("schedule", [("random", 0, 0.0), ("late random", 1, 0.3)], ids=["early", "late, reruns"])
@pytest.mark.parametrize("make", [lambda: Branches(dropout), Average, Changing], ids=["draws", "forward", "backward"])
def test_kernels_of_inductor(make: Callable[[], nn.Module], schedule: tuple[str, int, float]) -> None:
    """The first steps include trials, which restore buffers and random numbers."""
    net = make()
    start = copy.deepcopy(net.state_dict())
    expected = steps(net, net)
    net.load_state_dict(start)
    with smallest_kernel_plans(), kernels_planned_in(*schedule), torch._inductor.config.patch(fallback_random=True):
        run = headroom.compile(net, "1x", kernels="inductor", cache=False)
        assert_close(steps(net, run), expected)


def test_kernels_are_emitted_in_the_order_of_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[list[str]] = []
    emit = partitioner.emit

    def emit_last_first(joint: Any, step: Any, _: _C.Schedule) -> Any:
        runs = runs_in_order(step.graph, "reversed", 0, 0.0)
        halves = emit(joint, step, _C.with_drops(step.graph, runs))
        calls = [step.fused.calls[step.call_of_op[op]].node for op in runs if step.call_of_op[op] >= 0]
        emitted.append([node.name for node in calls if "mm" in node.name])
        emitted.append([node.name for half in halves for node in half.graph.nodes if "mm" in str(node.target)])
        return halves

    monkeypatch.setattr(partitioner, "emit", emit_last_first)
    net = Careless()
    with smallest_kernel_plans():
        headroom.compile(net, "1x", kernels="inductor", cache=False)(torch.randn(32, 16)).sum().backward()
    scheduled, written = emitted[:2]
    assert written == scheduled
    assert scheduled != sorted(scheduled, key=lambda name: (len(name), name))


@pytest.mark.parametrize("keep_order", [False, True])
def test_planners_are_told_to_keep_the_order(monkeypatch: pytest.MonkeyPatch, keep_order: bool) -> None:
    told: list[bool] = []
    make_plan = _C.make_plan
    monkeypatch.setattr(_C, "make_plan", lambda *arguments: told.append(arguments[3]) or make_plan(*arguments))
    headroom.plan(Careless(), torch.randn(32, 16), budget="0.9x", keep_order=keep_order).within("0.8x")
    assert set(told) == {keep_order}


def test_orders_are_valid_and_differ() -> None:
    """Checks the schedules of these tests themselves."""
    run = Budgeted(Careless())
    run(torch.randn(32, 16)).sum().backward()
    graph = run.steps[0].shape(Rest()).graph
    seen = {tuple(runs_in_order(graph, *schedule)) for schedule in SCHEDULES}
    assert len(seen) > len(SCHEDULES) // 2
    needed = Dependencies(graph).needed
    for runs in seen:
        assert sorted(set(runs)) == needed
        assert _C.is_valid(graph, _C.with_drops(graph, runs))
    assert any(len(runs) > len(needed) for runs in seen)
