"""Trains models of torchvision, timm and transformers within five budgets each, with eager kernels on the CPU.

Each model trains with AdamW within shares of its memory (1x, 0.75x, and 0.5x or the smallest share that can be kept),
within the smallest number of bytes, which is the one that an error names, and within a number of bytes between that and
storing everything. In every step the peak must be at or below the budget and as predicted; losses, the first gradients,
and parameters and buffers at the end must be those of plain PyTorch bit for bit. At 1x a step must take no more than in
plain PyTorch, and must call the same attention kernels. Some models are trained once more with a loss outside of the
compiled function.

    python tests/python/model_budgets.py [--part I/N] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import collections
import copy
import gc
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from bits import difference
from headroom.api import _Backend
from headroom.budget.flight import flights_on
from headroom.budget.place import Place
from headroom.planning import Planned
from headroom.settings import Settings, read_budget
from model_zoo import CASES, Case
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import headroom

STEPS = 3
CPU = torch.device("cpu")
# Limits of the error of a predicted peak, and of the excess of a step at 1x over plain PyTorch, as shares.
PREDICTION_TOLERANCE = 0.001
PLAIN_TOLERANCE = 0.01
# Every this many models, one is also trained with a loss outside of the compiled part.
OUTSIDE_EVERY = 8

# Models whose gradients differ in their last bits when traced, also with backend="aot_eager", with which they are
# compared. Dynamo cuts most of them at each layer in training, because layers may be skipped. The first graph computes
# masks, so that the others do not know their contents, and each graph returns one gradient of a tensor that it uses
# several times. Mamba calls an associative scan when traced, and a loop in eager.
CHANGED_BY_TRACING = ("bart", "bart, padded", "pegasus", "mbart", "whisper", "wav2vec2", "mamba")

# Models that take more memory at 1x than plain PyTorch, or call other attention kernels. In eager, transformers reads a
# mask among the inputs and drops it if it is all true, which a traced step cannot. Mamba's scan takes more, also with
# Dynamo alone.
ABOVE_PLAIN = ("bart", "bart, padded", "pegasus", "mbart", "whisper", "llama, full mask", "mamba")


class Attentions(TorchDispatchMode):
    """Counts calls of attention kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_attention(func):
            self.counts[attention_name(func, args, kwargs or {})] += 1
        return func(*args, **(kwargs or {}))


def is_attention(target: object) -> bool:
    return "scaled_dot_product" in str(target)


