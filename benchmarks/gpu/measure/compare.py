"""Peak and time of a training step of one model, by PyTorch's means and by headroom.

    python benchmarks/gpu/measure/compare.py MODEL[:BATCH[:SIZE]] VARIANT ... [--json]

A VARIANT is
  plain             eager PyTorch                       checkpoint          eager, checkpoints by block
  plain:1e-7        the same with weights that are off by that share: what rounding alone does to gradients
  aot               torch.compile, backend aot_eager    compile+checkpoint  torch.compile, checkpoints by block
  torch:0.5         torch.compile with activation_memory_budget 0.5
  sequential:4      checkpoint_sequential in that many segments
  eager:BUDGET      headroom, kernels="eager"           inductor:BUDGET     headroom, kernels="inductor"
  stages:PLANNER:BUDGET   headroom.Sequential with a planner
BUDGET is bytes that a step may add: an amount such as 4GiB; a share of what the first variant adds, such as 0.5x, where
1x is 1 % more than that; what another variant adds, such as =checkpoint; or least, the smallest that an error names.

Peaks are the largest allocated less what is allocated before the step, and what the allocator takes from the device
for it. Times are those of steps in a row, in rounds in turn with the first variant. Gradients of the first step are
compared with those of the first variant that has the same kernels, eager ones or Inductor's; --reference runs one more
variant before all, for this only. With --exact they are compared with those of a plain step in higher precision (fp64,
of text fp32), with neither dropout nor TF32. Several of these processes may run at the same time: those with the same
--lock take turns where they are timed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import math
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import Kind, Work, checkpoint_blocks, make, sequential
from steps import Peak, Turn, compare_times, synchronize, take_turns, time_steps
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint_sequential

import headroom
from headroom import _C

GIB = 1 << 30
# Steps whose peak is measured, the first of which compiles.
STEPS = 3
KINDS = (
    "plain", "aot", "checkpoint", "compile+checkpoint", "torch", "sequential", "eager", "inductor", "stages"
)  # fmt: skip

Run = Callable[[], torch.Tensor]


def unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that Dynamo has not seen, so that variants share no compiled code."""
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def is_by_inductor(variant: str) -> bool:
    return variant.partition(":")[0] in ("torch", "compile+checkpoint", "inductor")


def cause(error: BaseException | None) -> headroom.BudgetError | None:
    while error is not None and not isinstance(error, headroom.BudgetError):
        error = error.__cause__ or error.__context__
    return error


def gradients_of(model: nn.Module) -> list[np.ndarray]:
    """Returns copies outside of torch's memory, where budgets would count them as memory outside the step."""
    return [parameter.grad.cpu().numpy().copy() for parameter in model.parameters() if parameter.grad is not None]


def difference(gradients: list[np.ndarray], expected: list[np.ndarray], device: str) -> tuple[float, float]:
    """Returns the distance as a share of the expected norm: of all gradients, and the largest of one parameter's."""
    if all(np.array_equal(gradient, other) for gradient, other in zip(gradients, expected, strict=True)):
        return 0.0, 0.0

    def norm(gradient: np.ndarray, subtrahend: np.ndarray | float = 0.0) -> float:
        left, right = torch.as_tensor(gradient, device=device).double(), torch.as_tensor(subtrahend, device=device)
        return (left - right).norm().item()

    norms = [norm(gradient, other) for gradient, other in zip(gradients, expected, strict=True)]
    whole = math.hypot(*[norm(gradient) for gradient in expected])
    return math.hypot(*norms) / whole, max(norms) / whole


@torch.no_grad()
def nudge(model: nn.Module, share: float) -> None:
    for parameter in model.parameters():
        parameter.mul_(1 + share * torch.randn_like(parameter))


@dataclass
class Variant:
    """A way to run a step."""

    name: str
    work: Work
    run: Run
    limit_bytes: int | None = None  # Limit of the bytes in use on the device.
    memory_share: float = 1.0  # PyTorch's activation_memory_budget.
    plans: list[Any] = field(default_factory=list)


