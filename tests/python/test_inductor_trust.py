"""kernels="inductor" keeps autograd's guarantees. Each test compares a step with the same step in plain PyTorch."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from headroom.budget.flight import flights_on  # noqa: E402
from headroom.budget.place import Place, Room  # noqa: E402
from headroom.exec.inductor import kernels, trial  # noqa: E402
from inductor_steps import (  # noqa: E402
    BATCH,
    WIDTH,
    Net,
    assert_close,
    assert_recomputes,
    batch,
    compiled,
    each_budget,
    gradients,
    same_costs,  # noqa: F401
)

pytestmark = pytest.mark.usefixtures("alone", "same_costs")


@pytest.mark.parametrize("budget", ["10x", "0.9x"])
def test_results_may_be_views_of_each_other_and_of_inputs(budget: str) -> None:
    model = Net()

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = model(x)
        return y.view(-1), y.t(), y, x.view(-1), x

    step, plans = compiled(run, budget)
    inputs = [batch(requires_grad=True) for _ in range(2)]
    results = [run(inputs[0]), step(inputs[1])]
    for outputs in results:
        sum((i + 1) * output.square().sum() for i, output in enumerate(outputs)).backward()
    assert_close(list(results[1]), list(results[0]))
    assert_close([inputs[1].grad], [inputs[0].grad])
    flat, turned, y, flat_input, output = results[1]
    assert flat.data_ptr() == turned.data_ptr() == y.data_ptr()
    assert flat_input.data_ptr() == inputs[1].data_ptr()
    assert output is inputs[1]
    gradients(model)
    step(inputs[1])[0].square().sum().backward()
    actual = gradients(model)
    run(inputs[1])[0].square().sum().backward()
    assert_close(actual, gradients(model))
    assert_recomputes(plans, budget)


def test_only_views_of_inputs_need_no_plan() -> None:
    step, plans = compiled(lambda x: x.t(), "0.01x")
    x = batch(requires_grad=True)
    result = step(x)
    assert result.data_ptr() == x.data_ptr()
    result.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert not plans


@pytest.mark.parametrize("dynamic", [None, True], ids=["where sizes have changed", "dynamic"])
def test_sizes_and_numbers_may_change(dynamic: bool | None) -> None:
    weight = torch.randn(4, 4, requires_grad=True)

    def run(x: torch.Tensor, rows: int) -> torch.Tensor:
        return (x[:rows] @ weight) @ weight

    step, plans = compiled(run, "10x", dynamic)
    calls = [(8, 4), (9, 5), (7, 6), (7, 3), (1, 1), (8, 4)]
    for size, rows in calls:
        x = torch.randn(size, 4)
        actual, expected = step(x, rows), run(x, rows)
        gradient = torch.randn_like(expected)
        assert_close([actual], [expected])
        assert_close(
            list(torch.autograd.grad(actual, weight, gradient)), list(torch.autograd.grad(expected, weight, gradient))
        )
    assert len(plans) == len(set(calls))


def test_a_trial_of_an_inner_graph_is_in_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Net(2), Net(2)

    def run(x: torch.Tensor) -> torch.Tensor:
        middle = first(x)
        torch._dynamo.graph_break()
        return second(middle)

    budget = headroom.current_bytes() + (1 << 20)
    try_plans = kernels.try_plans

    def try_and_take_more(*arguments: Any) -> kernels.Candidate:
        torch.empty(1 << 21, dtype=torch.uint8)
        return try_plans(*arguments)

    monkeypatch.setattr(kernels, "try_plans", try_and_take_more)
    step, plans = compiled(run, budget)
    for _ in range(3):
        step(batch()).sum().backward()
    assert len(plans) == 2


class Changing(torch.nn.Module):
    """Changes a buffer through views, statistics, a weight, and its input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("history", torch.rand(4, WIDTH))
        self.norm = torch.nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5)
        y = (x @ self.weight).sin() * self.history.amax(0)
        with torch.no_grad():
            self.history[0].copy_(y.detach().abs().amax(0))
            self.history[1:].mul_(0.5)
            self.scale.mul_(0.9)
        return self.norm(y).exp() + self.scale


