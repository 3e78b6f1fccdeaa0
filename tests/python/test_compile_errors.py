"""Errors say what is impossible and what to do instead, and no effect happens twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from headroom.costs import op_costs  # noqa: E402
from training_models import BEFORE_2_13  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")


def small_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(6)], torch.nn.Linear(16, 4)
    )


def count_calls(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[object]:
    calls: list[object] = []
    original = getattr(module, name)

    def counting(*args: object) -> object:
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(module, name, counting)
    return calls


def test_the_smallest_budget_named_works() -> None:
    model, inputs = small_model(), torch.randn(256, 16)
    for _ in range(2):
        model(inputs).sum().backward()  # Gradients exist before the step.
    with pytest.raises(headroom.BudgetError, match=r"what holds the memory there: .*KiB") as error:
        headroom.compile(lambda x: model(x).sum(), 1000)(inputs)
    smallest = error.value.smallest_budget_bytes
    assert f"{smallest} bytes" in str(error.value)
    meter = headroom._C.Meter(torch.device("cpu"))
    run = headroom.compile(lambda x: model(x).sum(), smallest)
    run(inputs).backward()
    meter.reset_peak()
    run(inputs).backward()
    assert meter.peak_bytes() <= smallest
    with pytest.raises(headroom.BudgetError):
        headroom.compile(lambda x: model(x).sum(), smallest - 1000)(inputs)


def test_a_model_of_which_nothing_is_captured() -> None:
    @torch.compiler.disable
    def inner(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum()

    def model(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    x = torch.randn(4, requires_grad=True)
    with pytest.raises(headroom.Unsupported, match=r"captured nothing.*headroom\.Sequential"):
        headroom.compile(model, "1x")(x)
    with pytest.raises(headroom.Unsupported, match="captured nothing"):
        headroom.plan(model, x)


def test_a_model_that_hands_on_its_input_captures_nothing_and_is_no_error() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    @torch.compiler.disable
    def double(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    leaf = torch.randn(4, requires_grad=True)
    hidden = leaf * 3
    for kernels in ("eager", "inductor"):
        compiled = headroom.compile(model, "1x", kernels=kernels)
        assert compiled(leaf) is leaf
        assert compiled(hidden) is hidden
    with pytest.raises(headroom.Unsupported, match="captured nothing"):
        headroom.compile(lambda x: double(x), "1x")(hidden)


def test_a_size_known_only_in_the_step() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].square().sum()

    x = torch.randn(16, requires_grad=True)
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        pytest.raises(Exception, match=r"known only once the step runs.*torch\.compiler\.disable"),
    ):
        headroom.compile(model, "1x")(x)


def test_a_second_backward_and_a_second_derivative_are_refused() -> None:
    model, inputs = small_model(), torch.randn(8, 16, requires_grad=True)
    loss = headroom.compile(model, "1x")(inputs).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="runs once"):
        loss.backward()

    def penalize() -> None:
        loss = headroom.compile(model, "1x")(inputs).sum()
        (gradient,) = torch.autograd.grad(loss, inputs, create_graph=True)
        (loss + gradient.square().sum()).backward()

    with pytest.raises(RuntimeError, match="double backward"):
        penalize()


@pytest.mark.parametrize("kernels", ["eager", "inductor"])
def test_second_derivatives_are_not_silently_left_out(kernels: str) -> None:
    """The gradient depends on the inputs by another path than the step's, or the input is a view."""
    model, inputs = small_model(), torch.randn(8, 16, requires_grad=True)
    run = headroom.compile(lambda x: model(x).sum(), "1x", kernels=kernels)

    def differentiate(x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(run(x), x, create_graph=True)
        return torch.autograd.grad((gradient * x).sum(), x)[0]

    for x in (inputs, inputs.view_as(inputs)):
        with pytest.raises(RuntimeError, match=r"double backward|create_graph"):
            differentiate(x)
    with pytest.raises(RuntimeError, match=r"double backward|create_graph"):
        torch.autograd.functional.hessian(run, inputs.detach())


def test_errors_are_not_suppressed() -> None:
    embedding = torch.nn.Embedding(10, 4, sparse=True)
    run = headroom.compile(lambda words: embedding(words).sum(), "1x")
    with torch._dynamo.config.patch(suppress_errors=True):
        with pytest.raises(headroom.Unsupported, match="sparse"):
            run(torch.tensor([1, 2]))
        assert torch._dynamo.config.suppress_errors


@pytest.mark.parametrize("kernels", ["eager", "inductor"])
def test_gradients_in_batches_are_refused(kernels: str) -> None:
    """No plan counts the memory of such inputs, and AOTAutograd cannot copy expanded ones."""
    run = headroom.compile(small_model(), kernels=kernels)
    x = torch.randn(4, 16, requires_grad=True)
    for gradients in (torch.randn(5, 4, 4), torch.eye(4).unsqueeze(-1).expand(4, 4, 4)):
        with pytest.raises(headroom.Unsupported, match=r"gradients in batches \(is_grads_batched=True"):
            torch.autograd.grad(run(x), x, gradients, is_grads_batched=True)


def test_an_unknown_higher_order_operator() -> None:
    from torch._higher_order_ops.wrap import wrap

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2)
    node = graph.call_function(wrap, (x,))
    node.meta["val"] = torch.empty(2)
    graph.output((node,))
    with pytest.raises(headroom.Unsupported, match=r"wrap is not supported.*torch\.compiler\.disable"):
        headroom.graph.capture.capture(torch.fx.GraphModule(torch.nn.Module(), graph), 1, "step")


