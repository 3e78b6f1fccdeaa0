"""The backend of torch.compile keeps budgets, and its gradients are those of plain training."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from budgeted import Budgeted  # noqa: E402
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts  # noqa: E402
from training_models import BEFORE_2_13, CASES, TRANSFORMERS, Trained, loss_of, train  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")


def make(name: str) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    if name == "t5" and BEFORE_2_13:
        pytest.skip("Dynamo breaks it into several graphs")
    torch.manual_seed(0)
    model = CASES[name].make()
    inputs, labels = CASES[name].inputs()
    return model, inputs, labels


def expect_same(actual: Trained, expected: Trained) -> None:
    assert actual.losses == expected.losses
    assert actual.tensors.keys() == expected.tensors.keys()
    different = [name for name, tensor in expected.tensors.items() if not torch.equal(actual.tensors[name], tensor)]
    assert different == []


@pytest.mark.parametrize("name", CASES)
def test_budgets_are_kept_and_bits_are_those_of_plain_training(name: str) -> None:
    model, inputs, labels = make(name)
    start = copy.deepcopy(model.state_dict())
    expected = train(model, loss_of(model), inputs, labels)
    model.zero_grad()
    run = Budgeted(loss_of(model))
    run(inputs, labels).backward()
    added = run.place().store_all_bytes()
    smallest = run.place().smallest_bytes() / added
    for share in sorted({1.0, 0.7, 0.5, 0.35, smallest + 1e-6}, reverse=True):
        if share < smallest:
            continue
        model.load_state_dict(start)
        run.set_budget(f"{share:.9f}x")
        actual = train(model, run, inputs, labels)
        expect_same(actual, expected)
        assert max(actual.peaks) <= share * added, share
        assert abs(max(actual.peaks) - run.predicted_bytes()) <= 0.005 * max(actual.peaks), share


def test_a_plan_predicts_the_peak_of_training() -> None:
    model, inputs, labels = make("resnet")
    plan = headroom.plan(loss_of(model), inputs, labels)
    assert plan.before < plan.smallest_budget < plan.peak == plan.plain_peak
    half = plan.within("0.5x")
    assert half.peak - half.before <= 0.5 * (plan.peak - plan.before)
    assert half.time_ns > half.plain_time_ns
    assert half.curve()[0][0] == plan.smallest_budget
    peaks = train(model, headroom.compile(loss_of(model), "0.5x"), inputs, labels).peaks[1:]
    assert max(peaks) == pytest.approx(half.peak - half.before, rel=0.005)


def test_a_budget_in_bytes_is_the_whole_peak() -> None:
    model, inputs, labels = make("resnet")
    plan = headroom.plan(loss_of(model), inputs, labels)
    budget = (plan.plain_peak + plan.smallest_budget) // 2 + 200_000
    meter = headroom._C.Meter(torch.device("cpu"))
    run = headroom.compile(loss_of(model), budget)
    train(model, run, inputs, labels)
    meter.reset_peak()
    run(inputs, labels).backward()
    assert meter.peak_bytes() <= budget


def test_too_small_a_budget_names_the_smallest() -> None:
    model, inputs, _labels = make("resnet")
    with pytest.raises(Exception, match="the smallest that can is") as error:
        headroom.compile(model, "0.01x")(inputs)
    assert "what holds the memory" in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "8 apples"}, "8 apples"),
        ({"budget": 1000, "planner": "fastest"}, "planner must be one of"),
        ({"budget": 1000, "kernels": "fast"}, "kernels must be eager or inductor"),
        ({"budget": 1000, "reserve": "much"}, "much"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        headroom.compile(torch.nn.Linear(2, 2), **options)


def test_a_second_backward_is_refused() -> None:
    model, inputs, labels = make("mlp")
    loss = torch.nn.functional.cross_entropy(headroom.compile(model, "1x")(inputs), labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="runs once"):
        loss.backward()


def test_gradients_accumulate_over_two_forwards() -> None:
    def both(run: Callable[..., torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor) -> None:
        torch.manual_seed(3)
        losses = [torch.nn.functional.cross_entropy(run(inputs * scale), labels) for scale in (1.0, 0.5)]
        (losses[0] + losses[1]).backward()
        torch.nn.functional.cross_entropy(run(inputs), labels).backward()

    model, inputs, labels = make("resnet")
    both(model, inputs, labels)
    other, _, _ = make("resnet")
    both(headroom.compile(other, "0.6x"), inputs, labels)
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(left.grad, right.grad)


def test_frozen_parameters_get_no_gradient() -> None:
    model, inputs, labels = make("vgg")
    model[0].requires_grad_(False)
    torch.nn.functional.cross_entropy(headroom.compile(model, "1x")(inputs), labels).backward()
    assert model[0].weight.grad is None
    assert model[2].weight.grad is not None


@pytest.mark.parametrize("name", ["vgg", "vit", "gpt"])
def test_bf16_autocast(name: str) -> None:
    def run(compiled: Callable[[torch.nn.Module], Callable[..., torch.Tensor]]) -> list[torch.Tensor]:
        torch._dynamo.reset()
        model, inputs, labels = make(name)
        function = compiled(model)
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(function(inputs), labels)
        loss.backward()
        return [loss.detach(), *[parameter.grad for parameter in model.parameters()]]

    expected = run(lambda model: model)
    actual = run(lambda model: headroom.compile(model, "0.8x"))
    assert all(torch.equal(left, right) for left, right in zip(actual, expected, strict=True))


def gradients_of(model: torch.nn.Module, function: Callable[..., torch.Tensor], *args: object) -> dict:
    """Returns the summed gradients of three steps, and the buffers of batch norm and other layers after them."""
    model.zero_grad()
    torch.manual_seed(4)
    for _ in range(3):
        function(*args).backward()
    return {
        **{
            name: None if parameter.grad is None else parameter.grad.clone()
            for name, parameter in model.named_parameters()
        },
        **{name: buffer.clone() for name, buffer in model.named_buffers()},
    }


def expect_plain(
    model: torch.nn.Module,
    function: Callable[..., torch.Tensor],
    budget: object,
    *args: object,
    plain: Callable[..., torch.Tensor] | None = None,
) -> None:
    start = copy.deepcopy(model.state_dict())
    expected = gradients_of(model, plain or function, *args)
    model.load_state_dict(start)
    actual = gradients_of(model, headroom.compile(function, budget), *args)
    for name, tensor in expected.items():
        assert (tensor is None) == (actual[name] is None), name
        assert tensor is None or torch.equal(tensor, actual[name]), name


def test_a_users_own_checkpoint() -> None:
    model, inputs, labels = make("resnet")

    def loss(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = model.stem(inputs)
        for block in model.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return torch.nn.functional.cross_entropy(model.head(x.mean((2, 3))), labels)

    # Eager's own checkpoint would update batch norm's statistics twice.
    expect_plain(model, loss, "0.6x", inputs, labels, plain=loss_of(model))


def test_what_a_user_wants_saved_is_not_computed_again() -> None:
    model, inputs, _ = make("mlp")

    def policy(_: object, op: object, *__: object, **___: object) -> CheckpointPolicy:
        is_product = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def loss(inputs: torch.Tensor) -> torch.Tensor:
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False, context_fn=contexts).sum()

    run = Budgeted(loss, keep_order=True)  # In another order, nothing need be computed again.
    run(inputs).backward()
    run.set_smallest_budget()
    run(inputs).backward()
    products = [call.node.name for call in run.place().step.captured.calls if "mm" in call.node.name]
    assert products
    ran = run.ran()
    assert [name for name in products if ran.count(name) > 1] == []
    assert len(ran) > len(set(ran))
    expect_plain(model, loss, "1x", inputs)


def test_tied_and_frozen_weights_and_an_input_without_gradient() -> None:
    model, inputs, labels = make("gpt")
    model.places.weight.requires_grad_(False)
    model.unused = torch.nn.Linear(2, 2)
    expect_plain(model, loss_of(model), "0.6x", inputs, labels)


def test_in_place_operations_of_the_users() -> None:
    class InPlace(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(16, 16)
            self.register_buffer("seen", torch.zeros(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            y.mul_(2).add_(x)
            y[:, 3:5] = y[:, 5:7].tanh()
            self.seen.add_(y.detach().mean(0))
            z = torch.zeros_like(y)
            z.copy_(y.sigmoid_())
            return (z * self.seen).sum()

    torch.manual_seed(0)
    model = InPlace()
    expect_plain(model, model, "1x", torch.randn(8, 16))


class Normalized(torch.nn.Module):
    """Several batch norms, one of them used twice, and one whose only effect is its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(6))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(8) for _ in range(6))
        self.twice, self.aside = torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(8, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x)).tanh()
        self.aside(x)
        return self.twice(self.twice(x) + x).sum()


