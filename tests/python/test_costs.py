"""Measured costs, and those on disk."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")

from headroom.budget.meter import meter_of  # noqa: E402
from headroom.costs import elementwise, op_costs  # noqa: E402
from headroom.graph import operators  # noqa: E402
from headroom.graph.capture import Call  # noqa: E402
from headroom.planning import Planned  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import headroom  # noqa: E402

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("alone")


def test_what_others_saved_meanwhile_stays_and_holds() -> None:
    cache, other = op_costs.CostCache(CPU), op_costs.CostCache(CPU)
    costs_of = {time_ns: op_costs.Cost(time_ns, 0) for time_ns in range(1, 5)}
    cache.costs |= {"first": costs_of[1], "both": costs_of[2]}
    other.costs |= {"second": costs_of[3], "both": costs_of[4]}
    cache.is_changed = other.is_changed = True
    cache.save()
    other.save()
    expected = {"first": costs_of[1], "second": costs_of[3], "both": costs_of[2]}
    assert other.costs == op_costs.CostCache(CPU).costs == expected


@pytest.mark.parametrize("time_ns", [op_costs.move_time_ns, op_costs.draw_time_ns])
def test_what_moving_memory_and_drawing_take_is_measured_once(
    time_ns: Callable[[int, op_costs.CostCache, torch.device, int], int],
) -> None:
    state = torch.get_rng_state()
    first = time_ns(1 << 20, op_costs.CostCache(CPU), CPU, 1 << 20)
    assert first > 0
    reread = op_costs.CostCache(CPU)
    assert len(reread.costs) == 1
    assert time_ns(1 << 20, reread, CPU, 1 << 20) == first
    assert torch.equal(torch.get_rng_state(), state)


def test_what_a_library_takes_to_set_up_is_no_cost_of_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    # Operators of other namespaces are not measured.
    monkeypatch.setattr(operators, "_PURE_NAMESPACES", {"aten", "headroom_tests"})
    calls: list[int] = []

    @torch.library.custom_op("headroom_tests::sets_up", mutates_args=())
    def sets_up(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        time.sleep(0.3 if len(calls) == 1 else 0.001)
        return x * 2

    sets_up.register_fake(torch.empty_like)
    sets_up.register_autograd(lambda _, gradient: gradient * 2)
    batch = torch.randn(8, requires_grad=True)
    plan = headroom.plan(lambda: sets_up(batch).sum(), cache=False)
    assert 1e6 <= plan.plain_time_ns < 1e8


def test_costs_on_disk_are_those_of_the_arithmetic_that_is_chosen() -> None:
    op_costs.cache_of.cache_clear()
    layer = torch.nn.Linear(4, 4)
    batch = torch.randn(2, 4)
    headroom.plan(layer, batch, cache=False)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        headroom.plan(layer, batch)
    assert op_costs.CostCache(CPU).costs == {}
    headroom.plan(layer, batch)
    usual = set(op_costs.CostCache(CPU).costs)
    headroom.plan(layer, batch)
    assert set(op_costs.CostCache(CPU).costs) == usual
    torch.use_deterministic_algorithms(True)
    try:
        headroom.plan(layer, batch)
    finally:
        torch.use_deterministic_algorithms(False)
    with_both = set(op_costs.CostCache(CPU).costs)
    assert len(with_both) == 2 * len(usual) > 0
    assert usual < with_both


def test_layouts_are_kept_on_disk() -> None:
    cache = op_costs.CostCache(CPU)
    cost = op_costs.Cost(5, 6, [None, op_costs.Layout([1, 2], 64, "torch.float32")])
    cache.costs["one"] = cost
    cache.is_changed = True
    cache.save()
    assert op_costs.CostCache(CPU).costs == {"one": cost}


def test_a_failed_measurement_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> op_costs.Cost:
        raise torch.OutOfMemoryError("tried to allocate 2 MiB")

    op_costs.cache_of.cache_clear()
    layer, batch = torch.nn.Linear(4, 4), torch.randn(2, 4)
    with monkeypatch.context() as changed:
        changed.setattr(op_costs, "_measure", fail)
        estimated = headroom.plan(layer, batch)
    assert estimated.plain_time_ns > 0
    assert op_costs.CostCache(CPU).costs == {}
    headroom.plan(layer, batch)
    assert len(op_costs.CostCache(CPU).costs) > 0


def test_costs_follow_the_number_of_threads() -> None:
    op_costs.cache_of.cache_clear()
    layer, batch = torch.nn.Linear(4, 4), torch.randn(2, 4)
    headroom.plan(layer, batch)
    one_thread = op_costs.cache_file(CPU)
    assert one_thread.exists()
    torch.set_num_threads(2)
    try:
        assert not op_costs.cache_file(CPU).exists()
        headroom.plan(layer, batch)
        assert op_costs.cache_file(CPU).exists()
        assert op_costs.cache_file(CPU) != one_thread
    finally:
        torch.set_num_threads(1)


def test_processes_that_save_at_once_lose_nothing() -> None:
    script = (
        "import sys, torch, headroom; from headroom.costs import op_costs; torch.set_num_threads(1)\n"
        "for i in range(20):\n"
        "    cache = op_costs.CostCache(torch.device('cpu'))\n"
        "    cache.costs = {f'{sys.argv[1]} {i}': op_costs.Cost(i, 0)}\n"
        "    cache.is_changed = True; cache.save()\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(name)]) for name in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len(op_costs.CostCache(CPU).costs) == 60


def test_indices_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[torch.Tensor] = []
    real = op_costs._real

    def noting(value: torch.Tensor, call: Any) -> torch.Tensor:
        arguments.append(real(value, call))
        return arguments[-1]

    monkeypatch.setattr(op_costs, "_real", noting)
    table, indices = torch.nn.Embedding(50, 4), torch.randint(0, 50, (200,))
    headroom.plan(lambda: table(indices).square().sum(), cache=False)
    drawn = [argument for argument in arguments if argument.dtype == torch.int64 and argument.numel() == 200]
    assert len(drawn) == 4  # Two each of the embedding and of its backward, for their memory and for their time.
    assert all(argument.unique().numel() > 40 and argument.max() < 50 for argument in drawn)


def test_real_layouts_of_gradients_are_counted() -> None:
    """Tracing assumes that gradients of weights are contiguous. With channels-last images they are not."""
    layer = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False)
    images = torch.randn(1, 64, 4, 4).to(memory_format=torch.channels_last)
    plan = headroom.plan(lambda: layer(images).square().sum(), cache=False)
    meter = headroom.Meter(CPU)
    run = headroom.compile(lambda: layer(images).square().sum(), plan.smallest_budget, cache=False)
    for _ in range(2):
        layer.zero_grad(set_to_none=True)
        meter.reset_peak()
        run().backward()
        assert meter.peak_bytes() <= plan.smallest_budget


def deep_model() -> torch.nn.Sequential:
    return torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(16, 16), torch.nn.Tanh())])


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Counts an entry for each call of a function of op_costs.py. Tensors of measurements are not kept."""
    calls: list[str] = []
    function = getattr(op_costs, name)

    def count(*args: Any) -> Any:
        calls.append(name)
        return function(*args)

    monkeypatch.setattr(op_costs, name, count)
    return calls