class Bench:
    """One model and its variants. The first variant with a result is the one that others are compared with."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.turn = Turn(options.lock)
        self.peak = Peak(headroom.Meter(torch.device(options.device)))
        self.kind = Kind(small=options.small, same_attention=True, dropout=not options.exact)
        self.work = make(options.model, options.device, self.kind)
        self.added_bytes: dict[str, int] = {}
        self.base: Variant | None = None
        self.expected: dict[bool, list[np.ndarray]] = {}  # Gradients by whether Inductor's kernels computed them.

    def limit(self, budget: str, kernels: str) -> int:
        """Returns a budget in bytes of the device."""
        before = self.peak.meter.current_bytes()
        if budget == "least":
            return self.smallest_budget(kernels)
        if budget.startswith("="):
            return before + self._added(budget[1:])
        if budget.endswith("x"):
            share = float(budget[:-1])
            name = "the first variant" if self.base is None else self.base.name
            return before + int(self._added(name) * (1.01 if share == 1 else share))
        return before + _C.parse_bytes(budget)

    def _added(self, name: str) -> int:
        if name not in self.added_bytes:
            raise ValueError(f"{name} has no peak that a budget could be taken from")
        return self.added_bytes[name]

    def smallest_budget(self, kernels: str) -> int:
        """Returns the budget that an error names."""
        try:
            headroom.compile(unseen(self.work.loss), 1, kernels=kernels)(*self.work.inputs).backward()
        except Exception as error:
            refusal = cause(error)
            if refusal is None:
                raise
            return refusal.smallest_budget_bytes
        raise RuntimeError("a budget of one byte was accepted")

    def make(self, name: str) -> Variant:
        """Returns the variant, which is compiled in its first step."""
        kind, _, value = name.partition(":")
        work, inputs = self.work, self.work.inputs
        if "checkpoint" in kind:
            work = make(self.options.model, self.options.device, self.kind)
            checkpoint_blocks(work.model)
        if kind == "plain" and value:
            work = make(self.options.model, self.options.device, self.kind)
            nudge(work.model, float(value))
        if kind in ("aot", "torch", "compile+checkpoint"):
            compiled = torch.compile(
                unseen(work.loss), backend="aot_eager" if kind == "aot" else "inductor", dynamic=False
            )
            share = float(value) if kind == "torch" else 1.0
            return Variant(name, work, lambda: compiled(*inputs), memory_share=share)
        if kind in ("eager", "inductor"):
            plans: list[Any] = []
            limit = self.limit(value, kind)
            planned = headroom.compile(unseen(work.loss), limit, kernels=kind, on_plan=plans.append)
            return Variant(name, work, lambda: planned(*inputs), limit, plans=plans)
        if kind in ("sequential", "stages"):
            return self._make_of_stages(name, kind, value)
        return Variant(name, work, work.run)

    def _make_of_stages(self, name: str, kind: str, value: str) -> Variant:
        stages = sequential(self.work.model)
        images, labels = self.work.inputs
        if kind == "sequential":
            segments = int(value)

            def run() -> torch.Tensor:
                logits = checkpoint_sequential(stages, segments, images, use_reentrant=False)
                return functional.cross_entropy(logits, labels)

            return Variant(name, self.work, run)
        planner, _, budget = value.partition(":")
        limit = self.limit(budget, "eager")
        planned = headroom.Sequential(stages, limit, planner=planner)
        return Variant(name, self.work, lambda: functional.cross_entropy(planned(images), labels), limit)

    def step(self, variant: Variant) -> tuple[int, int, int]:
        """Returns the bytes in use before a step, its peak, and the bytes that the allocator holds at most."""
        variant.work.model.zero_grad()
        synchronize()
        gc.collect()
        before = self.peak.meter.current_bytes()
        self.peak.reset()
        variant.run().backward()
        synchronize()
        held = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
        return before, self.peak.bytes(), held

    def measure(self, name: str) -> None:
        """Prints the figures of a variant."""
        variant = self.make(name)
        figures: dict[str, Any] = {"model": self.options.model, "variant": name}
        torch.manual_seed(1)
        start = time.perf_counter()
        # Does not keep others from timing while it compiles, which takes long and does not use the device.
        is_compiled = name.partition(":")[0] not in ("plain", "checkpoint", "sequential")
        with (
            contextlib.nullcontext() if is_compiled else self.turn.working(),
            torch._functorch.config.patch(activation_memory_budget=variant.memory_share),
        ):
            peaks = [self.step(variant)[1]]
        figures["first_s"] = time.perf_counter() - start
        self.compare_gradients(variant, figures)
        with self.turn.working():
            torch.cuda.empty_cache()
            for _ in range(STEPS - 1):
                before, peak, held = self.step(variant)
                peaks.append(peak)
            variant.work.model.zero_grad()
        torch.cuda.empty_cache()
        added = peaks[-1] - before
        figures |= {"peak_bytes": added, "before_bytes": before, "held_bytes": held - before}
        if variant.limit_bytes is not None:
            figures |= {"limit_bytes": variant.limit_bytes - before, "over_bytes": max(peaks) - variant.limit_bytes}
            figures |= {"later_over_bytes": max(peaks[1:]) - variant.limit_bytes}  # After the first call.
        if variant.plans:
            last = variant.plans[-1]
            figures |= {"predicted_bytes": last.predicted_bytes, "predicted_ns": last.time_ns}
            figures |= {"plain_ns": last.plain_time_ns}
            figures["compilations"] = sum(plan.compilations for plan in variant.plans)
        self.added_bytes[name] = added
        with self.turn.timing():
            figures |= self.time(variant)
        if variant.plans:
            figures["plans"] = len(variant.plans)
        tell(figures, self.options)

    def compare_gradients(self, variant: Variant, figures: dict[str, Any]) -> None:
        by_inductor = is_by_inductor(variant.name)
        gradients = gradients_of(variant.work.model)
        if by_inductor in self.expected:
            off = difference(gradients, self.expected[by_inductor], self.options.device)
            figures["off"], figures["off_in_one"] = off
        else:
            self.expected[by_inductor] = gradients

    def time(self, variant: Variant) -> dict[str, Any]:
        own = time_steps(variant.run, variant.work.model)
        if self.base is None:
            self.base = variant
        base = time_steps(self.base.run, self.base.work.model)
        ratio, step_ms, base_ms = compare_times(own, base, self.options.rounds, self.options.round_s)
        return {"step_ms": step_ms, "base": self.base.name, "base_ms": base_ms, "time_ratio": ratio}

    def run_reference(self, name: str) -> None:
        """Keeps the gradients of a variant's first step."""
        variant = self.make(name)
        torch.manual_seed(1)
        with torch._functorch.config.patch(activation_memory_budget=variant.memory_share):
            self.step(variant)
        self.compare_gradients(variant, {})
        variant.work.model.zero_grad()

    def expect_precise_gradients(self) -> None:
        kind = Kind(small=self.options.small, same_attention=True, precise=True, dropout=False)
        work = make(self.options.model, self.options.device, kind)
        work.run().backward()
        self.expected = dict.fromkeys((False, True), gradients_of(work.model))


