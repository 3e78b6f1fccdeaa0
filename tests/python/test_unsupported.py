"""Unusual operators, numbers and tensors train as in plain PyTorch, or the error says what is refused and where."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from budgeted import Budgeted  # noqa: E402
from headroom.costs import op_costs  # noqa: E402
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")

Function = Callable[..., object]
Case = tuple[Function, list[torch.Tensor]]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    op_costs.cache_of.cache_clear()
    yield
    op_costs.cache_of.cache_clear()


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def real_loss(tensor: torch.Tensor) -> torch.Tensor:
    """A loss that keeps several values for backward."""
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return (parts.tanh() * parts.sin()).sum()


def step(function: Function, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the results of the function, a loss first, and the gradients of its inputs."""
    torch.manual_seed(1)
    results = function(*inputs)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    sources = [tensor for tensor in inputs if tensor.requires_grad]
    gradients = torch.autograd.grad(results[0], sources)
    return [result.detach() if isinstance(result, torch.Tensor) else result for result in results] + list(gradients)


def expect_same(actual: list[object], expected: list[object]) -> None:
    assert len(actual) == len(expected)
    for place, (result, reference) in enumerate(zip(actual, expected, strict=True)):
        if isinstance(reference, TwoTensor):
            expect_same([result.a, result.b], [reference.a, reference.b])
        elif isinstance(reference, torch.Tensor):
            assert result.dtype == reference.dtype, place
            assert torch.equal(result, reference), place
        else:
            assert (type(result), result) == (type(reference), reference), place


def expect_plain_training(function: Function, inputs: list[torch.Tensor]) -> None:
    """Checks that the budget 1x and the smallest one give the same bits as plain PyTorch."""
    expected = step(function, inputs)
    run = Budgeted(function)
    expect_same(step(run, inputs), expected)
    if run.place().store_all_bytes() > 0:
        run.set_smallest_budget()
    expect_same(step(run, inputs), expected)


# Numbers of every kind as arguments


def scale_by_1j(x: torch.Tensor) -> torch.Tensor:
    return real_loss(((x * 2) * 1j + (2 + 1j)).sin() * 0.5)


def complex_power(x: torch.Tensor) -> torch.Tensor:
    return real_loss(torch.pow(x * 2 + 0j, 2j) + torch.full((4,), 1j))


def complex_subtraction(x: torch.Tensor) -> torch.Tensor:
    return real_loss(1j - x * 2) + real_loss((x * 3).to(torch.complex64).sub(1, alpha=2j))


def where_of_numbers(x: torch.Tensor) -> torch.Tensor:
    return real_loss(torch.where(x > 0, 1.5, -1) * (x * 2)) + torch.where(x > 0, True, False).sum() * x.sin().sum()


def types_and_layouts(x: torch.Tensor) -> torch.Tensor:
    image = (x * 2).view(1, 2, 2, 1).to(torch.float64).to(memory_format=torch.channels_last)
    return real_loss(image + torch.zeros(1, 2, 2, 1, dtype=torch.float64, layout=torch.strided, device="cpu"))


@torch.library.custom_op("headroom_tests::scaled", mutates_args=())
def scaled(
    x: torch.Tensor, name: str, to: torch.dtype, device: torch.device, twice: bool, factors: list[float]
) -> torch.Tensor:
    return x.to(to) * len(name) * sum(factors) * (2 if twice else 1)


@scaled.register_fake
def _(
    x: torch.Tensor, name: str, to: torch.dtype, device: torch.device, twice: bool, factors: list[float]
) -> torch.Tensor:
    return x.to(to)


scaled.register_autograd(lambda _, gradient: (gradient.float() * 12, None, None, None, None, None))


def scalars_of_a_custom_operator(x: torch.Tensor) -> torch.Tensor:
    return real_loss(scaled(x * 2, "ab", torch.float64, torch.device("cpu"), True, [1.0, 2.0]))


@pytest.mark.parametrize(
    "function",
    [
        scale_by_1j,
        complex_power,
        complex_subtraction,
        where_of_numbers,
        types_and_layouts,
        scalars_of_a_custom_operator,
    ],
)
def test_numbers_types_and_names_as_arguments(function: Function) -> None:
    expect_plain_training(function, [leaf(4)])