def test_nothing_is_planned_or_measured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    plans = count_calls(monkeypatch, headroom._C, "make_plan")
    measurements = count_calls(monkeypatch, op_costs, "_measure")
    run = headroom.compile(lambda x: model(x).sum(), "0.7x")
    for _ in range(4):
        run(torch.randn(256, 16)).backward()
    assert len(plans) == 1
    count = len(measurements)
    run(torch.randn(128, 16)).backward()
    assert len(plans) == 2
    assert len(measurements) > count
    count = len(measurements)
    for size in (256, 128, 256):
        run(torch.randn(size, 16)).backward()
    assert len(plans) == 2
    torch._dynamo.reset()
    run(torch.randn(256, 16)).backward()
    assert len(measurements) == count


@pytest.mark.parametrize("dynamic", [None, True])
def test_symbolic_sizes_are_planned_one_by_one(dynamic: bool | None) -> None:
    model = small_model()
    run = torch.compile(lambda x: model(x).sum(), backend=headroom.backend, options={"budget": "0.7x"}, dynamic=dynamic)
    for size in (256, 128, 64, 128):
        x = torch.randn(size, 16)
        model.zero_grad()
        run(x).backward()
        actual = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        assert all(
            torch.equal(gradient, parameter.grad)
            for gradient, parameter in zip(actual, model.parameters(), strict=True)
        )


def test_past_the_recompile_limit_is_an_error() -> None:
    model = small_model()
    run = headroom.compile(lambda x: model(x).sum(), "1x")
    with torch._dynamo.config.patch(recompile_limit=2):
        run(torch.randn(4, 16)).backward()
        with pytest.warns(UserWarning, match=r"one more is an error.*recompile_limit"):
            run(torch.randn(5, 16)).backward()
        with pytest.raises(Exception, match="fail_on_recompile_limit_hit"):
            run(torch.randn(6, 16))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(torch.randn(5, 16)).backward()


@torch.library.custom_op("headroom_test::greedy", mutates_args=())
def greedy(x: torch.Tensor, fails: bool) -> torch.Tensor:
    if fails:
        raise torch.OutOfMemoryError("tried to allocate 2 MiB")
    return x * 2


greedy.register_fake(lambda x, fails: torch.empty_like(x))


def test_lack_of_memory_in_an_operator_names_it() -> None:
    linear, x = torch.nn.Linear(16, 16), torch.randn(8, 16)

    def run(*, fails: bool) -> torch.Tensor:
        return headroom.compile(lambda x: linear(x).sum() + greedy(x, fails).sum(), "1x")(x)

    with pytest.raises(torch.OutOfMemoryError) as error:
        run(fails=True)
    assert str(error.value) == "tried to allocate 2 MiB"
    assert "headroom_test::greedy on [8, 16]" in error.value.__notes__[-1]
    assert torch.equal(run(fails=False), linear(x).sum() + (2 * x).sum())


