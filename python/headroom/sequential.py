"""Trains an nn.Sequential inside a budget without capturing it: the executor of modules runs each stage as it is."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import torch
from torch import nn

from headroom import _C
from headroom.budget.meter import meter_of
from headroom.graph.unsupported import Unsupported
from headroom.planning import too_small
from headroom.settings import Options, Settings


@dataclasses.dataclass
class _Autocast:
    """The state of autocast in a forward, for reruns of stages outside of it."""

    device_type: str
    is_enabled: bool
    dtype: torch.dtype

    @staticmethod
    def now(device: torch.device) -> _Autocast:
        is_enabled = torch.is_autocast_enabled(device.type)
        return _Autocast(device.type, is_enabled, torch.get_autocast_dtype(device.type))

    def again(self) -> contextlib.AbstractContextManager[Any]:
        # The cache of cast weights is disabled, because it would outlive the stage.
        return torch.autocast(self.device_type, self.dtype, self.is_enabled, cache_enabled=False)


class _Attributes:
    """Tensors that modules hold as attributes, including buffers. A stage that replaces one cannot be rerun."""

    def __init__(self, modules: nn.Module) -> None:
        self.tensors: list[tuple[nn.Module, str, torch.Tensor]] = []
        for module in modules.modules():
            for name, value in (*vars(module).items(), *module._buffers.items()):
                if isinstance(value, torch.Tensor):
                    self.tensors.append((module, name, value))

    def replaced(self) -> list[tuple[nn.Module, str, torch.Tensor]]:
        """Returns the entries whose attribute is another tensor now."""
        return [entry for entry in self.tensors if getattr(entry[0], entry[1], None) is not entry[2]]

    def restore(self) -> None:
        for module, name, tensor in self.replaced():
            setattr(module, name, tensor)


def _replaces(stage: str, tensor: str) -> str:
    return f"stage {stage} replaces its tensor {tensor} and could not run again: change it in place, as with copy_()"


def _draws_of_other_libraries() -> list[Any]:
    """Returns the random states of other libraries than PyTorch, which reruns do not restore."""
    numpy = sys.modules.get("numpy")
    return [random.getstate(), repr(numpy.random.get_state(legacy=False)) if numpy else None]


def _run_to_group(
    model: nn.Sequential, sample: torch.Tensor, memory: _C.KeptMemory
) -> list[list[tuple[str, nn.Module]]]:
    groups: list[list[tuple[str, nn.Module]]] = [[]]
    value: Any = sample
    for name, stage in model.named_children():
        attributes, draws = _Attributes(stage), _draws_of_other_libraries()
        try:
            value = stage(value)
            replaced = [name for _, name, tensor in attributes.replaced() if memory.has_read(tensor)]
        finally:
            attributes.restore()
        if replaced:
            raise Unsupported(_replaces(name, replaced[0]))
        if _draws_of_other_libraries() != draws:
            raise Unsupported(f"stage {name} draws random numbers that are not PyTorch's, and could not run again")
        groups[-1].append((name, stage))
        if isinstance(value, torch.Tensor):
            groups.append([])
    if not isinstance(value, torch.Tensor):
        raise Unsupported(f"the last stage must return one tensor, found {type(value).__name__}")
    return groups[:-1]


def _groups(model: nn.Sequential, sample: torch.Tensor) -> list[list[tuple[str, nn.Module]]]:
    """Joins stages into groups that each return one tensor, by running them. Model and sample stay unchanged."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = [sample.device] if sample.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices), _C.KeptMemory() as memory:
        try:
            return _run_to_group(model, sample, memory)
        finally:
            for buffer, value in buffers:  # Compiled kernels write buffers without being noticed.
                buffer.data.copy_(value)


