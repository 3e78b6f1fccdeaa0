"""An nn.Sequential trained inside a budget without being captured: each stage as it is, by the executor of modules."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from headroom import _C
from headroom.aot import Settings, meter_of, too_small
from headroom.capture import Unsupported


@dataclasses.dataclass
class _Autocast:
    """Autocast as it is around a forward: stages run again outside of it."""

    device_type: str
    is_enabled: bool
    dtype: torch.dtype

    @staticmethod
    def now(device: torch.device) -> _Autocast:
        is_enabled = torch.is_autocast_enabled(device.type)
        return _Autocast(device.type, is_enabled, torch.get_autocast_dtype(device.type))

    def again(self) -> contextlib.AbstractContextManager[Any]:
        # Without its cache of cast weights, which would outlive the stage.
        return torch.autocast(self.device_type, self.dtype, self.is_enabled, cache_enabled=False)


def _groups(model: nn.Sequential, sample: torch.Tensor) -> list[list[tuple[str, nn.Module]]]:
    """Stages joined so that each hands on one tensor, found by running them."""
    groups: list[list[tuple[str, nn.Module]]] = [[]]
    value: Any = sample
    buffers = {name: one.clone() for name, one in model.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[sample.device] if sample.device.type == "cuda" else []):
        for name, stage in model.named_children():
            value = stage(value)
            groups[-1].append((name, stage))
            if isinstance(value, torch.Tensor):
                groups.append([])
        for name, one in model.named_buffers():
            one.copy_(buffers[name])
    if not isinstance(value, torch.Tensor):
        raise Unsupported(f"the last stage must return one tensor, found {type(value).__name__}")
    return groups[:-1]


def _stage_of(
    group: Sequence[tuple[str, nn.Module]], autocast: _Autocast
) -> tuple[str, Callable[..., Any], list, list]:
    def run(value: Any) -> Any:
        with autocast.again():
            for _, stage in group:
                value = stage(value)
        return value

    modules = nn.ModuleList([stage for _, stage in group])
    parameters = [one for one in modules.parameters() if one.requires_grad]
    return " + ".join(name for name, _ in group), run, parameters, list(modules.buffers())


class _Planned:
    """The plan for one kind of input."""

    def __init__(self, model: nn.Sequential, sample: torch.Tensor, settings: Settings) -> None:
        self.settings = settings
        self.device = sample.device
        autocast = _Autocast.now(sample.device)
        groups = _groups(model, sample)
        self.stages = _C.measure_stages(
            type(model).__name__,
            [_stage_of(one, autocast) for one in groups],
            sample.detach().requires_grad_(sample.requires_grad),
        )
        self.later_bytes = 0  # beside the step and what was there when it was measured
        self.plan = self._make_plan(tries=sample.device.type == "cuda")
        self.stages.forget_sample()

    def _make_plan(self, *, tries: bool) -> _C.PlannedStages:
        budget = self._budget_bytes()
        plan = self.stages.plan(budget, self.settings.planner, self.later_bytes, tries)
        if isinstance(plan, int):
            graph = self.stages.graph
            outside = self.stages.before_bytes + self.later_bytes - graph.resident_bytes() - int(self.settings.reserve)
            raise too_small(self.settings, self.stages.problem, graph, plan - outside, outside)
        return plan

    def _budget_bytes(self) -> int | None:
        budget = self.settings.budget
        if budget is None:
            return None
        if isinstance(budget, str):
            before = self.stages.before_bytes
            return before + self.later_bytes + _C.parse_budget(budget, self.stages.store_all_peak_bytes - before)
        return budget - int(self.settings.reserve)

    def expect(self, later_bytes: int) -> None:
        """Plans again if there is more beside the step than before and a plan no longer fits."""
        if later_bytes <= self.later_bytes:
            return
        peak = self.plan.predicted_peak_bytes + later_bytes - self.later_bytes
        self.later_bytes = later_bytes
        budget = self._budget_bytes()
        if budget is not None and peak > budget:
            self.plan = self._make_plan(tries=False)


# Steps in which what happens between forward and backward is measured.
_LEARNING_STEPS = 3


class Sequential(nn.Module):
    """``model``, an nn.Sequential, trained inside ``budget``; for stages that torch.compile cannot capture.

    Takes one tensor and gives one; stages in between may hand on anything. Each kind of input (shape, type, device,
    training or not) is measured and planned at its first call. Budgets and options are those of headroom.compile(); a
    share is of what the stages themselves add, without a loss outside.
    """

    def __init__(self, model: nn.Sequential, budget: int | str | None = None, **options: Any) -> None:
        super().__init__()
        if not isinstance(model, nn.Sequential):
            raise TypeError(f"headroom.Sequential takes an nn.Sequential, found {type(model).__name__}")
        self.model = model
        self._settings = Settings(budget=budget, **options)
        self._plans: dict[tuple[Any, ...], _Planned] = {}
        self._rests: dict[tuple[Any, ...], _Rest] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.Tensor):
            raise Unsupported(f"headroom.Sequential takes one tensor, found {type(x).__name__}")
        if not torch.is_grad_enabled() or not (x.requires_grad or any(one.requires_grad for one in self.parameters())):
            return self.model(x)
        key = self._kind_of(x)
        meter = meter_of(x.device)
        if key not in self._plans:
            self._plans[key] = _Planned(self.model, x, self._settings)
            self._rests[key] = _Rest()
        planned, rest = self._plans[key], self._rests[key]
        planned.expect(meter.current_bytes() - planned.stages.before_bytes + rest.extra_bytes)
        result = planned.plan.run(x)
        rest.watch(result, meter)
        return result

    def predicted_peak(self, x: torch.Tensor) -> int:
        """The device's peak in a step on an input that has been trained on."""
        return self._plans[self._kind_of(x)].plan.predicted_peak_bytes

    def _kind_of(self, x: torch.Tensor) -> tuple[Any, ...]:
        autocast = _Autocast.now(x.device)
        training = tuple(one.training for one in self.model.modules())
        trained = tuple(one.requires_grad for one in self.parameters())
        layout = (tuple(x.shape), x.stride(), x.dtype, x.device, x.requires_grad)
        return (*layout, training, trained, autocast.is_enabled, autocast.dtype)


class _Rest:
    """What is done between forward and backward, beyond the output's gradient."""

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
            given = _C.allocated_bytes(gradient.untyped_storage().nbytes(), gradient.device)
            self.extra_bytes = max(self.extra_bytes, meter.peak_bytes() - after_bytes - given)

        output.register_hook(learn)
