"""The public functions of headroom."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, Unpack

import torch
from torch import fx

from headroom import _C
from headroom._torch import (
    BackendCompilerFailed,
    CompileContext,
    OptimizedModule,
    dynamo_config,
    innermost_backend,
    pytree,
)
from headroom.budget.errors import BudgetError
from headroom.budget.excess import Excess
from headroom.budget.meter import meter_of
from headroom.entrance import NOTHING_CAPTURED, count_graph, watch_calls
from headroom.exec.eager import compile_graph
from headroom.graph.step_graph import Rest
from headroom.graph.tracing import drop_full_masks, forget_numbers
from headroom.graph.unsupported import Unsupported, check_inputs, module_of, source_of
from headroom.planning import Planned, Step
from headroom.settings import Options, Settings

__all__ = ["MemoryPlan", "compile", "max_batch", "plan"]


def backend(gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None) -> Any:
    """Compiles a graph for ``torch.compile(model, backend="headroom", options={"budget": "8GiB"})``."""
    return _compile_graph(gm, example_inputs, _settings_of(options))


# Settings by the id of the options dictionary that a user passed to torch.compile, which gives the same one to all
# graphs of a model; these share one budget. The dictionary is kept so that its id stays unique.
_settings: dict[int, tuple[dict[str, Any] | None, Settings]] = {}


def _settings_of(options: dict[str, Any] | None) -> Settings:
    unknown = sorted(set(options or {}) - set(Settings.__dataclass_fields__))
    if unknown:
        raise ValueError(f"no option {', '.join(unknown)}; there are {', '.join(Settings.__dataclass_fields__)}")
    settings = Settings(**(options or {}))
    _, kept = _settings.get(id(options), (None, None))
    if kept != settings:
        _settings[id(options)] = (options, settings)
    return _settings[id(options)][1]


def _compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], settings: Settings) -> Any:
    count_graph()
    _warn_of_recompile_limit()
    check_inputs(example_inputs)
    drop_full_masks(gm)
    forget_numbers(gm)
    if settings.kernels == "inductor":
        from headroom.exec.inductor.kernels import Kernels

        return Kernels(gm, settings)
    return compile_graph(gm, example_inputs, settings)


class _Backend:
    """The backend of one compile(), whose graphs share one budget."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.is_used = False

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        self.is_used = True
        return _compile_graph(gm, example_inputs, self.settings)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "is_used": False}

    def check(self, result: object, *arguments: object) -> None:
        """Raises Unsupported if a call computed a differentiable result although nothing was captured."""
        if self.is_used:
            return
        argument_ids = {id(leaf) for leaf in pytree.tree_leaves(arguments)}
        for leaf in pytree.tree_leaves(result):
            if not isinstance(leaf, torch.Tensor) or leaf.grad_fn is None:
                continue
            is_passed_on = id(leaf) in argument_ids and leaf._version == 0
            if not is_passed_on:
                raise Unsupported(NOTHING_CAPTURED)


watch_calls(backend, _Backend)


@contextlib.contextmanager
def _unwrapped_errors() -> Iterator[None]:
    """Returns a context that raises Unsupported without Dynamo's error around it."""
    try:
        yield
    except BackendCompilerFailed as error:
        if isinstance(error.inner_exception, Unsupported):
            raise error.inner_exception from None
        raise