def attention_name(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Returns the kernel and its arguments for masks."""
    names = [argument.name for argument in target._schema.arguments]
    arguments = dict(zip(names, args, strict=False)) | kwargs
    masks = {name: arguments.get(name) for name in ("attn_mask", "attn_bias", "is_causal")}
    return " ".join([str(target), *(name for name, mask in masks.items() if mask is not None and mask is not False)])


@dataclass
class Trained:
    """The results of training: bytes before each step and their maximum during it, and tensors by name."""

    before: list[int] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)  # less the memory in use before
    allowed: list[int] = field(default_factory=list)  # less the memory in use before
    limits: list[int] = field(default_factory=list)  # the smallest limit of a graph
    tensors: dict[str, torch.Tensor | None] = field(default_factory=dict)

    @property
    def added(self) -> list[int]:
        return [peak - before for peak, before in zip(self.peaks, self.before, strict=True)]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy in memory that is not counted."""
    return torch.from_numpy(tensor.detach().contiguous().numpy().copy())


class Observed(Settings):
    """Settings that record how much graphs may use of the device.

    A share is one of what is added from the first graph on: what eager code of the model has made before it is outside.
    """

    def __init__(self, budget: object, training: Training) -> None:
        super().__init__(budget, cache=False, on_plan=training.plans.append)
        self.limits = training.limits

    def device_bytes(self, before_bytes: int, root: Place) -> int | None:
        limit = super().device_bytes(before_bytes, root)
        if limit is not None:
            self.limits.append(limit)
        return limit


class Compiled:
    """The loss of a model compiled by headroom whose budget can be changed without tracing again."""

    def __init__(self, training: Training, budget: object) -> None:
        self.settings = Observed(budget, training)
        self.run = torch.compile(training.function(), backend=_Backend(self.settings), dynamic=False)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.run(*inputs)

    def places(self) -> list[Place]:
        """Returns the places of all graphs, outer ones first."""
        places = [place for step, place in flights_on(CPU).roots.items() if step.settings is self.settings]
        for place in places:
            places.extend(place.inner.values())
        return places

    def is_cut(self) -> bool:
        """Whether Dynamo has cut the model into several graphs."""
        return len(self.places()) > 1

    def set_budget(self, budget: object) -> None:
        self.settings.budget = read_budget(budget)
        for place in self.places():
            place.step.chosen.clear()

    def allowed(self, trained: Trained) -> list[int]:
        """Returns the bytes that a share, or no budget, allows in each step on top of the memory in use before it."""
        if not self.is_cut():
            return trained.allowed
        return [limit - before for limit, before in zip(trained.limits, trained.before, strict=True)]

    def attentions(self) -> collections.Counter[str]:
        calls = [call.node for place in self.places() for call in place.step.captured.calls]
        nodes = [node for node in calls if is_attention(node.target)]
        return collections.Counter(attention_name(node.target, node.args, node.kwargs) for node in nodes)


class Training:
    """A model with its inputs that is trained repeatedly from the same initial state."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.case = case
        self.model = case.make().train()
        self.inputs = case.inputs()
        self.start = copy.deepcopy(self.model.state_dict())
        self.meter = headroom.Meter(CPU)
        self.optimizer: torch.optim.Optimizer | None = None
        self.plans: list[Planned] = []
        self.limits: list[int] = []

    def function(self, model: nn.Module | None = None) -> Callable[..., torch.Tensor]:
        """Returns the loss of the model, compiled or not, as a function that Dynamo has not seen."""
        called = self.model if model is None else model

        def loss(*inputs: torch.Tensor) -> torch.Tensor:
            return self.case.loss(called, *inputs)

        loss.__code__ = loss.__code__.replace()
        return loss

    def reset(self) -> None:
        """Restores the initial state, without gradients and without an optimizer."""
        self.optimizer = None
        self.model.zero_grad()
        self.model.load_state_dict(self.start)
        torch.manual_seed(1)
        gc.collect()

    def step(self, run: Callable[..., torch.Tensor], result: Trained) -> None:
        """Trains one step. The optimizer's state appears after the first."""
        self.model.zero_grad()
        before = self.meter.current_bytes()
        self.limits.clear()
        self.meter.reset_peak()
        loss = run(*self.inputs)
        loss.backward()
        peak = self.meter.peak_bytes()
        if not result.peaks:
            for name, parameter in self.model.named_parameters():
                gradient = parameter.grad
                result.tensors[f"gradient of {name}"] = None if gradient is None else copied(gradient)
        result.tensors[f"loss {len(result.peaks)}"] = copied(loss)
        result.before.append(before)
        result.peaks.append(peak)
        result.limits.append(min(self.limits, default=peak))
        if self.plans:
            result.predicted.append(self.plans[-1].predicted_bytes)
            result.allowed.append(self.plans[-1].budget_bytes)
        del loss
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.optimizer.step()
        if len(result.peaks) == STEPS:
            result.tensors |= {name: copied(tensor) for name, tensor in self.model.state_dict().items()}

    def train(self, run: Callable[..., torch.Tensor], steps: int = STEPS) -> Trained:
        """Trains some steps from the initial state."""
        self.reset()
        result = Trained()
        for _ in range(steps):
            self.step(run, result)
        return result

    def state_bytes(self) -> int:
        """Returns the bytes of an optimizer's state."""
        self.reset()
        before = self.meter.current_bytes()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        self.model.zero_grad()
        gc.collect()
        return self.meter.current_bytes() - before


@dataclass
class Row:
    """The outcome of one budget."""

    model: str
    budget: str
    added: int = 0  # peak less the memory in use before, in the worst step
    faults: list[str] = field(default_factory=list)
    notes: str = ""

    def __str__(self) -> str:
        verdict = "ok" if not self.faults else "FAILED: " + "; ".join(self.faults)
        return f"{self.model:24} {self.budget:22} {self.added:>12,} bytes{self.notes}  {verdict}"


def tensor_faults(trained: Trained, expected: Trained) -> list[str]:
    names = [name for name in trained.tensors if name in expected.tensors]
    texts = [(name, difference(trained.tensors[name], expected.tensors[name])) for name in names]
    wrong = [f"{name}: {text}" for name, text in texts if text]
    return [f"{len(wrong)} of {len(names)} tensors differ, first {wrong[0]}"] if wrong else []


def prediction_faults(trained: Trained) -> list[str]:
    return [
        f"step {index}: predicted {predicted:,}, measured {added:,} ({added - predicted:+,})"
        for index, (predicted, added) in enumerate(zip(trained.predicted, trained.added, strict=True))
        if abs(predicted - added) > PREDICTION_TOLERANCE * added
    ]


def over_faults(peaks: Sequence[int], budgets: Sequence[int], step: Compiled | None = None) -> list[str]:
    """Returns the steps over the budget, except the first if memory outside of a graph must be measured."""
    first = 1 if step is None or step.is_cut() else 0
    return [
        f"step {index}: {peak - budget:,} bytes over the budget"
        for index, (peak, budget) in enumerate(zip(peaks, budgets, strict=True))
        if peak > budget and index >= first
    ]


class Check:
    """Runs the budgets of one model in sequence."""

    def __init__(self, name: str, case: Case, report: Callable[[Row], None]) -> None:
        self.name, self.report = name, report
        self.training = Training(case)
        attentions = Attentions()
        with attentions:
            self.training.train(self.training.function(), 1)
        self.attentions = attentions.counts
        self.plain = self.training.train(self.training.function())
        self.expected = self.plain
        if name in CHANGED_BY_TRACING:
            traced = torch.compile(self.training.function(), backend="aot_eager", dynamic=False)
            self.expected = self.training.train(traced)
        self.state_bytes = self.training.state_bytes()

    def finish(self, budget: str, trained: Trained, faults: list[str], notes: str = "") -> None:
        self.report(Row(self.name, budget, max(trained.added, default=0), faults, notes))

    def common_faults(self, trained: Trained, step: Compiled) -> list[str]:
        return tensor_faults(trained, self.expected) + ([] if step.is_cut() else prediction_faults(trained))

    def shares(self, step: Compiled) -> int:
        """Checks no budget and shares. Returns the memory that storing everything adds."""
        store_all = 0
        for budget in ("1x", None, "0.75x", "0.5x"):
            step.set_budget(budget)
            try:
                trained = self.training.train(step)
            except headroom.BudgetError as error:
                budget = re.search(r"the smallest that can is ([\d.]+x)", str(error)).group(1)
                step.set_budget(budget)
                trained = self.training.train(step)
            faults = over_faults(trained.added, step.allowed(trained), step) + self.common_faults(trained, step)
            notes = ""
            if budget in (None, "1x"):
                store_all = max(trained.added)
                plain = max(self.plain.added)
                notes = f" (plain {plain:,}, {100 * (store_all / plain - 1):+.2f} %)"
                is_known = self.name in ABOVE_PLAIN
                if store_all > (1 + PLAIN_TOLERANCE) * plain and not is_known:
                    faults.append("more than plain PyTorch")
                attentions = step.attentions()
                if attentions != self.attentions and not is_known:
                    faults.append(f"attention {dict(attentions)}, of plain PyTorch {dict(self.attentions)}")
            if step.is_cut():
                notes += f" {len(step.places())} graphs"
            self.finish(budget or "none", trained, faults, notes)
        return store_all

    def smallest_bytes(self, step: Compiled) -> int:
        """Returns the number of bytes that an error names."""
        self.training.reset()
        step.set_budget(1)
        try:
            step(*self.training.inputs)
        except headroom.BudgetError as error:
            return error.smallest_budget_bytes
        raise AssertionError("one byte is enough")

    def middle(self, step: Compiled, smallest_bytes: int, store_all_bytes: int) -> None:
        """Checks a number of bytes between the smallest one and storing everything, with room for AdamW's state."""
        self.training.reset()
        before = self.training.meter.current_bytes()
        budget = (smallest_bytes + before + store_all_bytes) // 2 + self.state_bytes
        step.set_budget(budget)
        trained = self.training.train(step)
        faults = over_faults(trained.peaks, [budget] * STEPS, step) + self.common_faults(trained, step)
        self.finish(f"{budget} bytes", trained, faults)

    def smallest(self, name: str, smallest_bytes: int, steps: int) -> None:
        """Checks that budget with a newly compiled model, and the budget that is named once AdamW's state exists."""
        training = self.training
        training.reset()
        budget = smallest_bytes
        step = Compiled(training, budget)
        trained, budgets, faults = Trained(), [], []
        while len(trained.peaks) < steps:
            generator = copied(torch.get_rng_state())  # A later graph may refuse when earlier ones have drawn numbers.
            try:
                training.step(step, trained)
                budgets.append(budget)
            except headroom.BudgetError as error:
                named = error.smallest_budget_bytes
                if len(trained.peaks) != 1 or budget != smallest_bytes:
                    faults.append(f"step {len(trained.peaks)}: {budget:,} refused, {named:,} named")
                    break
                budget = named
                step.set_budget(budget)
                torch.set_rng_state(generator)
        faults += over_faults(trained.peaks, budgets, step) + self.common_faults(trained, step)
        self.finish(name, trained, faults)

    def outside(self, smallest_bytes: int, store_all_bytes: int) -> None:
        """Checks that no step but the first exceeds a number of bytes if the loss is outside of the compiled part."""
        training = self.training
        training.reset()
        before = training.meter.current_bytes()
        budget = (smallest_bytes + before + store_all_bytes) // 2 + self.state_bytes
        training.plans.clear()
        trained = training.train(training.function(headroom.compile(training.model, budget, cache=False)))
        faults = over_faults(trained.peaks, [budget] * STEPS) + tensor_faults(trained, self.expected)
        self.finish("loss outside", trained, faults)


def check(name: str, case: Case, report: Callable[[Row], None], *, is_outside: bool) -> None:
    torch._dynamo.reset()
    try:
        check = Check(name, case, report)
        step = Compiled(check.training, "1x")
        store_all = check.shares(step)
        smallest = check.smallest_bytes(step)
        check.middle(step, smallest, store_all)
        del step
        check.smallest("smallest", smallest, STEPS)
        check.smallest("smallest, again", smallest, 1)
        if is_outside:
            torch._dynamo.reset()  # Dynamo limits the number of graphs of one function.
            check.outside(smallest, store_all)
    except Exception as error:
        text = " ".join("".join(traceback.format_exception_only(error)).split())[:600]
        report(Row(name, "", 0, [text]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="1/1", metavar="I/N", help="the I-th of N parts")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of models")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    part, parts = map(int, arguments.part.split("/"))
    names = [name for name in list(CASES)[part - 1 :: parts] if not arguments.only or name in arguments.only]
    rows: list[Row] = []

    def report(row: Row) -> None:
        rows.append(row)
        print(row, flush=True)

    for name in names:
        start = time.perf_counter()
        check(name, CASES[name], report, is_outside=list(CASES).index(name) % OUTSIDE_EVERY == 0)
        print(f"  {name}: {time.perf_counter() - start:.1f} s", flush=True)
        gc.collect()
    failed = [row for row in rows if row.faults]
    print(f"{len(names)} models, {len(rows)} budgets: {len(rows) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