def tell(figures: dict[str, Any], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(figures), flush=True)
        return
    text = f"{figures['model']} {figures['variant']:20} {figures['peak_bytes'] / GIB:7.3f} GiB"
    text += f" {figures['step_ms']:8.2f} ms, {figures['time_ratio']:.3f} of {figures['base']}"
    if "off" in figures:
        off = f"off by {figures['off']:.1e}, at most {figures['off_in_one']:.1e} in one parameter"
        text += f", gradients {off if figures['off_in_one'] else 'equal'}"
    if "limit_bytes" in figures:
        over = figures["over_bytes"]
        text += f", OVER by {over}" if over > 0 else f", kept {figures['limit_bytes'] / GIB:.3f} GiB"
    if "predicted_bytes" in figures:
        planned = figures["predicted_ns"] / max(figures["plain_ns"], 1)
        text += f", predicted {figures['predicted_bytes'] / figures['peak_bytes'] - 1:+.2%} and {planned:.3f}"
        text += f", compiled {figures['compilations']} x"
    print(f"{text}, first {figures['first_s']:.0f} s", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("variants", nargs="+", metavar="VARIANT")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a small model, to try this script")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of timed steps (5)")
    parser.add_argument("--round-s", type=float, default=0.1, help="seconds of a round, approximately (0.1)")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no variant after that many seconds")
    parser.add_argument("--exact", action="store_true", help="compare gradients with those in higher precision")
    parser.add_argument("--reference", metavar="VARIANT")
    parser.add_argument("--lock", help="a file by which processes take turns where they are timed")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    options = parser.parse_args()
    for variant in [*options.variants, *([options.reference] if options.reference else [])]:
        if variant.partition(":")[0] not in KINDS:
            parser.error(f"no variant {variant!r}: {', '.join(KINDS)}")
    return options


def run(options: argparse.Namespace) -> int:
    start = time.monotonic()
    bench = Bench(options)
    take_turns(bench.turn)
    if options.exact:
        bench.expect_precise_gradients()
    if options.reference:
        bench.run_reference(options.reference)
    failed = 0
    for variant in options.variants:
        if time.monotonic() - start > options.limit_s:
            print(f"{variant}: not begun, after {options.limit_s:g} s", file=sys.stderr)
            failed += 1
            continue
        try:
            bench.measure(variant)
        except Exception as error:
            failed += 1
            logging.exception(variant)
            tell_failure(variant, error, options)
        gc.collect()
        torch.cuda.empty_cache()
    return 1 if failed else 0


def tell_failure(variant: str, error: Exception, options: argparse.Namespace) -> None:
    refusal = cause(error)
    figures = {"model": options.model, "variant": variant, "error": f"{type(error).__name__}: {str(error)[:300]}"}
    if refusal is not None:
        figures["smallest_bytes"] = refusal.smallest_budget_bytes
    line = json.dumps(figures) if options.json else f"{options.model} {variant:20} {figures['error']}"
    print(line, flush=True)


def main() -> int:
    options = parse()
    warnings.filterwarnings("ignore")
    # Logs the peak of each trial of a plan with Inductor.
    logging.basicConfig(stream=sys.stderr, format=f"{options.model} %(message)s")
    logging.getLogger("headroom").setLevel(logging.INFO)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not options.exact
    torch._dynamo.config.recompile_limit = 64
    with tempfile.TemporaryDirectory() as folder:
        options.lock = options.lock or f"{folder}/lock"
        Path(options.lock).parent.mkdir(parents=True, exist_ok=True)
        return run(options)


if __name__ == "__main__":
    sys.exit(main())