class CompiledModule(OptimizedModule):
    """The result of compile() for a module: torch.compile's, with a check that something was captured."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _unwrapped_errors():
            result = super().__call__(*args, **kwargs)
        innermost_backend(self.dynamo_ctx.callback).compiler_fn.check(result, args, kwargs)
        return result


def _warn_of_recompile_limit() -> None:
    compile_id = CompileContext.current_compile_id()
    limit = dynamo_config.recompile_limit
    if compile_id is not None and (compile_id.frame_compile_id or 0) + 1 == limit:
        warnings.warn(
            f"headroom: {limit} graphs of one function, each planned on its own; one more is an error. Pad inputs to "
            "fewer shapes, or raise torch._dynamo.config.recompile_limit",
            stacklevel=2,
        )


Model = TypeVar("Model", bound=Callable[..., Any])


def compile(  # noqa: A001
    model: Model,
    budget: float | str | None = None,
    *,
    planner: str = "auto",
    kernels: str = "eager",
    reserve: float | str = 0,
    cache: bool = True,
    on_plan: Callable[[Planned], None] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    keep_order: bool = False,
    arena: bool = False,
) -> Model:
    """Compiles a module or a function so that it trains inside ``budget``.

    budget
        Bytes (``8_000_000_000``), a size (``"8GB"``, ``"7.5GiB"``) or a share of what plain training adds (``"0.5x"``,
        ``"50%"``). Bytes limit the device's whole peak in a step, as torch reports it, including weights, gradients
        and all other memory in use. None: nothing is recomputed.
    planner
        The planner that chooses what is recomputed: one of ``headroom planners``.
    kernels
        ``"eager"``: PyTorch's own kernels, with the bits of plain training; ``"inductor"``: those of torch.compile.
    reserve
        Bytes of the budget to leave free, for instance for an optimizer's state that is allocated later.
    cache
        Whether measured times of operators are kept on disk for later processes.
    on_plan
        A function that is called with each plan before it runs.
    optimizer
        The optimizer that will train the model. A budget in bytes then leaves room for its state from the first step
        on, in which the state does not exist yet.
    keep_order
        Whether operators run in the order of plain training, but for those that run again. Otherwise plans may move
        operators where that needs less memory. Random numbers, effects and collectives keep their order anyway.
    arena
        Whether a step's memory lies in one block, so that fragmentation cannot exceed the budget. So far on the CPU.

    A budget that is too small raises BudgetError in the first call, with the smallest feasible one.
    """
    backend = _Backend(Settings(budget, planner, kernels, reserve, cache, on_plan, optimizer, keep_order, arena))
    compiled = torch.compile(model, backend=backend, dynamic=False)
    if isinstance(compiled, OptimizedModule):
        compiled.__class__ = CompiledModule
        return compiled

    @functools.wraps(compiled)
    def checked(*args: Any, **kwargs: Any) -> Any:
        with _unwrapped_errors():
            result = compiled(*args, **kwargs)
        backend.check(result, args, kwargs)
        return result

    return checked


@dataclass
class MemoryPlan:
    """A plan of one step of a model. Bytes are of the whole device.

    What `status` and `lower_bound_ns` prove holds among schedules that keep the base order of first runs.
    """

    status: str
    planner: str
    budget: int | None
    before: int
    peak: int
    time_ns: int
    plain_peak: int
    plain_time_ns: int
    lower_bound_ns: int
    smallest_budget: int
    _outside: int = field(repr=False)
    _step: Step = field(repr=False)
    _plan: _C.Plan = field(repr=False)

    def within(self, budget: float | str | None) -> MemoryPlan:
        """Returns a plan of the same step within another budget, with the same memory in use outside."""
        settings = dataclasses.replace(self._step.settings, budget=budget)
        return _device_plan(dataclasses.replace(self._step, settings=settings), self._outside)

    def curve(self, points: int = 20) -> list[tuple[int, int]]:
        """Returns the peaks in bytes and times in nanoseconds of the best plans, smallest peak first."""
        curve = _C.plan_curve(self._step.shape(Rest()).problem, self.planner, points, self._step.settings.keep_order)
        return [(point.peak_bytes + self._outside, point.time_ns) for point in curve]

    def save(self, graph: str, schedule: str) -> None:
        """Writes the graph and the schedule to files that the command ``headroom`` reads."""
        shape = self._step.shape(Rest())
        with open(graph, "w") as file:
            file.write(shape.graph.to_json())
        with open(schedule, "w") as file:
            file.write(self._plan.schedule.to_json(shape.graph))

    def page(self) -> str:
        """Returns the report page, one self-contained HTML file."""
        shape = self._step.shape(Rest())
        nodes = [self._step.captured.calls[call].node if call >= 0 else None for call in shape.call_of_op]
        budget = None if self.budget is None else self.budget - self._outside
        return _C.make_report(
            shape.problem,
            self._plan,
            self.planner,
            budget,
            self._step.settings.keep_order,
            ["" if node is None else module_of(node) for node in nodes],
            ["" if node is None else source_of(node) for node in nodes],
        )

    def report(self, path: str) -> None:
        """Writes the report page to a file: memory through the step, lifetimes, and what is live at the peak."""
        with open(path, "w") as file:
            file.write(self.page())

    def _repr_html_(self) -> str:
        """Returns the report page as an iframe, for notebooks."""
        page = html.escape(self.page(), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 45em; border: 0"></iframe>'

    def __str__(self) -> str:
        time = 100 * (self.time_ns / max(self.plain_time_ns, 1) - 1)
        return (
            f"{self.planner}: peak {_C.format_bytes(self.peak)} of {_C.format_bytes(self.plain_peak)}, "
            f"time {time:+.1f} %, {self.status}; smallest budget {_C.format_bytes(self.smallest_budget)}"
        )


class _Planned(Exception):
    """Ends a compilation early and carries its captured step."""

    def __init__(self, step: Step) -> None:
        super().__init__("planned")
        self.step = step


def _capture_step(model: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], settings: Settings) -> Step:
    if settings.kernels != "eager":
        raise ValueError("only steps with eager kernels are planned without training, since Inductor's must be tried")
    captured: list[Step] = []

    def stop(step: Step) -> None:
        captured.append(step)
        raise _Planned(step)

    def only_capture(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        drop_full_masks(gm)
        return compile_graph(gm, inputs, settings, on_step=stop)

    try:
        torch.compile(_unseen(model), backend=only_capture, dynamic=False)(*args, **kwargs)
    except BackendCompilerFailed as error:
        if not isinstance(error.inner_exception, _Planned):
            raise error.inner_exception from None
    if not captured:
        raise Unsupported(NOTHING_CAPTURED)
    return captured.pop()  # Dynamo keeps the backend alive, which would keep the step alive.


def _unseen(model: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that Dynamo has not seen, so that its state for the model's own code stays unchanged."""

    model = getattr(model, "_orig_mod", model)  # A module from torch.compile would keep its own backend.

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    call.__code__ = call.__code__.replace()
    return call