def test_a_generator_of_the_user_s_own_is_drawn_from() -> None:
    def draw(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return real_loss((x * 2) * torch.rand(4, generator=generator))

    x = leaf(4)
    expected = step(lambda x: draw(x, torch.Generator().manual_seed(3)), [x])
    generator = torch.Generator()
    run = headroom.compile(lambda x: draw(x, generator), "1x", cache=False)
    for _ in range(2):
        generator.manual_seed(3)
        expect_same(step(run, [x]), expected)


# Tensors of unusual kinds


def several_outputs(x: torch.Tensor) -> tuple[object, ...]:
    y = (x * 2).sin()
    return real_loss(y), x > 0, (x > 0).sum(), y.argmax(), (x > 0).sum(dtype=torch.int32), 3, "name", None


def test_results_that_are_no_floating_point_tensors() -> None:
    expect_plain_training(several_outputs, [leaf(4)])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), ()], ids=str)
def test_empty_tensors_and_numbers(shape: tuple[int, ...]) -> None:
    expect_plain_training(lambda x: real_loss((x * 2).sin().reshape(-1)), [leaf(*shape)])


def test_a_number_on_the_cpu_among_other_tensors() -> None:
    factor = torch.tensor(3.0, dtype=torch.float64)
    expect_plain_training(lambda x: real_loss((x * 2).sin() * factor), [leaf(4)])


def test_a_wrapper_subclass_is_taken_apart() -> None:
    expected_leaf = TwoTensor(torch.randn(4), torch.randn(4)).requires_grad_()
    weight = leaf(4)
    expect_plain_training(lambda x, w: ((x * 2).sin() * w).tanh().sum(), [expected_leaf, weight])


def test_fake_quantization() -> None:
    expect_plain_training(lambda x: real_loss(torch.fake_quantize_per_tensor_affine(x * 2, 0.1, 0, 0, 255)), [leaf(4)])


def test_a_view_of_a_constant_is_a_constant() -> None:
    """In backward the conjugate of 1j is a view of a number, which its readers must not overwrite."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return real_loss((x.sum() * 2) * 1j)

    expect_plain_training(function, [leaf(4)])
    expect_plain_training(function, [leaf(4)])


# Effects

events: list[str] = []


@torch.library.custom_op("headroom_tests::note", mutates_args=())
def note(name: str, x: torch.Tensor) -> torch.Tensor:
    events.append(name)
    return x.clone()


note.register_fake(lambda name, x: torch.empty_like(x))
_register_effectful_op(note._opoverload, _EffectType.ORDERED)


class NoteBackward(torch.autograd.Function):
    """The identity, which records its backward."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 1.5

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        note("backward", gradient)
        return gradient * 1.5


def noted(x: torch.Tensor) -> torch.Tensor:
    """Has effects whose results are read, are not read, or are needed by backward, and an effect in backward."""
    note("first", x.detach())
    y = (x * 2).sin()
    note("second", y.detach())
    y = y * note("third", (x * 3).detach())
    return real_loss(NoteBackward.apply(y))


ORDER = ["first", "second", "third", "backward"]


def test_effects_happen_once_and_in_order_whatever_the_budget() -> None:
    x = leaf(64)
    expected = step(noted, [x])
    events.clear()
    run = Budgeted(noted)
    expect_same(step(run, [x]), expected)
    assert events == ORDER
    run.set_smallest_budget()
    for _ in range(2):
        events.clear()
        expect_same(step(run, [x]), expected)
        assert events == ORDER
    assert len(run.ran()) > len(set(run.ran()))


def test_gradients_are_those_of_the_inputs_behind_the_token_of_an_effect() -> None:
    """Takes inputs with different numbers of dimensions, so that mixing them up is noticed."""

    def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.tensorsolve(a, b).square().sum()

    inputs = [torch.randn(2, 3, 6, requires_grad=True), torch.randn(2, 3, requires_grad=True)]
    actual = torch.autograd.grad(headroom.compile(loss, "1x")(*inputs), inputs)
    expected = torch.autograd.grad(loss(*inputs), inputs)
    assert all(torch.equal(left, right) for left, right in zip(actual, expected, strict=True))