def test_an_error_in_an_operator_names_it() -> None:
    embedding = torch.nn.Embedding(4, 8)
    run = headroom.compile(lambda x: embedding(x).sum(), "1x")
    message = r"out of range in self.*\n?.*in aten::embedding on \[4, 8\] \[3\], .*test_compile_errors.py:\d+"
    for _ in range(2):
        with pytest.raises(IndexError, match=message):
            run(torch.tensor([1, 2, 9]))
        run(torch.tensor([1, 2, 3])).backward()


def test_importing_without_the_extension_says_how_to_build_it(tmp_path: Path) -> None:
    package = tmp_path / "headroom"
    shutil.copytree(Path(headroom.__file__).parent, package, ignore=shutil.ignore_patterns("_C.*"))
    result = subprocess.run(
        [sys.executable, "-c", "import headroom"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert "pip install --no-build-isolation ." in result.stderr


def test_conditions_run_through_python() -> None:
    first, second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda operand: first(operand).sin(), lambda operand: second(operand).cos(), (x,))
        return (y.tanh() * y).sum()

    modules = torch.nn.ModuleList([first, second])
    run = headroom.compile(model, "1x")
    for x in (torch.ones(8, 16), -torch.ones(8, 16)):
        modules.zero_grad()
        loss = run(x)
        loss.backward()
        actual = [parameter.grad for parameter in modules.parameters()]
        chosen = first if x.sum() > 0 else second
        modules.zero_grad()
        y = chosen(x).sin() if x.sum() > 0 else chosen(x).cos()
        expected = (y.tanh() * y).sum()
        expected.backward()
        assert torch.equal(loss, expected)
        gradients = {id(parameter): parameter.grad for parameter in chosen.parameters()}
        for parameter, gradient in zip(modules.parameters(), actual, strict=True):
            if id(parameter) in gradients:
                assert torch.equal(gradient, gradients[id(parameter)])
            else:
                assert not gradient.any()


@torch.library.custom_op("headroom_test::add_into", mutates_args=("y",))
def add_into(x: torch.Tensor, y: torch.Tensor) -> None:
    y.add_(x)


def accumulated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    add_into(x, y)
    return (x @ weight) * y


def scanned(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, element: (torch.tanh(carry @ weight + element), carry * 2), torch.zeros(8), x)[1]


def scanned_in_any_order(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(torch.add, x @ weight, 0, combine_mode="generic").sin()


def mapped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.map import map as map_rows

    return map_rows(lambda row: torch.tanh(row @ weight), x)


def looped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    start = (torch.tensor(0), x)
    return torch.while_loop(lambda i, _: i < 3, lambda i, value: (i + 1, value * 2), start)[1] * (x @ weight)


@pytest.mark.parametrize(
    "function",
    [
        accumulated,
        pytest.param(scanned, marks=pytest.mark.skipif(BEFORE_2_13, reason="PyTorch cannot compile its backward")),
        scanned_in_any_order,
        mapped,
        looped,
    ],
)
def test_higher_order_operators_run_through_python(function: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(8, 8, requires_grad=True), torch.randn(16, 8)
    expected = torch.autograd.grad(function(x, weight).sum(), weight)
    actual = torch.autograd.grad(headroom.compile(lambda tensor: function(tensor, weight).sum(), "1x")(x), weight)
    assert torch.equal(actual[0], expected[0])


def test_a_model_that_was_made_before_the_import_is_no_negative_number() -> None:
    """On the CPU only what is allocated after the import is counted."""
    script = (
        "import torch\n"
        "model = torch.nn.Linear(512, 512)\n"
        "import headroom\n"
        "headroom.compile(lambda x: model(x).sum(), 1)(torch.randn(4, 512))\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert "BudgetError" in done.stderr, done.stderr
    assert "0 B of it outside the step" in done.stderr
    assert "import headroom before you make the model" in done.stderr
    assert "-" not in done.stderr.split("the smallest that can is")[1].split(" (")[0]