def _outside_now(step: Step) -> int:
    return meter_of(step.captured.device).current_bytes() - step.input_bytes


def _plan(step: Step, outside_bytes: int) -> tuple[int, _C.Plan]:
    """Returns the budget in the graph's terms, and the plan."""
    shape = step.shape(Rest())
    excess = Excess(step.captured.device)
    budget = step.settings.graph_budget(shape.graph, shape.store_all_bytes, outside_bytes)
    planned = budget
    if step.settings.limit_bytes() is not None:
        planned = step.input_bytes + excess.subtract(budget - step.input_bytes)
    return budget, step.plan(planned, Rest(), outside_bytes, excess)[0]


def _device_plan(step: Step, outside_bytes: int) -> MemoryPlan:
    step.costs.need_times()
    shape = step.shape(Rest())
    excess = Excess(step.captured.device)
    budget, plan_of_step = _plan(step, outside_bytes)
    return MemoryPlan(
        plan_of_step.status,
        step.settings.planner,
        None if step.settings.budget is None else budget + outside_bytes,
        step.input_bytes + outside_bytes,
        shape.peak_bytes(plan_of_step.schedule) + outside_bytes,
        plan_of_step.time_ns,
        shape.store_all_bytes + outside_bytes,
        plan_of_step.base_time_ns,
        plan_of_step.lower_bound_ns,
        outside_bytes + step.input_bytes + excess.add(shape.smallest_bytes() - step.input_bytes),
        outside_bytes,
        step,
        plan_of_step,
    )


def plan(
    model: Callable[..., Any], *args: Any, budget: float | str | None = None, **options: Unpack[Options]
) -> MemoryPlan:
    """Returns the plan of a step of ``model(*args)``, without training.

    If the model breaks into several graphs, the plan is of the first. Work outside the model between its forward and
    its backward, such as a loss, is not included.
    """
    settings = Settings(budget=budget, **options)
    step = _capture_step(model, args, {}, settings)
    return _device_plan(step, _outside_now(step))


def max_batch(
    model: Callable[..., Any],
    make_inputs: Callable[[int], Sequence[Any]],
    budget: float | str,
    *,
    most: int = 65536,
    **options: Unpack[Options],
) -> int:
    """Returns the largest batch, up to ``most``, whose step can be planned within ``budget`` bytes, or 0.

    ``make_inputs(n)`` returns the model's arguments for a batch of n. Nothing is trained, and no step is run.
    """
    settings = Settings(budget=budget, **options)
    if not isinstance(settings.budget, int):
        raise ValueError(f"max_batch takes a number of bytes, found {budget!r}")

    def fits(batch: int) -> bool:
        inputs = make_inputs(batch)
        step = _capture_step(model, inputs, {}, settings)
        try:
            _plan(step, _outside_now(step))
        except BudgetError:
            return False
        return True

    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def current_bytes(device: torch.device | str = "cpu") -> int:
    """Returns the bytes of the tensors on a device now; on the CPU, of those allocated since headroom was imported."""
    return meter_of(torch.device(device)).current_bytes()