def test_statistics_are_written_where_they_are_and_once() -> None:
    torch.manual_seed(0)
    model, inputs = Normalized(), torch.randn(4, 8, 16, 16)
    start = copy.deepcopy(model.state_dict())
    expected = gradients_of(model, model, inputs)
    run = Budgeted(model)
    run(inputs).backward()
    calls = run.place().step.captured.calls
    updating = {call.node.name for call in calls if call.node.target is torch.ops.aten.native_batch_norm.default}
    functional = torch.ops.aten._native_batch_norm_legit_functional.default
    assert (len(updating), sum(call.node.target is functional for call in calls)) == (6, 3)
    run.set_smallest_budget()
    model.load_state_dict(start)
    actual = gradients_of(model, run, inputs)
    assert [name for name, tensor in expected.items() if not torch.equal(tensor, actual[name])] == []
    assert any(run.ran().count(name) > 1 for name in updating)


def test_a_model_in_two_graphs() -> None:
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x).relu()
            torch._dynamo.graph_break()
            return self.second(x.tanh())

    torch.manual_seed(0)
    model = Broken()
    inputs = torch.randn(8, 16)
    headroom.compile(model, "1x")(inputs).sum().backward()
    actual = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(inputs).sum().backward()
    assert all(
        torch.equal(gradient, parameter.grad) for gradient, parameter in zip(actual, model.parameters(), strict=True)
    )


