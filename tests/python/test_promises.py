"""A compiled step keeps autograd's guarantees: whose memory may be written, what backward reads, what is freed."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from budgeted import Budgeted, places  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone", "fresh_device")

Function = Callable[..., torch.Tensor]


def compiled_relu() -> Function:
    return headroom.compile(torch.relu, "1x")


# ---- Incoming gradients belong to autograd, or to the caller.


def residual(x: torch.Tensor, f: Function) -> list[torch.Tensor]:
    (x + f(x)).square().sum().backward()
    return [x.grad]


def callers_gradient(x: torch.Tensor, f: Function) -> list[torch.Tensor]:
    gradient = torch.ones_like(x)
    f(x).backward(gradient)
    return [x.grad, gradient]


def two_functions(x: torch.Tensor, f: Function) -> list[torch.Tensor]:
    (f(x) + f(2 - x)).backward(torch.ones_like(x))
    return [x.grad]


def through_views(x: torch.Tensor, f: Function) -> list[torch.Tensor]:
    y = f(x)
    (y.view(-1) + x.view(-1)).square().sum().backward()
    return [x.grad]


def kept_by_hook(x: torch.Tensor, f: Function) -> list[torch.Tensor]:
    kept: list[torch.Tensor] = []
    y = f(x)
    y.register_hook(kept.append)
    y.square().sum().backward()
    return [x.grad, *kept]


def storage_kept_by_hook(x: torch.Tensor, f: Function) -> list[torch.Tensor]:
    """The tensor is freed when backward runs, its storage is not."""
    kept: list[torch.Tensor] = []
    y = f(x)
    y.register_hook(lambda gradient: kept.append(gradient[0].detach()))
    y.square().sum().backward()
    return [x.grad, *kept]


def retained(x: torch.Tensor, f: Function) -> list[torch.Tensor]:
    y = f(x)
    y.retain_grad()
    y.square().sum().backward()
    return [x.grad, y.grad]


def asked_for(x: torch.Tensor, f: Function) -> list[torch.Tensor]:
    y = f(x)
    return list(torch.autograd.grad(y.square().sum(), [y, x]))


def full_backward_hook(x: torch.Tensor, f: Function) -> list[torch.Tensor]:
    class Module(nn.Module):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return f(t)

    kept: list[torch.Tensor] = []
    module = Module()
    module.register_full_backward_hook(lambda _, __, outputs: kept.append(outputs[0]))
    module(x).square().sum().backward()
    return [x.grad, *kept]


SHARED_GRADIENTS = [
    residual,
    callers_gradient,
    two_functions,
    through_views,
    kept_by_hook,
    storage_kept_by_hook,
    retained,
    asked_for,
    full_backward_hook,
]


@pytest.mark.parametrize("use", SHARED_GRADIENTS)
def test_gradients_that_others_hold_are_not_written_over(use: Callable[..., list[torch.Tensor]]) -> None:
    f = compiled_relu()
    start = torch.tensor([[-1.0, 2.0], [3.0, -4.0]])
    expected = use(start.clone().requires_grad_(), torch.relu)
    for step in range(5):  # The next step uses the measurements of a step.
        actual = use(start.clone().requires_grad_(), f)
        assert [tensor.tolist() for tensor in actual] == [tensor.tolist() for tensor in expected], step


def test_a_gradient_that_nobody_holds_is_written_over() -> None:
    """Shows that the tests above do run operators in place."""
    run = Budgeted(lambda x: torch.relu(x).view(-1))
    x = torch.randn(64, 64, requires_grad=True)
    for _ in range(2):
        (run(x) * 2).sum().backward()
    place = run.place()
    graph = place.step.shape(place.rest(1)).graph
    assert '"over"' in place.step.chosen[place].plan.schedule.to_json(graph)


def views(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.view(-1) + y.reshape(-1)


def permuted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.t() + y.t()) * 1.0


def one_tensor(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y])


@pytest.mark.parametrize(("kernels", "budget"), [("eager", "1x"), ("inductor", "1x"), ("inductor", "1GB")])
@pytest.mark.parametrize("function", [views, permuted, one_tensor, halves])
def test_clipping_a_gradient_does_not_change_another(
    function: Callable[..., torch.Tensor], kernels: str, budget: str
) -> None:
    """Autograd keeps as .grad what it is given, also where that is a view of the incoming gradient.

    The budget 1x is never refused, though Inductor's kernels take more here than storing everything should.
    """
    x, y = (torch.ones(16, 16).requires_grad_() for _ in range(2))
    headroom.compile(function, budget, kernels=kernels)(x, y).sum().backward()
    x.grad.mul_(0.5)
    assert y.grad.eq(1).all()
    assert x.grad.eq(0.5).all()


def test_only_gradients_that_share_memory_are_copied() -> None:
    x, y = (torch.randn(16, 16, requires_grad=True) for _ in range(2))
    for function, copies in ((views, 1), (permuted, 1), (one_tensor, 0), (halves, 0)):
        run = Budgeted(function)
        run(x, y).sum().backward()
        assert sum("clone" in name for name in run.ran()) == copies, function


def test_a_plan_is_made_anew_once_somebody_holds_the_gradient() -> None:
    """The first step has no measurement of it, so that the operator runs out of place."""
    f = compiled_relu()
    x = torch.randn(64, 64, requires_grad=True)
    for _ in range(5):
        (f(x) * 2).sum().backward()
    (place,) = places()
    assert not place.own_rest.is_held
    gradient = torch.ones_like(x)
    f(x).backward(gradient)
    assert place.own_rest.is_held
    f(x).backward(gradient)
    assert gradient.eq(1).all()


def test_a_graph_break_inside_a_residual() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x).relu()
            torch._dynamo.graph_break()
            return x + self.second(y).relu()

    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.ReLU())
    expect_plain(model, lambda run, x: run(x).square().sum(), "1x")


def gradients_of(model: nn.Module, loss_of: Callable[..., torch.Tensor], run: Function) -> dict[str, torch.Tensor]:
    """Returns gradients and buffers after three steps."""
    model.zero_grad()
    torch.manual_seed(4)
    for _ in range(3):
        loss_of(run, torch.randn(64, 16, requires_grad=True)).backward()
    return {
        **{name: parameter.grad.clone() for name, parameter in model.named_parameters()},
        **{name: buffer.clone() for name, buffer in model.named_buffers()},
    }


def expect_plain(model: nn.Module, loss_of: Callable[..., torch.Tensor], *budgets: str) -> None:
    start = copy.deepcopy(model.state_dict())
    expected = gradients_of(model, loss_of, model)
    for budget in budgets:
        torch._dynamo.reset()
        model.load_state_dict(start)
        actual = gradients_of(model, loss_of, headroom.compile(model, budget))
        assert [name for name, value in expected.items() if not torch.equal(value, actual[name])] == [], budget


# ---- Reruns read what the first run read.


class Stateful(nn.Module):
    """Reads buffers and then changes them in the way of `kind`. Everything can be recomputed."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.register_buffer("state", torch.linspace(0.5, 1.5, 16))
        self.register_buffer("queue", torch.linspace(-1, 1, 64).view(4, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.use(layer(x)).tanh()
        return x.square()

    def use(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            mean = x.mean(0)
        if self.kind == "moving average":
            y = (x - self.state).sin()
            self.state.mul_(0.9).add_(mean, alpha=0.1)
        elif self.kind == "queue":
            y = (x @ self.queue.clone().t()) @ self.queue.clone()
            self.queue.copy_(torch.cat([mean.unsqueeze(0), self.queue[:-1]]))
        elif self.kind == "codebook":
            nearest = torch.cdist(x.detach(), self.queue).argmin(1)
            y = x + (self.queue[nearest] - x).detach() * x.cos()
            self.queue.index_add_(0, nearest, x.detach(), alpha=0.01)
        elif self.kind == "largest value":
            y = x * (1 / self.state.max()).exp()
            self.state.copy_(torch.maximum(self.state.roll(1), x.detach().abs().amax(0)))
        elif self.kind == "view":
            y = (x * self.queue.view(-1)[16:32].clone()).sin() + self.queue[1]
            self.queue.view(64)[16:32].add_(mean)
        elif self.kind == "counter":
            self.state[0].add_(1)
            y = (x / self.state[0].clone()).sin()
            self.state.add_(mean)
        return y


KINDS = ["moving average", "queue", "codebook", "largest value", "view", "counter"]


@pytest.mark.parametrize("kind", KINDS)
def test_reruns_do_not_read_what_the_step_has_changed(kind: str) -> None:
    torch.manual_seed(0)
    model = Stateful(kind)
    start = copy.deepcopy(model.state_dict())

    def loss_of(run: Function, x: torch.Tensor) -> torch.Tensor:
        return run(x).sum()

    expected = gradients_of(model, loss_of, model)
    run = Budgeted(model)
    run(torch.randn(64, 16, requires_grad=True)).sum().backward()
    for smallest in (False, True):
        if smallest:
            run.set_smallest_budget()
        model.load_state_dict(start)
        actual = gradients_of(model, loss_of, run)
        assert [name for name, value in expected.items() if not torch.equal(value, actual[name])] == [], smallest
    assert run.reruns()


def test_an_input_that_the_step_changes() -> None:
    weight = torch.randn(16, 16, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x.clone() @ weight).tanh()
        x.mul_(0.5)
        return ((y + x.clone()) @ weight).sin().sum()

    start = torch.randn(8, 16)
    x = start.clone()
    (expected,) = torch.autograd.grad(function(x), weight)
    run = Budgeted(function)
    for budget in ("1x", None):
        actual_x = start.clone()
        (actual,) = torch.autograd.grad(run(actual_x), weight)
        assert torch.equal(actual, expected), budget
        assert torch.equal(actual_x, x)
        run.set_smallest_budget()


# ---- Changes between forward and backward are noticed.


def changed(what: str, use: Function, layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    y = use(x)
    with torch.no_grad():
        {"weight": layer.weight, "input": x, "output": y, "view of the output": y.view(-1)[:2]}[what].add_(1)
    y.sum().backward()
    return x.grad


@pytest.mark.parametrize("what", ["weight", "input", "output", "view of the output"])
def test_changes_that_plain_training_refuses_are_refused(what: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)

    def model(x: torch.Tensor) -> torch.Tensor:
        return layer(x).exp()

    for use in (model, headroom.compile(model, "1x")):
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            changed(what, use, layer, torch.randn(3, 4, requires_grad=True))
        assert "expected version" in str(error.value)


def test_changes_of_what_backward_does_not_read_are_not_refused() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)

    def model(x: torch.Tensor) -> torch.Tensor:
        return layer(x).tanh() * 2

    actual = []
    for use in (model, headroom.compile(model, "1x")):
        layer.load_state_dict({"weight": torch.eye(4), "bias": torch.zeros(4)})
        x = torch.ones(3, 4, requires_grad=True)
        y = use(x)
        with torch.no_grad():
            layer.bias.add_(1)
            y.add_(1)
        y.sum().backward()
        actual.append(x.grad)
    assert torch.equal(*actual)


def test_a_rerun_that_would_read_a_changed_bias_is_refused() -> None:
    """Plain training does not read the bias in backward; a plan that reruns the layer does."""
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(8)])
    run = Budgeted(lambda x: layers(x).sum())
    x = torch.randn(64, 16, requires_grad=True)
    run(x).backward()
    run.set_smallest_budget()
    run(x).backward()
    assert run.reruns()
    loss = run(x)
    with torch.no_grad():
        for layer in layers:
            layer[0].bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    run(x).backward()


def test_a_step_of_the_optimizer_is_no_change() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU())
    run = headroom.compile(model, "1x")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        losses = [run(torch.randn(8, 16)).sum() for _ in range(2)]  # Both change the running statistics.
        (losses[0] + losses[1]).backward()
        optimizer.step()


