"""Runs a program plainly and in several budgets, and compares."""

from __future__ import annotations

import contextlib
import gc
import linecache
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from any_order import ORDER_NAMES, kernels_planned_in, planned_in
from fixed_costs import fixed_costs
from torch._inductor import config as inductor_config
from torch.utils._pytree import tree_map

import headroom
from programs import prelude
from programs.budgets import Budgeted, smallest_kernel_plans
from programs.compare import ROUNDING, TRACED_ARITHMETIC, Failure, Rules, difference, distances
from programs.program import Program

# Errors that plain PyTorch raises in a program on purpose.
EXPECTED_ERRORS = ("Boom", prelude.IN_PLACE)
# With Inductor a program is run in one of these, by its seed: compiling takes nearly all the time.
INDUCTOR_BUDGETS = (None, "least", "1x", "least")
# The maximum relative error of rounding a number, and the limit of differences from plain PyTorch, as a multiple of the
# changes that such errors cause.
UNIT = {"float32": 2**-23, "bfloat16": 2**-8}
NOISE_FACTOR = 10
# Steps at the start of a run in which the peak may exceed the budget, because memory around graphs is being measured.
LEARNING_STEPS = 2


@dataclass
class Options:
    """The configuration of a run."""

    device: str = "cpu"
    kernels: str = "eager"
    has_shares: bool = True  # budgets that are shares of what storing everything adds
    has_bytes: bool = True  # a budget in bytes
    shuffles: int = 0  # schedules in random orders instead of budgets


# Errors of PyTorch's own, which backend aot_eager raises for the same programs.
PYTORCH_ERRORS = (
    "incorrect out shape after application of ViewMeta sequence",
    "FX to symbolically trace a dynamo-optimized function",  # while another thread traces
    "Use .reshape(...) instead., plain",  # in no operator: where AOTAutograd replays the views that are outputs
)


@dataclass
class Result:
    """The outcome of a program."""

    status: str  # "passed", "failed" or "invalid": plain PyTorch refuses it
    failures: list[Failure] = field(default_factory=list)
    is_traced_arithmetic: bool = False  # tracing rounds differently from plain PyTorch


def load(program: Program, device: str) -> Callable[[prelude.Compile, prelude.Log], None]:
    """Returns the function `program` of its source."""
    prelude.DEVICE = device
    source = program.source()
    name = f"<program {program.seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace = dict(vars(prelude))
    exec(compile(source, name, "exec"), namespace)
    return namespace["program"]


