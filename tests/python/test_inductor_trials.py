"""kernels="inductor": trial steps before the first call keep to the budget as well."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from headroom.exec.inductor import kernels, trial  # noqa: E402
from inductor_steps import Net, batch, same_costs  # noqa: E402, F401
from test_inductor_budgets import CPU, inside, own_bytes  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone", "same_costs")


@pytest.mark.parametrize("room", [0.99, 0.95, 0.9])
def test_no_trial_is_over_the_budget(room: float) -> None:
    model, x = Net(), batch()
    loss = inside(model)
    own = own_bytes(loss)
    torch._dynamo.reset()
    budget = headroom.current_bytes() + int(room * own)
    run = headroom.compile(loss, budget, kernels="inductor")
    meter = headroom.Meter(CPU)
    for _ in range(2):
        run(x).backward()
        model.zero_grad()
    assert meter.peak_bytes() <= budget


def test_a_trial_is_stopped_before_a_buffer_is_over_its_limit() -> None:
    torch._dynamo.reset()
    codes = []
    compile_fx_inner = kernels.compile_fx_inner
    x = batch().requires_grad_()

    def keep_code(*arguments: object, **options: object) -> object:
        codes.append(compile_fx_inner(*arguments, **options))
        return codes[-1]

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        return kernels.compile_fx(gm, inputs, inner_compile=keep_code)

    def twice(x: torch.Tensor) -> torch.Tensor:
        return ((x @ x.T).sin() @ x).sum()

    compiled = torch.compile(twice, backend=backend)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        compiled(x).backward()
    assert codes
    arguments = trial.Arguments([x], set())
    whole = trial.try_step(compiled, arguments, CPU, codes, None)
    assert whole.is_complete
    assert trial.try_step(compiled, arguments, CPU, codes, whole.added_bytes) == whole
    before = headroom.current_bytes()
    meter = headroom.Meter(CPU)
    stopped = trial.try_step(compiled, arguments, CPU, codes, whole.held_bytes - 1)
    assert not stopped.is_complete
    assert stopped.added_bytes >= whole.held_bytes
    assert meter.peak_bytes() - before < whole.held_bytes
    assert trial.try_step(compiled, arguments, CPU, codes, None) == whole  # as before


def test_kernels_are_timed_in_the_memory_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer that Inductor overwrites before it times a kernel is no larger than what is free below the limit."""
    sizes = []
    monkeypatch.setattr(type(trial.benchmarker), "benchmark_gpu", lambda self: sizes.append(self.L2_cache_size))
    monkeypatch.setitem(vars(trial.benchmarker), "L2_cache_size", 1 << 20)
    monkeypatch.setattr(trial._C, "Meter", lambda _: meter)
    meter, before = headroom.Meter(CPU), headroom.current_bytes()
    for free in (4096, 2 << 20, -1):
        with trial._choosing_within(before + free, torch.device("cuda")):
            trial.benchmarker.benchmark_gpu()
    trial.benchmarker.benchmark_gpu()
    assert sizes == [4096, 1 << 20, trial._LEAST_FLUSHED_BYTES, 1 << 20]