def test_costs_are_known_without_effects() -> None:
    events.clear()
    headroom.plan(noted, leaf(8), cache=False)
    assert events == []


def test_forward_s_effects_happen_in_forward() -> None:
    events.clear()
    loss = headroom.compile(noted, "1x", cache=False)(leaf(8))
    assert events == ORDER[:3]
    loss.backward()
    assert events == ORDER


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.linalg.inv(x @ x.mT + torch.eye(4)),
        lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(4)),
        lambda x: torch.linalg.solve(x @ x.mT + torch.eye(4), x * 2),
        lambda x: torch.linalg.lu_factor(x * 2)[0],
        lambda x: torch.linalg.eigvals(x * 2),
    ],
    ids=["inv", "cholesky", "solve", "lu_factor", "eigvals"],
)
def test_linear_algebra_that_checks_its_result(function: Function) -> None:
    expect_plain_training(lambda x: real_loss(function(x)), [leaf(4, 4)])


def test_a_failing_check_of_linear_algebra_is_an_error_in_forward() -> None:
    run = headroom.compile(lambda x: real_loss(torch.linalg.inv(x * 2)), "1x", cache=False)
    step(run, [leaf(4, 4)])
    with pytest.raises(RuntimeError, match="singular"):
        run(torch.zeros(4, 4, requires_grad=True))


def test_assertions_hold_and_fail_as_in_plain_pytorch() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x < 100).all(), "too large")
        return real_loss((x * 2).sin())

    expect_plain_training(function, [leaf(4)])
    run = headroom.compile(function, "1x", cache=False)
    with pytest.raises(RuntimeError, match="too large"):
        run(torch.full((4,), 200.0, requires_grad=True))


def test_what_is_printed_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.ops.aten._print("a line")
        return real_loss((x * 2).sin())

    run = headroom.compile(function, "1x", cache=False)
    for _ in range(3):
        run(leaf(4)).backward()
    assert capfd.readouterr().out.count("a line") == 3


def test_a_custom_operator_that_changes_its_argument() -> None:
    @torch.library.custom_op("headroom_tests::add_to", mutates_args=("to",))
    def add_to(to: torch.Tensor, x: torch.Tensor) -> None:
        to.add_(x)

    def function(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(4)
        add_to(total, x.detach())
        return real_loss((x * 2) * total)

    expect_plain_training(function, [leaf(4)])


# Refused input, with the position in the model


class Sparse(torch.nn.Module):
    def __init__(self, bag: bool) -> None:
        super().__init__()
        self.table = (torch.nn.EmbeddingBag if bag else torch.nn.Embedding)(10, 4, sparse=True)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return real_loss(self.table(index))


def line_of(function: Function, text: str) -> str:
    lines, start = inspect.getsourcelines(function)
    (place,) = (place for place, line in enumerate(lines) if text in line)
    return f"test_unsupported.py:{start + place}"


@pytest.mark.parametrize("bag", [False, True], ids=["embedding", "bag"])
def test_sparse_gradients_are_refused_with_operator_module_and_line(bag: bool) -> None:
    model = torch.nn.Sequential(Sparse(bag))
    with pytest.raises(headroom.Unsupported, match=r"torch\.sparse_coo.*torch\.compiler\.disable") as error:
        headroom.compile(model, "1x")(torch.tensor([[1, 2]]))
    name = "_embedding_bag_backward" if bag else "_sparse_coo_tensor"
    text = str(error.value)
    assert f"aten.{name}" in text
    assert "(module 0.table, " in text
    assert "nn/functional.py:" in text or line_of(Sparse.forward, "self.table") in text


def region(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


def test_an_unknown_higher_order_operator_is_refused() -> None:
    repeated = torch.compiler.nested_compile_region(region)

    def function(x: torch.Tensor) -> torch.Tensor:
        return real_loss(repeated(repeated(x)))

    with pytest.raises(headroom.Unsupported, match=r"higher-order operator invoke_subgraph.*torch\.compiler\.disable"):
        headroom.compile(function, "1x")(leaf(4))


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: real_loss(x[x > 0] * 2), "aten.index"),
        (lambda x: real_loss(x * torch.unique(x > 0).sum()), "aten._unique2"),
        (lambda x: real_loss((x * 2) + (x > 0).sum().item()), "aten._local_scalar_dense"),
    ],
    ids=["nonzero", "unique", "item"],
)
def test_sizes_and_numbers_known_only_in_the_step(function: Function, operator: str) -> None:
    options = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    with (
        torch._dynamo.config.patch(options),
        pytest.raises(headroom.Unsupported, match=rf"{operator}.*test_unsupported.py:\d+.*known only once the step"),
    ):
        headroom.compile(function, "1x")(leaf(16))