@pytest.mark.parametrize(
    ("budget", "is_measured", "is_timed"),
    [(None, False, False), ("1x", True, False), (10**9, True, False), ("0.8x", True, True)],
)
def test_times_are_measured_only_where_a_plan_must_choose(
    budget: int | str | None, is_measured: bool, is_timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, timed = counted(monkeypatch, "_measure"), counted(monkeypatch, "_time_ns")
    model = deep_model()
    batch = torch.randn(64, 16)
    run = headroom.compile(lambda: model(batch).square().mean(), budget, cache=False)
    op_costs.cache_of.cache_clear()
    for _ in range(3):
        run().backward()
    assert bool(measured) == is_measured
    assert bool(timed) == is_timed


def test_plans_that_are_told_have_times() -> None:
    model, batch, plans = deep_model(), torch.randn(64, 16), []
    headroom.compile(lambda: model(batch).sum(), cache=False, on_plan=plans.append)().backward()
    assert plans[0].time_ns == plans[0].plain_time_ns > 0


def test_times_are_measured_when_memory_gets_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = counted(monkeypatch, "_time_ns")
    op_costs.cache_of.cache_clear()
    model, batch = deep_model(), torch.randn(64, 16)
    meter = headroom.Meter(CPU)
    plan = headroom.plan(lambda: model(batch).square().mean(), cache=False)
    budget, spare_bytes = plan.plain_peak + (20 << 10), plan.plain_peak - plan.smallest_budget
    others: list[torch.Tensor] = []
    timed.clear()
    op_costs.cache_of.cache_clear()
    run = headroom.compile(lambda: model(batch).square().mean(), budget, cache=False)
    for step in range(4):
        if step == 2:  # From here on, a third of the memory that storing everything adds to the smallest plan is left.
            others.append(torch.empty(budget - plan.plain_peak + spare_bytes * 2 // 3, dtype=torch.uint8))
        model.zero_grad(set_to_none=True)
        meter.reset_peak()
        run().backward()
        assert meter.peak_bytes() <= budget or step == 0
        assert bool(timed) == (step >= 2)


def test_timing_takes_no_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(64, 64, requires_grad=True)
    step = headroom.plan(lambda: (x @ x).tanh().sum(), cache=False)._step
    cache = op_costs.CostCache(CPU, persistent=False)
    op_costs.fill_memory(step.captured, cache, meter_of(CPU))
    timed = counted(monkeypatch, "_time_ns")
    op_costs.fill_times(step.captured, cache, 1 << 14)  # of one tensor
    assert len(timed) == 0
    assert all(cost.time_ns is None for cost in cache.costs.values())
    op_costs.fill_times(step.captured, cache, 1 << 17)
    assert len(timed) > 0


def call_of(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Call:
    """Returns the last operator that a function calls."""
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    return Call([node for node in graph.nodes if node.op == "call_function"][-1], [], [])


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(memory_format=torch.channels_last)


ROWS, IMAGES = torch.randn(64, 48), images(2, 8, 6, 6)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (torch.tanh, [ROWS]),
        (torch.add, [ROWS, ROWS]),
        (torch.add, [ROWS, torch.randn(48)]),
        (torch.mul, [torch.randn(64, 1), ROWS]),
        (torch.mul, [ROWS, torch.tensor(2.0)]),
        (torch.tanh, [IMAGES]),
        (torch.add, [IMAGES, images(2, 8, 6, 6)]),
        (torch.clone, [IMAGES]),
        (torch.ops.aten.gelu_backward.default, [ROWS, ROWS]),
        (torch.ops.aten.threshold_backward.default, [ROWS, ROWS, 0]),
        (lambda x: x.to(torch.bfloat16), [ROWS]),
    ],
)
def test_memory_of_elementwise_calls_is_known(function: Callable[..., torch.Tensor], inputs: list[Any]) -> None:
    call = call_of(
        lambda *tensors: function(*tensors, *inputs[len(tensors) :]),
        *[tensor for tensor in inputs if isinstance(tensor, torch.Tensor)],
    )
    assert elementwise.has_known_memory(call)
    assert op_costs._measure(call, {}, CPU, headroom.Meter(CPU)) == op_costs.Cost(None, 0)
    arguments, options = elementwise.sample_arguments(call, {})
    assert call.node.target(*arguments, **options).numel() == elementwise.sample_size(call) == 4096


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (torch.sum, [ROWS]),
        (torch.tanh, [ROWS.t()[:, ::2]]),  # The result has other strides.
        (torch.add, [IMAGES, IMAGES.contiguous()]),
        (torch.mul, [ROWS, ROWS > 0]),  # Converts the second input.
        (lambda x: x * 0.3, [ROWS]),  # Makes the number a tensor.
        (lambda x: 2**x, [ROWS]),  # Makes the number a tensor, too.
        (torch.bernoulli, [ROWS.abs()]),
        (lambda x: x.t().clone(memory_format=torch.contiguous_format), [ROWS]),
    ],
)
def test_memory_of_other_calls_is_measured(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> None:
    assert not elementwise.has_known_memory(call_of(function, *inputs))


def test_times_of_elementwise_calls_are_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times 8^5 = 32768 of 300 x 200 numbers: 2000 ns to start and 98304 for the numbers, 3 ns for each."""
    monkeypatch.setattr(op_costs, "_time_ns", lambda *_: 2000 + 98304)
    cache = op_costs.CostCache(CPU, persistent=False)
    for shape in [(300, 200), (250, 240)]:
        call = call_of(torch.tanh, torch.empty(shape))
        assert op_costs._elementwise_ns(call, {}, cache, CPU) == 2000 + 3 * 60_000
    assert len(cache.costs) == 1
    op_costs._elementwise_ns(call_of(torch.exp, torch.empty(300, 200)), {}, cache, CPU)
    op_costs._elementwise_ns(call_of(torch.tanh, torch.empty(300, 200, dtype=torch.float64)), {}, cache, CPU)
    op_costs._elementwise_ns(call_of(torch.tanh, torch.empty(3000, 200)), {}, cache, CPU)
    assert len(cache.costs) == 4


def test_logs_say_where_the_time_of_a_first_call_goes(caplog: pytest.LogCaptureFixture) -> None:
    op_costs.cache_of.cache_clear()
    model, batch = deep_model(), torch.randn(64, 16)
    with caplog.at_level(logging.INFO, "headroom"):
        headroom.compile(lambda: model(batch).square().mean(), "0.8x", cache=False)().backward()
    parts = ["capture of", "memory of", "compiling by", "times of", "planning of"]
    assert [next(part for part in parts if record.message.startswith(part)) for record in caplog.records] == parts
    assert all(" ms" in record.message for record in caplog.records)


def assert_peak_is_predicted(
    loss: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, norm: torch.nn.Module
) -> None:
    """Trains two steps, and compares the peak of the second with its prediction."""
    plans: list[Planned] = []
    run = headroom.compile(loss, "1x", cache=False, on_plan=plans.append)
    run(x).backward()
    x.grad = norm.weight.grad = norm.bias.grad = None
    gc.collect()
    meter = headroom.Meter(CPU)
    before = meter.current_bytes()
    meter.reset_peak()
    run(x).backward()
    assert plans[0].predicted_bytes - 64 <= meter.peak_bytes() - before <= plans[0].predicted_bytes


def test_results_of_another_type_than_tracing_knows_are_counted_as_they_are() -> None:
    """On the CPU, statistics of a layer norm with bf16 inputs and fp32 weights are fp32, but bf16 when traced."""
    norm = torch.nn.LayerNorm(8)
    x = torch.randn(512, 8, dtype=torch.bfloat16, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.native_layer_norm(x, [8], norm.weight, norm.bias, 1e-5)[0].sum()

    assert_peak_is_predicted(loss, x, norm)


def test_types_are_known_through_views_and_elementwise_calls() -> None:
    """The same for a group norm of rows, whose statistics backward reads detached, and for a sum of statistics."""
    norm = torch.nn.GroupNorm(4, 32)
    x = torch.randn(64, 32, dtype=torch.bfloat16, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        y, mean, rstd = torch.native_group_norm(x, norm.weight, norm.bias, 64, 32, 1, 4, 1e-5)
        statistics = mean.detach().neg().unsqueeze(2) * rstd.detach().neg().unsqueeze(1)
        return y.float().sum() + statistics.exp().sum().float()

    assert_peak_is_predicted(loss, x, norm)


def test_results_that_nobody_asked_for_are_counted_while_the_kernel_runs() -> None:
    """On the CPU, backward of a convolution with a frozen weight computes the gradient of the weight anyway."""
    layer = torch.nn.Conv2d(4, 4, 3, padding=1)
    layer.weight.requires_grad_(False)
    x = torch.randn(2, 4, 8, 8, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return layer(x).square().sum()

    assert_peak_is_predicted(loss, x, layer)