def test_a_trial_changes_nothing_that_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plain = Changing(), Changing()
    calls: list[str] = []
    for parameter in model.parameters():
        parameter.register_hook(lambda _: calls.append("hook"))
        parameter.register_post_accumulate_grad_hook(lambda _: calls.append("accumulated"))

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        calls.append("packed")
        return tensor

    step, _ = compiled(model, "10x")
    tensors = [*model.parameters(), *model.buffers()]
    choose = kernels.Kernels.choose
    trials: list[kernels.Kernels] = []

    def state() -> list[Any]:
        torch_state = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
        versions = [tensor._version for tensor in tensors]
        return [torch_state, versions, [tensor.grad for tensor in tensors], list(calls), torch.get_rng_state().tolist()]

    def watched_choose(self: kernels.Kernels, room: Room, arguments: Any) -> kernels.Chosen:
        given = [one for one in arguments if isinstance(one, torch.Tensor)]
        before, content = state(), [one.detach().clone() for one in [*tensors, *given]]
        versions = [one._version for one in given]
        chosen = choose(self, room, arguments)
        assert state() == before
        assert versions == [one._version for one in given]
        assert all(torch.equal(one, other) for one, other in zip([*tensors, *given], content, strict=True))
        trials.append(self)
        return chosen

    monkeypatch.setattr(kernels.Kernels, "choose", watched_choose)
    for current, run in ((plain, plain), (model, step)):
        x = batch(requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = run(x * 1)
        result.square().sum().backward()
        assert_close(list(current.buffers()), list(plain.buffers()))
    assert len(trials) == 1
    assert calls.count("hook") == calls.count("accumulated") == 4  # one for each weight
    assert_close(gradients(model), gradients(plain))


def test_copies_for_a_trial_share_memory_as_the_arguments_do() -> None:
    base = torch.arange(6.0)
    leaf = torch.ones(3, requires_grad=True)
    history = leaf * 2
    arguments = [base, base[2:4], leaf, history, 7]
    (all_of_it, part, same, changed, number), leaves = trial.Arguments(arguments, {1, 3}).stand_ins()
    assert part._base is all_of_it
    part.fill_(9)
    assert all_of_it.tolist() == [0, 1, 9, 9, 4, 5]
    assert same.data_ptr() == leaf.data_ptr()
    changed.mul_(3)
    (changed.sum() + same.sum()).backward()
    assert [tensor.grad.tolist() for tensor in leaves] == [[1.0] * 3, [3.0] * 3]
    assert number == 7
    assert base.tolist() == [0, 1, 2, 3, 4, 5]
    assert leaf.grad is None
    assert history.tolist() == [2, 2, 2]


@each_budget
def test_changes_between_forward_and_backward_are_errors(budget: str) -> None:
    model = Net()
    step, plans = compiled(model, budget)

    def weight(_: torch.Tensor, __: torch.Tensor) -> torch.Tensor:
        return model.layers[1].weight

    for choose in (weight, lambda x, _: x, lambda _, y: y):
        for run in (model, step):
            x = batch()
            y = run(x)
            with torch.no_grad():
                choose(x, y).mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()
    assert_recomputes(plans, budget)
    gradients(model)
    step(batch()).sum().backward()
    actual = gradients(model)
    model(batch()).sum().backward()
    assert_close(actual, gradients(model))


@each_budget
def test_incoming_gradients_are_not_written_over(budget: str) -> None:
    model = Net()
    step, plans = compiled(model, budget)
    gradient = batch(5)
    kept = gradient.clone()
    actual: list[list[Any]] = []
    for run in (model, step):
        x = batch(requires_grad=True)
        y = run(x)
        y.retain_grad()
        seen: list[torch.Tensor] = []
        y.register_hook(seen.append)
        (x + y).backward(gradient)
        assert torch.equal(gradient, kept)
        assert torch.equal(y.grad, kept)
        assert torch.equal(seen[0], kept)
        made = [x.grad, *gradients(model)]
        y = run(x)
        made += torch.autograd.grad(y.square().sum(), [y, *model.parameters()])
        actual.append(made)
    assert_close(actual[1], actual[0])
    assert_recomputes(plans, budget)


@pytest.mark.parametrize("last", ["relu", "exp", "sigmoid", "tanh", "softmax", "max", "item"])
def test_a_forward_without_backward_leaves_nothing(last: str) -> None:
    model = Net(2)

    def run(x: torch.Tensor) -> Any:
        y = model(x)
        if last == "item":
            return y * 2 if y.sum().item() > 0 else y
        return y.softmax(-1) if last == "softmax" else getattr(y, last)()

    step, _ = compiled(run, "10x" if last == "item" else "0.9x")
    x = batch()
    step(x).sum().backward()
    model.zero_grad()
    gc.collect()
    before = headroom.current_bytes()
    for _ in range(3):
        step(x)
        assert headroom.current_bytes() == before
        with torch.no_grad():
            step(x)
        step(x).sum().backward()
        model.zero_grad()
        assert headroom.current_bytes() == before
    gc.collect()
    assert headroom.current_bytes() == before


def test_results_that_are_kept_keep_no_flight() -> None:
    model = Net(2)
    step, _ = compiled(model, "10x")

    def in_flight() -> int:
        return sum(len(stack.waiting()) for stack in flights_on(torch.device("cpu")).stacks.values())

    before = in_flight()
    first = step(batch())
    assert in_flight() == before + 1
    first.sum().backward()
    assert in_flight() == before
    second = step(batch())
    assert in_flight() == before + 1
    del second
    assert in_flight() == before
    assert first.grad_fn is not None


def test_models_and_threads_do_not_share_a_budget() -> None:
    models, plain = [Net(2), Net(2)], Net(2)
    inner: dict[str, list[bool]] = {}  # Whether what is planned is in the rest of another graph's step.
    plan = Place.plan

    def noting_plan(self: Place, room: Room, arguments: Any, *, is_inner: bool) -> Any:
        inner.setdefault(threading.current_thread().name, []).append(is_inner)
        return plan(self, room, arguments, is_inner=is_inner)

    def step_of(model: torch.nn.Module) -> Callable[..., Any]:
        settings = headroom.settings.Settings(budget="10x", kernels="inductor")
        return torch.compile(model, backend=lambda gm, _: kernels.Kernels(gm, settings), dynamic=False)

    errors: list[BaseException] = []
    both_in_flight = threading.Barrier(2, timeout=300)

    def train(model: torch.nn.Module) -> None:
        try:
            step = step_of(model)
            for _ in range(3):
                model.zero_grad()
                y = step(batch())
                both_in_flight.wait()
                y.sum().backward()
        except BaseException as error:
            errors.append(error)
            both_in_flight.abort()

    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Place, "plan", noting_plan)
        threads = [threading.Thread(target=train, args=(model,), name=f"{i}") for i, model in enumerate(models)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert inner == {"0": [False], "1": [False]}
        # In one thread, a forward of one model in flight is not around another's.
        torch._dynamo.reset()
        first, second = (step_of(model) for model in models)
        results = [first(batch()), second(batch())]
        assert list(inner.values())[2:] == [[False, False]]
        del results
    plain(batch()).sum().backward()
    for model in models:
        assert_close(
            [parameter.grad for parameter in model.parameters()], [parameter.grad for parameter in plain.parameters()]
        )


class Drawing(torch.nn.Module):
    """Draws numbers in many ways, and changes a buffer by them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(2)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropout, attend = torch.nn.functional.dropout, torch.nn.functional.scaled_dot_product_attention
        x = dropout(self.net(x), 0.3)
        x = dropout(x.sin(), 0.5) + torch.rand_like(x) + torch.bernoulli(torch.full_like(x, 0.5))
        heads = x.view(4, -1, WIDTH)
        x = x + attend(heads, heads, heads, dropout_p=0.2).reshape(x.shape)
        x = x * torch.empty_like(x).normal_()
        with torch.no_grad():
            self.seen.add_(x.mean(0))
        return x[torch.multinomial(torch.ones(BATCH), 8)].square().sum() + x.exp().mean()


def test_random_numbers_are_the_same_within_any_budget() -> None:
    actual: list[list[Any]] = []
    for budget in ("10x", "0.8x", "0.75x"):
        model = Drawing()
        step, _ = compiled(model, budget)
        torch.manual_seed(3)
        results = []
        for _ in range(2):
            loss = step(batch())
            loss.backward()
            results += [loss.detach(), *gradients(model), model.seen.clone()]
        actual.append([*results, torch.get_rng_state().float()])
        assert not torch.equal(results[0], results[len(results) // 2])
    assert_close(actual[1], actual[0])
    assert_close(actual[2], actual[0])


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, __: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("in mid-step")


class Tied(torch.nn.Module):
    """Has two results, of which one may get no gradient, a weight that is used twice and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(3)
        self.net.layers[2].weight = self.net.layers[0].weight
        self.net.layers[1].weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.net(x)
        torch._dynamo.graph_break()
        z = self.net(y.tanh())
        return y, z


def use_in_many_ways(model: torch.nn.Module, run: Callable[..., Any]) -> list[Any]:
    """Returns gradients of steps in which forwards and backwards do not alternate."""
    results: list[Any] = []
    for position in range(2):  # The other result gets no gradient.
        run(batch())[position].square().sum().backward()
        results += gradients(model)
    first, second = run(batch(2)), run(batch(3))  # two in flight, backwards in the same order, then crossed
    first[1].sum().backward()
    second[1].square().sum().backward()
    results += gradients(model)
    with pytest.raises(ArithmeticError, match="in mid-step"):
        (_Fails.apply(run(batch())[1]).sum()).backward()
    gradients(model)
    with torch.no_grad():
        results += run(batch(4))
    y, z = run(run(batch(5))[1].tanh())  # used twice
    (y.sum() + z.square().sum()).backward()
    results += gradients(model)
    with torch.autograd.graph.save_on_cpu():
        loss = run(batch(6))[1].sum()
    loss.backward()
    return results + gradients(model)


@each_budget
def test_steps_that_are_no_forward_and_backward_in_turn(budget: str) -> None:
    model = Tied()
    step, _ = compiled(model, budget)
    assert_close(use_in_many_ways(model, step), use_in_many_ways(model, model))
    gc.collect()
    before = headroom.current_bytes()
    del model.net.layers[0].weight.grad
    use_in_many_ways(model, step)
    gc.collect()
    assert headroom.current_bytes() == before