def test_several_inputs_and_outputs() -> None:
    linear = torch.nn.Linear(8, 8)

    def model(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        z = linear(x) * y
        return z, z.exp(), x

    x, y = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8, requires_grad=True)
    first, second, same = headroom.compile(model, "1x")(x, y)
    (first.sum() + 2 * second.sum() + same.sum()).backward()
    actual = [x.grad.clone(), y.grad.clone(), linear.weight.grad.clone()]
    x.grad = y.grad = linear.weight.grad = None
    first, second, same = model(x, y)
    (first.sum() + 2 * second.sum() + same.sum()).backward()
    assert all(torch.equal(a, b) for a, b in zip(actual, [x.grad, y.grad, linear.weight.grad], strict=True))


def test_parameters_behind_unused_outputs_get_zeros_as_in_aot_eager() -> None:
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return first(x).tanh(), second(x).tanh()

    for function in (headroom.compile(model, "1x"), torch.compile(model, backend="aot_eager")):
        second.zero_grad()
        function(torch.randn(4, 8))[0].sum().backward()
        assert not second.weight.grad.any()
    second.zero_grad()
    model(torch.randn(4, 8))[0].sum().backward()
    assert second.weight.grad is None


def test_max_batch_fits_and_one_more_does_not() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256), torch.nn.Tanh())
    single = headroom.plan(model, torch.randn(1, 64))
    budget = single.smallest_budget + 100_000
    largest = headroom.max_batch(model, lambda n: (torch.randn(n, 64),), budget, most=64)
    assert 1 < largest < 64
    assert headroom.plan(model, torch.randn(largest, 64)).smallest_budget <= budget
    assert headroom.plan(model, torch.randn(largest + 1, 64)).smallest_budget > budget
    assert headroom.max_batch(model, lambda n: (torch.randn(n, 64),), budget, most=2) == 2
    assert headroom.max_batch(model, lambda n: (torch.randn(n, 64),), 1000) == 0
    with pytest.raises(ValueError, match="takes a number of bytes"):
        headroom.max_batch(model, lambda n: (torch.randn(n, 64),), "0.5x")


def test_without_gradients_nothing_is_planned() -> None:
    model, inputs, _ = make("resnet")
    model.eval()
    with torch.no_grad():
        assert torch.equal(headroom.compile(model, "0.01x")(inputs), model(inputs))


def test_a_plan_has_a_page(tmp_path: Path) -> None:
    model, inputs, labels = make("gpt")
    plan = headroom.plan(loss_of(model), inputs, labels, budget="0.6x")
    path = tmp_path / "plan.html"
    try:
        plan.report(str(path))
    except ValueError as error:
        pytest.skip(str(error))
    page = path.read_text()
    assert "native_layer_norm" in page
    assert "blocks.1" in page
    assert "training_models.py" in page
    assert plan._repr_html_().startswith("<iframe")