@contextlib.contextmanager
def _modes(modes: Sequence[tuple[nn.Module, bool]]) -> Iterator[None]:
    """Returns a context with modules in the training modes of a plan, which may have changed before a rerun."""
    others = [(module, module.training) for module, training in modes if module.training != training]
    for module, training in others:
        module.training = not training
    try:
        yield
    finally:
        for module, training in others:
            module.training = training


def _stage_of(group: Sequence[tuple[str, nn.Module]], autocast: _Autocast) -> _C.Stage:
    modules = nn.ModuleList([stage for _, stage in group])
    name = " + ".join(name for name, _ in group)
    modes = [(module, module.training) for module in modules.modules() if module is not modules]
    buffers = [(module, name, buffer) for module, _ in modes for name, buffer in module._buffers.items()]

    def run(value: Any) -> Any:
        with autocast.again(), _modes(modes):
            for _, stage in group:
                value = stage(value)
        for module, buffer_name, buffer in buffers:
            if module._buffers.get(buffer_name) is not buffer:
                raise Unsupported(
                    f"stage {name} replaces its tensor {buffer_name}: change it in place, as with copy_()"
                )
        return value

    parameters = [parameter for parameter in modules.parameters() if parameter.requires_grad]
    return _C.Stage(name=name, run=run, parameters=parameters, buffers=list(modules.buffers()))


class _Planned:
    """The plan for one kind of input."""

    def __init__(self, model: nn.Sequential, sample: torch.Tensor, settings: Settings) -> None:
        self.settings = settings
        self.device = sample.device
        autocast = _Autocast.now(sample.device)
        groups = _groups(model, sample)
        self.stages = _C.measure_stages(
            type(model).__name__,
            [_stage_of(group, autocast) for group in groups],
            sample.detach().requires_grad_(sample.requires_grad),
        )
        self.later_bytes = 0  # Bytes in use beside the step, above those when it was measured.
        self.plan = self._make_plan(tries=sample.device.type == "cuda")
        self.stages.forget_sample()

    def _make_plan(self, *, tries: bool) -> _C.PlannedStages:
        budget = self._budget_bytes()
        plan = self.stages.plan(budget, self.settings.planner, self.later_bytes, tries)
        if isinstance(plan, int):
            graph = self.stages.graph
            outside = self.stages.before_bytes + self.later_bytes - graph.resident_bytes()
            raise too_small(self.settings, self.stages.problem, graph, plan - outside, outside)
        return plan

    def _budget_bytes(self) -> int | None:
        budget = self.settings.budget
        if budget is None:
            return None
        if isinstance(budget, str):
            before = self.stages.before_bytes
            return before + self.later_bytes + _C.parse_budget(budget, self.stages.store_all_peak_bytes - before)
        return budget - self.settings.kept_free_bytes()

    def expect(self, later_bytes: int) -> None:
        """Plans again if more memory is in use beside the step than before, and the plan no longer fits."""
        if later_bytes <= self.later_bytes:
            return
        peak = self.plan.predicted_peak_bytes + later_bytes - self.later_bytes
        self.later_bytes = later_bytes
        budget = self._budget_bytes()
        if budget is not None and peak > budget:
            self.plan = self._make_plan(tries=False)


# Measuring reads memory counters of the whole process, so only one plan is made at a time.
_planning = threading.Lock()

# Number of steps in which the work between forward and backward is measured.
_LEARNING_STEPS = 3