def test_a_number_that_dynamo_keeps_a_tensor() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        expect_plain_training(lambda x: real_loss((x * 2) * x.sum().item()), [leaf(16)])


def test_parts_with_sizes_known_only_in_the_step_are_left_out_by_dynamo() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return real_loss((x * 2)[x > 0].sin())

    x = leaf(16)
    expect_same(step(headroom.compile(function, "1x", cache=False), [x]), step(function, [x]))


class Marked(torch.Tensor):
    """A subclass that cannot be unwrapped."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.randn(4, 4).to_mkldnn(), r"input \d of the graph, of the shape \[4, 4\].*torch\._mkldnn"),
        (lambda: torch.randn(4, 4, device="meta"), r"input \d of the graph.*device meta"),
        (lambda: torch.randn(4, 4).as_subclass(Marked), r"tensor class Marked.*as_subclass\(torch\.Tensor\)"),
        (lambda: torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged), "nested"),
    ],
    ids=["mkldnn", "meta", "subclass", "jagged"],
)
def test_inputs_of_other_kinds_are_refused(make: Callable[[], torch.Tensor], message: str) -> None:
    def function(x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return real_loss(x * 2), other * 2

    with pytest.raises(headroom.Unsupported, match=message):
        headroom.compile(function, "1x")(leaf(4), make())


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 4).to_sparse(),
        lambda: torch.randn(4, 4).to_sparse_csr(),
        lambda: torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.quint8),
    ],
    ids=["sparse", "csr", "quantized"],
)
def test_functions_of_inputs_that_dynamo_leaves_out(make: Callable[[], torch.Tensor]) -> None:
    other = make()

    def function(x: torch.Tensor) -> torch.Tensor:
        dense = other.dequantize() if other.is_quantized else other.to_dense()
        return ((x * 2) * dense).sin().sum()

    with pytest.raises(headroom.Unsupported, match="captured nothing"):
        headroom.compile(function, "1x")(leaf(4))

    def function_of_parts(x: torch.Tensor) -> torch.Tensor:
        return function(x) + real_loss(x * 2)

    x = leaf(4)
    expect_same(step(headroom.compile(function_of_parts, "1x", cache=False), [x]), step(function_of_parts, [x]))


def test_an_operator_without_a_fake_kernel_is_named() -> None:
    @torch.library.custom_op("headroom_tests::no_fake", mutates_args=())
    def no_fake(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.raises(Exception, match=r"headroom_tests::no_fake.*register_fake"):
        headroom.compile(lambda x: real_loss(no_fake(x)), "1x")(leaf(4))


def test_an_operator_that_gives_no_tensor_is_refused() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2)
    node = graph.call_function(torch.ops.aten.dim.default, (x,))
    node.meta |= {"val": 3, "stack_trace": 'File "model.py", line 12, in forward'}
    graph.output((node,))
    with pytest.raises(headroom.Unsupported, match=r"aten\.dim\.default \(model\.py:12\): gives int, not a tensor"):
        headroom.graph.capture.capture(torch.fx.GraphModule(torch.nn.Module(), graph), 1, "step")


def test_costs_of_effects_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def note_calls(name: str) -> None:
        measure = getattr(op_costs, name)

        def noting(call: object, *args: object) -> object:
            measured.append(str(call.node.target))
            return measure(call, *args)

        monkeypatch.setattr(op_costs, name, noting)

    for name in ("_measure", "_measure_time", "_elementwise_ns"):
        note_calls(name)
    headroom.plan(noted, leaf(8), cache=False)
    assert "aten.sin.default" in measured
    assert not any("with_effects" in name for name in measured)