@contextlib.contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """Makes floating-point tensors of this type where programs name none."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Perturbed(torch.nn.Module):
    """A module whose results are rounded differently."""

    def __init__(self, function: Callable[..., Any], unit: float) -> None:
        super().__init__()
        self.function = function
        self.unit = unit

    def forward(self, *inputs: torch.Tensor) -> Any:
        def perturb(result: torch.Tensor) -> torch.Tensor:
            if not result.is_floating_point():
                return result
            numbers = torch.arange(result.numel(), device=result.device, dtype=result.dtype).reshape(result.shape)
            return result * (1 + self.unit * numbers.cos())

        return tree_map(perturb, self.function(*inputs))


class Runner:
    """Runs one program."""

    def __init__(self, program: Program, options: Options) -> None:
        self.program = program
        self.options = options
        self.function = load(program, options.device)
        self.is_traced_arithmetic = False
        self.traced: prelude.Log | None = None  # results of PyTorch's own backend, if it has run

    def run(self, compiler: Any) -> tuple[prelude.Log, int]:
        log = prelude.Log()
        prelude.armed.update(forward=False, backward=False)

        def note(message: Warning | str, *_: Any) -> None:
            if "over the budget" in str(message):
                log.warned_steps.add(log.step)

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note
            left_bytes = prelude.bytes_left_by(self.function, compiler, log)
        return log, left_bytes

    def result(self) -> Result:
        torch._dynamo.reset()
        gc.collect()  # Objects freed during a run would change the memory that it adds.
        gc.freeze()  # Later collections skip objects of earlier programs.
        try:
            plain, plain_left = self.run(lambda function: function)
        except Exception as error:
            return Result("invalid", [Failure("invalid", f"{type(error).__name__}: {error}")])
        unexpected = [message for kind, message in plain.errors.values() if kind not in EXPECTED_ERRORS]
        if unexpected:
            return Result("invalid", [Failure("invalid", unexpected[0])])
        if plain_left:
            return Result("invalid", [Failure("invalid", f"plain PyTorch leaves {plain_left} bytes")])
        check = self.check_eager if self.options.kernels == "eager" else self.check_inductor
        with fixed_costs():
            failures = check(plain)
        if failures and any(text in failures[0].detail for text in PYTORCH_ERRORS):
            return Result("invalid", failures[:1])
        return Result("failed" if failures else "passed", failures, self.is_traced_arithmetic)

    def check_eager(self, plain: prelude.Log) -> list[Failure]:
        budgeted = Budgeted(self.options.device)
        failures: list[Failure] = []
        with torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True):
            store_all = self.check_budget(budgeted, plain, "1x", None, failures)
            if store_all is None:
                return failures
            if self.options.shuffles > 0:
                self.check_shuffled(budgeted, plain, store_all, failures)
                return failures
            smallest = budgeted.smallest_share()
            is_irregular = "irregular" in self.program.traits
            for share in sorted({smallest + 1e-6, (1 + smallest) / 2}) if self.options.has_shares else ():
                budget = f"{share:.9f}x"
                budgeted.set_budget(budget)
                may_be_too_small = is_irregular or share < smallest + 1e-3
                self.check_budget(budgeted, plain, budget, store_all, failures, may_be_too_small=may_be_too_small)
            if self.options.has_bytes:
                self.check_bytes(budgeted, plain, store_all, failures)
        return failures

    def check_shuffled(
        self, budgeted: Budgeted, plain: prelude.Log, store_all: prelude.Log, failures: list[Failure]
    ) -> None:
        """Runs the program by schedules in random orders, half of them with reruns, which must keep to their peaks."""
        for number in range(self.options.shuffles):
            order, share = ORDER_NAMES[(self.program.seed + number) % len(ORDER_NAMES)], 0.3 * (number % 2)
            budget = f"{share} reruns in {order} order"
            budgeted.set_budget(None)
            with planned_in(order, self.program.seed + number, share):
                self.check_budget(budgeted, plain, budget, store_all, failures)

    def check_bytes(
        self, budgeted: Budgeted, plain: prelude.Log, store_all: prelude.Log, failures: list[Failure]
    ) -> None:
        """Runs the program in a budget of bytes, which the whole device must keep."""
        if "threads" in self.program.traits or store_all.errors or len(store_all.peaks) <= LEARNING_STEPS:
            return
        added = max(store_all.added[LEARNING_STEPS:])
        budget = max(store_all.peaks[LEARNING_STEPS:]) - store_all.start_bytes
        budget = headroom.current_bytes(self.options.device) + budget - added // 5
        budgeted.set_budget(budget)
        try:
            log, _ = self.run(budgeted)
        except Exception as error:
            failures.append(Failure("error", f"{type(error).__name__}: {error}"[:2000], f"{budget} bytes"))
            return
        if any(kind == "BudgetError" for kind, _ in log.errors.values()):
            return  # The last of several graphs can have no memory left.
        budget_name = f"{budget} bytes"
        failure = self.difference(plain, log, store_all, may_refuse=True)
        if failure is not None:
            failures.append(replace(failure, budget=budget_name))
        peak = max(log.peaks[LEARNING_STEPS:], default=0)
        # Code before the first graph in flight keeps to no budget, nor do graphs in flight from the step before.
        is_planned = budgeted.is_all_planned() and not self.program.traits & {"eager part", "in flight between steps"}
        if peak > budget and is_planned and failure is None and max(log.warned_steps, default=0) < LEARNING_STEPS:
            failures.append(Failure("peak", f"{peak} bytes in a step after the second", budget_name))

    def check_budget(
        self,
        compiler: Any,
        plain: prelude.Log,
        budget: str,
        store_all: prelude.Log | None,
        failures: list[Failure],
        *,
        may_be_too_small: bool = False,
    ) -> prelude.Log | None:
        """Runs the program in a budget and appends differences. Returns its log if it agrees with plain PyTorch."""
        try:
            log, left_bytes = self.run(compiler)
        except Exception as error:
            failures.append(Failure("error", f"{type(error).__name__}: {error}"[:2000], budget))
            return None
        failure = self.difference(plain, log, store_all, may_refuse=budget != "1x")
        if failure is not None:
            # Until memory around graphs is measured, the smallest budgets may be too small.
            if not (failure.is_refusal and may_be_too_small):
                failures.append(replace(failure, budget=budget))
            return None
        # In the run that compiles, memory that the graphs keep cannot be distinguished from leaks.
        if left_bytes > 0 and store_all is not None:
            failures.append(Failure("leak", f"{left_bytes} bytes are left", budget))
        is_planned = store_all is not None and compiler.is_all_planned() and "irregular" not in self.program.traits
        if self.options.shuffles > 0:  # A graph expects those that run while it is in flight to keep to store-all.
            is_planned = is_planned and compiler.graph_count == 1
        if is_planned and len(log.added) > LEARNING_STEPS:
            added = max(compiler.store_all_bytes(), *store_all.added[LEARNING_STEPS:])
            limit = float(budget[:-1]) * added if budget.endswith("x") else compiler.predicted_bytes()
            peak = max(log.added[LEARNING_STEPS:])
            if peak > limit and max(log.warned_steps, default=0) < LEARNING_STEPS:
                failures.append(Failure("peak", f"{peak} bytes added, {limit:.0f} allowed", budget))
        return log

    def difference(
        self, plain: prelude.Log, log: prelude.Log, store_all: prelude.Log | None, *, may_refuse: bool
    ) -> Failure | None:
        """Returns the first difference from plain PyTorch or, if tracing rounds differently, from the budget 1x."""
        traits = self.program.traits
        is_exact = self.options.kernels == "eager"
        rules = self.rules(0.0 if is_exact else ROUNDING["bfloat16"], may_refuse=may_refuse)
        close = replace(rules, tolerance=ROUNDING["bfloat16" if "autocast" in traits else "float32"])
        failure = difference(plain, log, rules, close)
        if failure is not None and failure.kind == "value" and not (is_exact and "autocast" not in traits):
            close = replace(close, noise=self.noise(plain))
            failure = difference(plain, log, rules, close)
        if failure is None:
            return None
        is_rounding = failure.kind == "rounding" and (not is_exact or traits & TRACED_ARITHMETIC.keys())
        if not is_rounding and not self.is_as_traced(log, rules, close):
            return failure
        self.is_traced_arithmetic = True
        return None if store_all is None else difference(store_all, log, rules, close)

    def rules(self, tolerance: float, *, may_refuse: bool) -> Rules:
        traits = self.program.traits
        return Rules(
            tolerance=tolerance,
            may_refuse_change=(may_refuse or "saved tensors hooks" in traits) and "user change" in traits,
            may_accept_change=self.options.shuffles > 0 and "user change" in traits,
            may_be_zeros="unused output" in traits,
        )

    def noise(self, plain: prelude.Log) -> dict[tuple[int, str], float]:
        """Returns how far the values of the program change if results of its modules are rounded differently.

        A gradient that is zero but for rounding has no bits that count, nor has what Adam makes of it.
        """
        unit = UNIT["bfloat16" if "autocast" in self.program.traits else "float32"]
        perturbed, _ = self.run(lambda function: Perturbed(function, unit))
        return {key: NOISE_FACTOR * value for key, value in distances(plain, perturbed).items()}

    def is_as_traced(self, log: prelude.Log, rules: Rules, close: Rules) -> bool:
        """Returns whether PyTorch's own backend agrees, or raises in the same steps.

        Where a program is ill-conditioned, what tracing rounds differently is no small difference. And the traced
        graphs see changes of buffers in place that plain PyTorch does not notice, such as those of batch norms.
        """
        if self.traced is None:
            backend = "aot_eager" if self.options.kernels == "eager" else "inductor"
            try:
                # Pickling for AOTAutograd's cache has crashed the process where backward is compiled late.
                with torch._functorch.config.patch(enable_autograd_cache=False):
                    self.traced, _ = self.run(lambda function: torch.compile(function, backend=backend, dynamic=False))
            except Exception:  # outside of a step, where no log has it
                return False
        return difference(self.traced, log, rules, close) is None

    def check_inductor(self, plain: prelude.Log) -> list[Failure]:
        """Compares values of Inductor's kernels up to rounding. Other tests compare their peaks.

        Random numbers are drawn as in plain PyTorch. "least" is the smallest plan, whatever its real peak.
        """
        failures: list[Failure] = []
        shuffles = self.options.shuffles
        budget = "least" if shuffles > 0 else INDUCTOR_BUDGETS[self.program.seed % len(INDUCTOR_BUDGETS)]
        plans = smallest_kernel_plans() if budget == "least" else contextlib.nullcontext()
        order, share = ORDER_NAMES[self.program.seed % len(ORDER_NAMES)], 0.3 * (self.program.seed % 2)
        shuffled = kernels_planned_in(order, self.program.seed, share) if shuffles > 0 else contextlib.nullcontext()

        def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
            return headroom.compile(function, budget and "1x", kernels="inductor", cache=False)

        with plans, shuffled, inductor_config.patch(fallback_random=True):
            may_be_too_small = budget is not None
            self.check_budget(compiler, plain, str(budget), None, failures, may_be_too_small=may_be_too_small)
            if failures and failures[0].kind == "value" and self.agrees_in_double(compiler):
                failures.clear()
                self.is_traced_arithmetic = True
        return failures

    def agrees_in_double(self, compiler: Any) -> bool:
        """Returns whether the program agrees with plain PyTorch in double precision.

        What is wrong by more than rounding is wrong there too, however ill-conditioned the program is.
        """
        torch._dynamo.reset()
        with default_type(torch.float64):
            plain, _ = self.run(lambda function: function)
            log, _ = self.run(compiler)
        rules = self.rules(ROUNDING["float64"], may_refuse=True)
        return difference(plain, log, rules, rules) is None


def run_program(program: Program, options: Options) -> Result:
    return Runner(program, options).result()