class Sequential(nn.Module):
    """``model``, an nn.Sequential, trained inside ``budget``; for stages that torch.compile cannot capture.

    It takes and returns one tensor; stages in between may pass on anything. Each kind of input (shape, type, device,
    training or not) is measured and planned at its first call. Budgets and options are those of headroom.compile(); a
    share is of what the stages themselves add, without a loss outside.
    """

    def __init__(self, model: nn.Sequential, budget: float | str | None = None, **options: Unpack[Options]) -> None:
        super().__init__()
        if not isinstance(model, nn.Sequential):
            raise TypeError(f"headroom.Sequential takes an nn.Sequential, found {type(model).__name__}")
        self.model = model
        self._settings = Settings(budget=budget, **options)
        self._plans: dict[tuple[Any, ...], _Planned] = {}
        self._rests: dict[tuple[Any, ...], _Rest] = {}
        self._register_state_dict_hook(_remove_prefix)
        self.register_load_state_dict_pre_hook(_add_prefix)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without plans, which a copy makes for itself."""
        return {**self.__dict__, "_plans": {}, "_rests": {}}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.Tensor):
            raise Unsupported(f"headroom.Sequential takes one tensor, found {type(x).__name__}")
        is_trained = x.requires_grad or any(parameter.requires_grad for parameter in self.parameters())
        if not torch.is_grad_enabled() or not is_trained:
            return self.model(x)
        key = self._kind_of(x)
        meter = meter_of(x.device)
        with _planning:
            if key not in self._plans:
                self._forget_other_tensors(key)
                self._plans[key] = _Planned(self.model, x, self._settings)
                self._rests[key] = _Rest()
            planned, rest = self._plans[key], self._rests[key]
            planned.expect(meter.current_bytes() - planned.stages.before_bytes + rest.extra_bytes)
            plan = planned.plan
        result = plan.run(x)
        rest.watch(result, meter)
        return result

    def predicted_peak(self, x: torch.Tensor) -> int:
        """Returns the device's predicted peak in a step on an input that has been trained on."""
        return self._plans[self._kind_of(x)].plan.predicted_peak_bytes

    def _kind_of(self, x: torch.Tensor) -> tuple[Any, ...]:
        autocast = _Autocast.now(x.device)
        modules = tuple((id(module), module.training) for module in self.model.modules())
        trained = tuple(parameter.requires_grad for parameter in self.parameters())
        # Plans hold their tensors, so no other tensor gets the same id. load_state_dict(assign=True), to() and
        # assignments replace tensors.
        tensors = tuple(id(tensor) for tensor in (*self.model.parameters(), *self.model.buffers()))
        layout = (tuple(x.shape), x.stride(), x.dtype, x.device, x.requires_grad)
        return (tensors, *layout, modules, trained, autocast.is_enabled, autocast.dtype)

    def _forget_other_tensors(self, key: tuple[Any, ...]) -> None:
        """Removes plans for parameters and buffers that the model no longer has."""
        for plans in (self._plans, self._rests):
            for other in [other for other in plans if other[0] != key[0]]:
                del plans[other]


def _remove_prefix(module: Sequential, state: dict[str, Any], prefix: str, _metadata: dict[str, Any]) -> None:
    """Renames the keys of the state to those of the model itself."""
    for key in [key for key in state if key.startswith(f"{prefix}model.")]:
        state[prefix + key.removeprefix(f"{prefix}model.")] = state.pop(key)


def _add_prefix(module: Sequential, state: dict[str, Any], prefix: str, *_rest: Any) -> None:
    """Accepts the state of the model itself."""
    stages = {name for name, _ in module.model.named_children()}
    for key in [key for key in state if key.startswith(prefix)]:
        name = key.removeprefix(prefix)
        if name.split(".")[0] in stages:
            state[f"{prefix}model.{name}"] = state.pop(key)


class _Rest:
    """Memory of the work between forward and backward, beyond the output's gradient."""

    def __init__(self) -> None:
        self.extra_bytes = 0
        self.watched_steps = 0

    def watch(self, output: torch.Tensor, meter: _C.Meter) -> None:
        if self.watched_steps == _LEARNING_STEPS:
            return
        self.watched_steps += 1
        meter.reset_peak()
        after_bytes = meter.current_bytes()

        def learn(gradient: torch.Tensor) -> None:
            gradient_bytes = _C.allocated_bytes(gradient.untyped_storage().nbytes(), gradient.device)
            self.extra_bytes = max(self.extra_bytes, meter.peak_bytes() - after_bytes - gradient_bytes)

        output.register_hook(learn)