# ---- Nothing is leaked.

LAST = {
    "relu": torch.relu,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softmax": lambda x: x.softmax(-1),
    "max": lambda x: x.max(-1).values,
    "view": lambda x: x.exp().view(-1),
    "two views": lambda x: (lambda y: (y.view(-1), y.t()))(x.exp()),
}


@pytest.mark.parametrize("name", LAST)
def test_a_forward_without_backward_leaves_nothing(name: str) -> None:
    run = headroom.compile(lambda x: LAST[name](x * 2), "1x")
    x = torch.randn(64, 64, requires_grad=True)

    def first(results: object) -> torch.Tensor:
        return results[0] if isinstance(results, tuple) else results

    first(run(x)).sum().backward()
    x.grad = None
    gc.disable()  # The collector does not see cycles through C++ anyway.
    try:
        before = headroom.current_bytes()
        for _ in range(3):
            results = run(x)
            del results
            assert headroom.current_bytes() == before
        outer = run(x)
        first(run(x)).sum().backward()
        del outer
        x.grad = None
        assert headroom.current_bytes() == before
    finally:
        gc.enable()


def test_a_branch_on_a_number_leaves_nothing() -> None:
    layer = nn.Linear(16, 16)

    def model(x: torch.Tensor) -> torch.Tensor:
        y = layer(x).relu()
        if y.sum().item() > -1:
            return (y * 2).sum()
        return y.sum()

    run = headroom.compile(model, "1x")
    x = torch.randn(64, 16)
    sizes = []
    for _ in range(5):
        layer.zero_grad()
        run(x).backward()
        sizes.append(headroom.current_bytes())
    assert sizes[1:] == [sizes[1]] * 4


def test_backward_frees_what_it_has_though_the_loss_lives_on() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)])
    run = headroom.compile(lambda x: model(x).sum(), "1x")
    x = torch.randn(64, 64)
    run(x).backward()
    before = headroom.current_bytes()
    loss = run(x)
    assert headroom.current_bytes() > before + 2 * x.nbytes
    loss.backward()
    assert headroom.current_bytes() <= before + loss.nbytes + 64
