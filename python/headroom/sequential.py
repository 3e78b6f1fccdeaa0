"""Trains an nn.Sequential inside a budget without capturing it: the executor of modules runs each stage as it is."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Unpack
from weakref import WeakKeyDictionary

import torch
from torch import nn

from headroom import _C
from headroom.budget import arena, place
from headroom.budget.errors import BudgetError, too_small
from headroom.budget.flight import flights_on
from headroom.budget.meter import meter_of
from headroom.budget.place import Patience, Place, Room
from headroom.graph.step_graph import Rest
from headroom.graph.unsupported import Unsupported
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


class _Stages:
    """The stages for one kind of input, as one of the steps that share a budget (place.Step)."""

    assumed_rest = Rest()
    patience = Patience(free_share=0.02)
    is_tried = True
    shares_together = False

    def __init__(self, model: nn.Sequential, settings: Settings, device: torch.device) -> None:
        self.model = model
        self.settings = settings
        self.device = device
        self.chosen: WeakKeyDictionary[Place, _Chosen] = WeakKeyDictionary()
        self.measured: _C.MeasuredStages | None = None  # None: not called yet.
        self.output_bytes = 0
        self.has_arena = arena.uses_arena(settings, device)
        self.arena_excess_bytes = 0  # Largest excess of a recorded arena over the prediction without it.

    def run(self, x: torch.Tensor) -> torch.Tensor:
        device = flights_on(self.device)
        with device.forward(self, [x]) as flight:
            result = flight.chosen.plan.run(x)
            self.output_bytes = _C.storage_bytes([result])
            if result.grad_fn is not None:
                device.follow(flight, result.grad_fn)
        return result

    def smallest_bytes(self, rest: Rest) -> int:
        return self._smallest_bytes + self.arena_excess_bytes + self._extra_bytes(rest)

    def store_all_bytes(self, rest: Rest) -> int:
        return self._store_all_bytes() + self.arena_excess_bytes + self._extra_bytes(rest)

    def held_bytes(self, _: Rest) -> int:
        return self._store_all_bytes() + self.arena_excess_bytes

    def added_bytes(self, chosen: _Chosen, rest: Rest) -> int:
        planned = chosen.stages_bytes + self._extra_bytes(rest)
        if chosen.memory is None:
            return planned
        added = arena.peak_bytes(chosen.memory, rest, self.output_bytes)
        self.arena_excess_bytes = max(self.arena_excess_bytes, added - planned)
        return added

    def halves_bytes(self, chosen: _Chosen, rest: Rest) -> tuple[int, int] | None:
        if chosen.memory is not None:
            if chosen.arena.statistics().bad_in_row > 0:
                return None
            return arena.halves_bytes(chosen.memory, rest, self.output_bytes)
        return chosen.stages_bytes, chosen.stages_bytes + rest.left_bytes

    def choose(self, room: Room, arguments: Sequence[Any]) -> _Chosen:
        is_first = self.measured is None
        if is_first:
            self._measure(arguments[0])
        try:
            chosen = self._choose(room, tries=is_first and self.device.type == "cuda", has_arena=self.has_arena)
        except BudgetError as error:
            if self.arena_excess_bytes == 0:
                raise
            chosen = self._choose(room, tries=False, has_arena=False)
            arena.warn_of_too_large(error.smallest_budget_bytes, room.limit_bytes)
        self.measured.forget_sample()
        return chosen

    def choose_smallest(self, room: Room, _: Sequence[Any]) -> _Chosen:
        limit = room.before_bytes + room.excess.add(self.smallest_bytes(room.rest))
        return self._choose(room._replace(limit_bytes=limit), tries=False, has_arena=self.has_arena)

    def planned(self, *_: object) -> None:
        """Returns None: on_plan() is not told of stages."""

    def _measure(self, x: torch.Tensor) -> None:
        autocast = _Autocast.now(x.device)
        groups = _groups(self.model, x)
        self.measured = _C.measure_stages(
            type(self.model).__name__,
            [_stage_of(group, autocast) for group in groups],
            x.detach().requires_grad_(x.requires_grad),
        )

    def _choose(self, room: Room, *, tries: bool, has_arena: bool) -> _Chosen:
        measured = self.measured
        extra = later = 0  # Bytes in use beside the step, above those when it was measured.
        budget = self._own_budget_bytes()
        if room.limit_bytes is not None:
            extra = self._extra_bytes(room.rest)
            later = meter_of(self.device).current_bytes() - measured.before_bytes + extra
            budget = room.before_bytes + room.planned_bytes()
        if budget is not None and has_arena:
            budget -= self.arena_excess_bytes
        plan = measured.plan(budget, self.settings.planner, later, tries)
        if isinstance(plan, int):
            resident = measured.graph.resident_bytes()
            outside = measured.before_bytes + later - extra - resident
            least = plan - outside - resident
            raise too_small(
                self.settings,
                measured.problem,
                measured.graph,
                plan - outside,
                outside,
                rest_bytes=extra,
                excess_bytes=room.excess.name(least) - least,
            )
        stages_bytes = plan.predicted_peak_bytes - measured.before_bytes - later
        is_smaller = stages_bytes < self._store_all_bytes()
        if has_arena:
            plan.use_arena(self.device)
        added = stages_bytes + extra + (self.arena_excess_bytes if has_arena else 0)
        return _Chosen(plan, stages_bytes, is_smaller, rest=room.rest, added_bytes=added, arena=plan.arena)

    @functools.cached_property
    def _smallest_bytes(self) -> int:
        smallest = self.measured.plan(0, self.settings.planner, 0, False)  # 0: the planner does not compute it.
        return smallest - self.measured.before_bytes if smallest > 0 else self._store_all_bytes()

    def _own_budget_bytes(self) -> int | None:
        """Returns the limit that a share stands for, in the terms of the measurement."""
        before, budget = self.measured.before_bytes, self.settings.budget
        return before + _C.parse_budget(budget, self._store_all_bytes()) if isinstance(budget, str) else None

    def _store_all_bytes(self) -> int:
        return self.measured.store_all_peak_bytes - self.measured.before_bytes

    def _extra_bytes(self, rest: Rest) -> int:
        """Returns the bytes of the rest of the step that are not in the measurement, which counts them all the time."""
        return max(rest.peak_bytes - self.output_bytes, rest.left_bytes, 0)


@dataclasses.dataclass(eq=False)
class _Chosen(place.Chosen):
    plan: _C.PlannedStages
    stages_bytes: int  # Predicted bytes that the stages add.
    is_smaller: bool  # Whether they take less memory than without reruns.

    def recomputes(self) -> bool:
        return self.is_smaller


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
        self._plans: dict[tuple[Any, ...], _Stages] = {}
        self._register_state_dict_hook(_remove_prefix)
        self.register_load_state_dict_pre_hook(_add_prefix)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without plans, which a copy makes for itself."""
        return {**self.__dict__, "_plans": {}}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.Tensor):
            raise Unsupported(f"headroom.Sequential takes one tensor, found {type(x).__name__}")
        is_trained = x.requires_grad or any(parameter.requires_grad for parameter in self.parameters())
        if not torch.is_grad_enabled() or not is_trained:
            return self.model(x)
        key = self._kind_of(x)
        stages = self._plans.get(key)
        if stages is None:
            self._forget_other_tensors(key)
            stages = self._plans.setdefault(key, _Stages(self.model, self._settings, x.device))
        return stages.run(x)

    def predicted_peak(self, x: torch.Tensor) -> int:
        """Returns the device's predicted peak in a step on an input that has been trained on."""
        chosen = self._plans[self._kind_of(x)].chosen
        return max(one.plan.predicted_peak_bytes for one in chosen.values())

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
        for other in [other for other in list(self._plans) if other[0] != key[0]]:
            self._plans.pop(other, None)


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
