"""The surroundings of a compiled step: hooks for saved tensors, threads, copies and files, errors."""

from __future__ import annotations

import copy
import gc
import io
import threading
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from budgeted import places  # noqa: E402
from torch import nn  # noqa: E402

Function = Callable[..., torch.Tensor]

pytestmark = pytest.mark.usefixtures("alone", "fresh_device")


def test_hooks_for_saved_tensors() -> None:
    layer = nn.Linear(16, 16)
    run = headroom.compile(lambda x: layer(x).relu().sum(), "1x")
    x = torch.randn(8, 16)
    layer(x).relu().sum().backward()
    expected = layer.weight.grad.clone()
    for hooks in (
        torch.autograd.graph.save_on_cpu(),
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.numpy(force=True), torch.from_numpy),
    ):
        layer.zero_grad()
        with hooks:
            loss = run(x)
        loss.backward()
        assert torch.equal(layer.weight.grad, expected)


def train_some(model: nn.Module, run: Function, inputs: torch.Tensor, barrier: threading.Barrier | None) -> None:
    for _ in range(6):
        loss = run(inputs).square().sum()
        if barrier is not None:
            barrier.wait()  # Both have a forward in flight.
        loss.backward()


def test_threads_train_their_own_models() -> None:
    def make(seed: int) -> tuple[nn.Module, torch.Tensor]:
        torch.manual_seed(seed)
        layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4 + seed)]
        return nn.Sequential(*layers), torch.randn(64, 16)

    expected = []
    for seed in range(2):
        model, inputs = make(seed)
        train_some(model, model, inputs, None)
        expected.append([parameter.grad for parameter in model.parameters()])
    models = [make(seed) for seed in range(2)]
    runs = [headroom.compile(model, "0.9x") for model, _ in models]
    barrier = threading.Barrier(2, timeout=60)
    threads = [
        threading.Thread(target=train_some, args=(*models[i][:1], runs[i], models[i][1], barrier)) for i in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (model, _), gradients in zip(models, expected, strict=True):
        assert all(
            torch.equal(parameter.grad, gradient)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True)
        )
    assert [len(place.inner) for place in places()] == [0, 0]


def test_models_with_budgets_of_their_own_do_not_nest() -> None:
    torch.manual_seed(0)
    small, large = nn.Linear(16, 16), nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])
    first, second = headroom.compile(small, "1x"), headroom.compile(large, "1x")
    x = torch.randn(8, 16)
    (first(x) + second(x)).sum().backward()
    assert [len(place.inner) for place in places()] == [0, 0]


def test_a_compiled_model_is_saved_and_copied() -> None:
    torch.manual_seed(0)
    model = headroom.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "1x")
    x = torch.randn(2, 4)
    model(x).sum().backward()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(model)):
        assert torch.equal(other(x), model(x))
        other(x).sum().backward()
        assert type(other) is type(model)


failure: dict[str, BaseException] = {}  # The error to raise in forward or backward.


@torch.library.custom_op("headroom_promises::fails", mutates_args=())
def fails(x: torch.Tensor, where: str) -> torch.Tensor:
    if where in failure:
        raise failure[where]
    return x.clone()


fails.register_fake(lambda x, where: torch.empty_like(x))
fails.register_autograd(lambda ctx, gradient: (fails(gradient, "backward"), None))


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), LookupError("no such thing"), torch.OutOfMemoryError("tried to allocate 2 MiB")]
)
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_errors_of_operators_keep_their_types(error: BaseException, where: str) -> None:
    layer = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    run = headroom.compile(lambda x: fails(layer(x), "forward").sum(), "1x")
    run(x).backward()
    expected = layer.weight.grad.clone()
    gc.collect()
    before = headroom.current_bytes()
    for _ in range(2):
        failure[where] = error
        try:
            with pytest.raises(type(error)) as caught:
                run(x).backward()
        finally:
            failure.clear()
        assert caught.value is error
        assert "headroom_promises::fails on [2, 4]" in error.__notes__[-1]
        assert where == "backward" or "test_promises_around.py:" in error.__notes__[-1]
        error.__traceback__ = None
        del caught
        gc.collect()
        assert headroom.current_bytes() == before
    layer.zero_grad()
    run(x).backward()
    assert torch.equal(layer.weight.grad, expected)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.exp().t(), lambda x: x.tanh().view(-1), lambda x: x.sigmoid()[2:], lambda x: (x.exp().t(), x.sum())],
    ids=["transposed", "flat", "sliced", "beside another"],
)
def test_a_result_that_is_a_view_of_what_backward_reads_must_not_change(function: Function) -> None:
    """AOTAutograd returns such a view with a separate version counter."""

    def change_and_differentiate(run: Function) -> None:
        results = run(torch.ones(8, 16, requires_grad=True))
        first = results[0] if isinstance(results, tuple) else results
        with torch.no_grad():
            first.mul_(2)
        first.sum().backward()

    for run in (function, headroom.compile(function, "1x")):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            change_and_differentiate(run)


@pytest.mark.parametrize("function", [lambda x: x.sin().t(), lambda x: x.exp().clone().t()], ids=["not read", "a copy"])
def test_a_result_that_backward_does_not_read_may_change(function: Function) -> None:
    x = torch.ones(8, 16, requires_grad=True)
    gradients = []
    for run in (function, headroom.compile(function, "1x")):
        result = run(x)
        with torch.no_grad():
            result.mul_(2)
        gradients.append(torch.autograd.grad(result.sum(), x)[0])
    assert torch.equal(*gradients)
