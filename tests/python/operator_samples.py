"""Trains every differentiable operator and module of PyTorch's own test samples through headroom.

Each sample of ``op_db`` and ``module_db`` is wrapped so that there is something to recompute, and is run by plain
PyTorch, by headroom with the budget 1x and by headroom with the smallest budget. Outputs, gradients and what the call
wrote to its inputs must agree, with eager kernels bit for bit.

    python tests/python/operator_samples.py [--seed N] [--part I/N] [--only NAME] [--kernels eager|inductor]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import gc
import itertools
import random
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from bits import difference
from headroom.budget.flight import flights_on
from headroom.budget.meter import meter_of
from headroom.budget.place import Place
from headroom.costs import op_costs
from headroom.exec.eager import compile_graph
from headroom.graph.capture import Call
from headroom.planning import Step
from headroom.settings import Settings
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

import headroom

# PyTorch's samples forbid changes of its backends' settings in the whole process when they are imported.
vars(torch.backends)["__allow_nonbracketed_mutation_flag"] = True

# The number of samples of one operator to choose from.
CANDIDATES = 24

# Operators whose arithmetic changes when traced, with the reason. They are compared with backend="aot_eager".
CHANGED_BY_TRACING = {
    "addcdiv": "Dynamo writes it as a division, a product and a sum, which round complex numbers differently",
    "cumprod": "tracing takes the formula that holds with zeros too, plain PyTorch looks for zeros first",
    "istft": "tracing rounds the gradient of the window differently",
    "masked.prod": "tracing takes the formula that holds with zeros too, plain PyTorch looks for zeros first",
    "max.reduction_no_dim": "tracing gives zeros of the gradient another sign",
}

# Operators whose results differ between two calls on equal inputs, with the reason.
_SINGULAR = "the samples are near singular, where rounding decides the result"
NOT_REPEATABLE = {
    "linalg.lstsq.grad_oriented": "LAPACK rounds differently from call to call",
    "linalg.pinv": _SINGULAR,
    "linalg.pinv.singular": _SINGULAR,
    "pinverse": _SINGULAR,
}

# Operators that are refused, with a part of the message.
EXPECTED_UNSUPPORTED: dict[str, str] = {}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass
class Sample:
    """A function of tensors that gives a loss and further tensors, and the tensors to call it with."""

    name: str  # operator, type and index among the operator's samples
    function: Callable[..., tuple[torch.Tensor, list[torch.Tensor]]]
    inputs: list[torch.Tensor]
    reset: Callable[[], None] = lambda: None  # restores the state that a run changes
    state: Callable[[], list[torch.Tensor]] = list  # other tensors that a run may write to
    parameters: list[torch.Tensor] = field(default_factory=list)

    @property
    def operator(self) -> str:
        return self.name.split()[0]


@dataclass
class Ran:
    """The results of one step: tensors by name, None for a missing gradient."""

    tensors: dict[str, torch.Tensor | None]


def is_differentiable(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def prepared(leaf: torch.Tensor) -> torch.Tensor:
    """Returns the same numbers as a value of the graph, which a plan can free and recompute."""
    return (leaf * 2) * 0.5


def loss_of(results: object) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Returns a loss that keeps several values of each result for backward, and all the tensors among the results."""
    tensors = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
    loss = torch.zeros(())
    for tensor in tensors:
        if tensor.requires_grad:
            real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
            loss = loss.to(real.device) + (real.tanh() * real.sin()).sum()
    return loss, [tensor.detach() for tensor in tensors]


def operator_samples(op: Any, dtype: torch.dtype, device: str, count: int, seed: int) -> Iterator[Sample]:
    """Yields `count` samples of an operator, chosen by the seed."""
    name = f"{op.full_name} {name_of(dtype)}"
    random_numbers = random.Random(f"{seed} {name}")
    torch.manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    candidates = list(itertools.islice(op.sample_inputs(device, dtype, requires_grad=True), CANDIDATES))
    chosen = sorted(random_numbers.sample(range(len(candidates)), min(count, len(candidates))))
    for index in chosen:
        yield _operator_sample(op, candidates[index], f"{name} {index}")


def _operator_sample(op: Any, sample: Any, name: str) -> Sample:
    leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    call, process = op.op, sample.output_process_fn_grad

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        passed = list(leaves)
        for place, tensor in zip(positions, tensors, strict=True):
            passed[place] = prepared(tensor) if tensor.requires_grad else tensor
        operand, args, kwargs = pytree.tree_unflatten(passed, structure)
        return loss_of(process(call(operand, *args, **kwargs)))

    return Sample(name, function, [leaves[place] for place in positions])


def module_samples(info: Any, device: str, count: int, seed: int) -> Iterator[Sample]:
    """Yields `count` samples of a module in training, chosen by the seed."""
    random_numbers = random.Random(f"{seed} {info.name}")
    torch.manual_seed(zlib.crc32(f"{seed} {info.name}".encode()))
    inputs = info.module_inputs_func(info, device=device, dtype=torch.float32, requires_grad=True, training=True)
    candidates = list(itertools.islice(inputs, CANDIDATES))
    for index in sorted(random_numbers.sample(range(len(candidates)), min(count, len(candidates)))):
        yield _module_sample(info, candidates[index], device, f"{info.name} module {index}")


def _module_sample(info: Any, module_input: Any, device: str, name: str) -> Sample:
    made = module_input.constructor_input
    module = info.module_cls(*made.args, **made.kwargs).to(device).train()
    if any(map(torch.nn.parameter.is_lazy, module.parameters())):
        with torch.no_grad():
            module(*module_input.forward_input.args, **module_input.forward_input.kwargs)
    start = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    forward = module_input.forward_input
    leaves, structure = pytree.tree_flatten((forward.args, forward.kwargs))
    positions = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        passed = list(leaves)
        for place, tensor in zip(positions, tensors, strict=True):
            passed[place] = prepared(tensor) if tensor.requires_grad else tensor
        args, kwargs = pytree.tree_unflatten(passed, structure)
        return loss_of(module(*args, **kwargs))

    return Sample(
        name,
        function,
        [leaves[place] for place in positions],
        reset=lambda: module.load_state_dict(start),
        state=lambda: list(module.buffers()),
        parameters=list(module.parameters()),
    )


def run_once(sample: Sample, function: Callable[..., Any]) -> Ran:
    """Runs one step of training on copies of the inputs."""
    sample.reset()
    inputs = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in sample.inputs]
    torch.manual_seed(1)
    loss, results = function(*inputs)
    sources = [tensor for tensor in [*inputs, *sample.parameters] if tensor.requires_grad]
    gradients = torch.autograd.grad(loss, sources, allow_unused=True) if loss.requires_grad else []
    tensors: dict[str, torch.Tensor | None] = {"loss": loss.detach()}
    tensors |= {f"result {place}": tensor for place, tensor in enumerate(results)}
    tensors |= {f"gradient {place}": tensor for place, tensor in enumerate(gradients)}
    tensors |= {f"input {place}": tensor.detach() for place, tensor in enumerate(inputs)}
    tensors |= {f"state {place}": tensor.detach().clone() for place, tensor in enumerate(sample.state())}
    return Ran(tensors)


class Budgeted:
    """A function compiled with eager kernels, whose budget can be changed without tracing again."""

    def __init__(self, function: Callable[..., Any], device: str) -> None:
        self.steps: list[Step] = []
        self.device = torch.device(device, 0) if device == "cuda" else torch.device(device)

        def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable[..., object]:
            return compile_graph(gm, inputs, Settings("1x", cache=False), on_step=self.steps.append)

        self.run = torch.compile(function, backend=backend, dynamic=False)

    def place(self) -> Place:
        """Returns the state of the first graph, which includes the others."""
        return flights_on(self.device).roots[self.steps[0]]

    def set_smallest_budget(self, *, keep_order: bool) -> None:
        """Sets the smallest share that all graphs can keep which are entered while no other is in flight."""
        for step in self.steps:
            step.settings = Settings("1x", cache=False, keep_order=keep_order)
            step.shapes.clear()
            step.plans.clear()
        Place.learned += 1
        roots = flights_on(self.device).roots
        places = [roots[step] for step in self.steps if step in roots]
        share = max(place.smallest_bytes() / max(place.store_all_bytes(), 1) for place in places)
        for step in self.steps:
            step.settings = Settings(f"{share + 1e-6:.9f}x", cache=False, keep_order=keep_order)
            step.chosen.clear()

    def rerun_count(self) -> int:
        """Returns the number of reruns in the plan of the first graph."""
        place = self.place()
        chosen = place.step.chosen[place]
        runs = [step.op for step in chosen.plan.schedule.steps if step.is_run]
        return len(runs) - len(set(runs))


def differences(actual: Ran, expected: Ran) -> list[str]:
    if actual.tensors.keys() != expected.tensors.keys():
        return [f"{sorted(actual.tensors)} for {sorted(expected.tensors)}"]
    named = [(name, difference(tensor, expected.tensors[name])) for name, tensor in actual.tensors.items()]
    return [f"{name}: {text}" for name, text in named if text]


def fixed_cost(call: Call, *_: object) -> op_costs.Cost:
    """Returns a cost that replaces a measured one and is the same in every run."""
    tensors = [leaf for leaf in pytree.tree_leaves(call.node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    return op_costs.Cost(1000 + sum(tensor.numel() for tensor in tensors), 0)


@contextlib.contextmanager
def fixed_costs() -> Iterator[None]:
    """Disables the timing of operators inside, and forgets costs of other samples."""
    op_costs.cache_of.cache_clear()
    with (
        mock.patch.object(op_costs, "_measure", fixed_cost),
        mock.patch.object(op_costs, "_elementwise_ns", lambda call, *_: fixed_cost(call).time_ns),
    ):
        yield
    op_costs.cache_of.cache_clear()


@dataclass
class Outcome:
    """The outcome of one sample: whether it passed, failed or was skipped, why, and the reruns of the smallest plan."""

    verdict: str
    reason: str = ""
    reruns: int = 0


def expected_of(sample: Sample) -> Ran | Outcome:
    """Returns the result of a step without headroom, or an outcome if there is nothing to compare with."""
    if sample.operator in NOT_REPEATABLE:
        return Outcome("skipped", NOT_REPEATABLE[sample.operator])
    if any(tensor.layout != torch.strided for tensor in sample.inputs):
        return Outcome("skipped", "an input is sparse")
    try:
        expected = run_once(sample, sample.function)
    except Exception as error:
        return Outcome("skipped", f"plain PyTorch raises {type(error).__name__}")
    if not any(name.startswith("gradient") for name in expected.tensors):
        return Outcome("skipped", "nothing takes a gradient")
    if differences(run_once(sample, sample.function), expected):
        return Outcome("skipped", "plain PyTorch does not repeat itself")
    if sample.operator in CHANGED_BY_TRACING:
        torch._dynamo.reset()
        expected = run_once(sample, torch.compile(sample.function, backend="aot_eager", dynamic=False))
    return expected


def check_eager(sample: Sample, device: str) -> Outcome:
    """Compares headroom's eager kernels with plain PyTorch, at 1x and at the smallest budget of both kinds of plans.

    Plans in any order need fewer reruns for it.
    """
    expected = expected_of(sample)
    if isinstance(expected, Outcome):
        return expected
    torch._dynamo.reset()
    with fixed_costs():
        run = Budgeted(sample.function, device)
        texts = [f"at 1x, {text}" for text in differences(run_once(sample, run.run), expected)]
        if not run.steps:
            return Outcome("skipped", "Dynamo captures nothing")
        for keep_order in (False, True):
            run.set_smallest_budget(keep_order=keep_order)
            where = "at the smallest with the order kept" if keep_order else "at the smallest"
            texts += [f"{where}, {text}" for text in differences(run_once(sample, run.run), expected)]
        left = left_bytes(sample, run)
        texts += [f"a step leaves {left} bytes on the device"] if left else []
        reruns = run.rerun_count()
    if texts and sample.operator not in CHANGED_BY_TRACING:
        torch._dynamo.reset()
        traced = differences(run_once(sample, torch.compile(sample.function, backend="aot_eager")), expected)
        texts.append("aot_eager differs too" if traced else "aot_eager does not differ")
    return Outcome("failed" if texts else "passed", "; ".join(texts), reruns)


def left_bytes(sample: Sample, run: Budgeted) -> int:
    """Returns the memory that a step leaves on the device after its results are freed."""
    meter = meter_of(run.device)
    before = meter.current_bytes()
    run_once(sample, run.run)
    if meter.current_bytes() != before:
        gc.collect()
    return meter.current_bytes() - before


def check_inductor(sample: Sample, device: str, budgets: Sequence[str] = ("1x", "smallest")) -> Outcome:
    """Compares headroom's Inductor kernels with plain PyTorch, at the budget 1x and at the smallest one."""
    expected = expected_of(sample)
    if isinstance(expected, Outcome):
        return expected
    texts = []
    with fixed_costs(), torch._inductor.config.patch(fallback_random=True):
        for budget in budgets:
            torch._dynamo.reset()
            ran = run_inductor(sample, budget)
            texts += [f"at {budget}, {text}" for text in far_differences(ran, expected)]
        if texts:
            torch._dynamo.reset()
            compiled = run_once(sample, torch.compile(sample.function, dynamic=False))
            far = far_differences(compiled, expected)
            texts.append("torch.compile differs too" if far else "torch.compile does not differ")
    return Outcome("failed" if texts else "passed", "; ".join(texts))


def run_inductor(sample: Sample, budget: str) -> Ran:
    """Runs a step with the budget 1x, or with the smallest, which the error for a smaller one names."""
    if budget == "1x":
        return run_once(sample, headroom.compile(sample.function, "1x", kernels="inductor", cache=False))
    smallest: int | str = "0.000001x"
    for _ in range(4):
        try:
            return run_once(sample, headroom.compile(sample.function, smallest, kernels="inductor", cache=False))
        except headroom.BudgetError as error:
            smallest = error.smallest_budget_bytes
            torch._dynamo.reset()
    raise AssertionError(f"the smallest budget that errors name, at last {smallest}, does not do")


def far_differences(actual: Ran, expected: Ran) -> list[str]:
    """Describes what is not close by the tolerances of torch.testing, scaled by the maximum of each tensor."""
    texts = []
    for name, tensor in expected.tensors.items():
        other = actual.tensors[name]
        if tensor is None or other is None:
            texts += [f"{name}: {text}" for text in [difference(other, tensor)] if text]
            continue
        finite = tensor[tensor.isfinite()] if tensor.is_floating_point() or tensor.is_complex() else tensor[:0]
        scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
        exact = not is_differentiable(tensor)
        rtol, atol = (0.0, 0.0) if exact else (1e-4, 1e-5 * scale)
        try:
            torch.testing.assert_close(other, tensor, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            texts.append(f"{name}: {' '.join(str(error).split())}")
    return texts


CHECKS = {"eager": check_eager, "inductor": check_inductor}


def check(sample: Sample, kernels: str, device: str) -> Outcome:
    """Returns the outcome of one sample. Errors are failures, except those that a table expects."""
    text = EXPECTED_UNSUPPORTED.get(sample.operator)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = CHECKS[kernels](sample, device)
    except Exception as error:
        if text is not None and text in str(error):
            return Outcome("skipped", f"Unsupported: {text}")
        return Outcome("failed", " ".join("".join(traceback.format_exception_only(error)).split())[:600])
    if text is not None and outcome.verdict == "passed":
        return Outcome("failed", f"works, though it is expected to be refused with: {text}")
    return outcome


@dataclass
class Unit:
    """The samples of one operator in one type, or of one module."""

    name: str
    samples: Callable[[int, int], Iterator[Sample]]  # by their count and a seed


def all_units(device: str) -> list[Unit]:
    """Returns every differentiable operator in float32 and complex64, and every module, sorted by name."""
    units = [
        Unit(f"{op.full_name} {name_of(dtype)}", functools.partial(operator_samples, op, dtype, device))
        for op in op_db
        for dtype in (torch.float32, torch.complex64)
        if op.supports_autograd
        and dtype in op.supported_dtypes(device)
        and dtype in op.supported_backward_dtypes(device)
    ]
    units += [Unit(f"{info.name} module", functools.partial(module_samples, info, device)) for info in module_db]
    return sorted(units, key=lambda unit: unit.name)


def part_of(units: list[Unit], part: int, parts: int) -> list[Unit]:
    """Returns every `parts`-th unit, so that each part has units of every family of names."""
    return units[part - 1 :: parts]


class Tally:
    """Counts outcomes, and prints failures as they occur."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.verdicts: collections.Counter[str] = collections.Counter()
        self.reasons: collections.Counter[str] = collections.Counter()
        self.reran = 0

    def add(self, sample: Sample, outcome: Outcome, seconds: float) -> None:
        self.verdicts[outcome.verdict] += 1
        self.reran += outcome.reruns > 0
        if outcome.verdict == "skipped":
            self.reasons[outcome.reason] += 1
        if outcome.verdict == "failed" or self.arguments.verbose:
            print(f"{outcome.verdict} {sample.name} ({seconds:.1f} s): {outcome.reason}", flush=True)
        if outcome.verdict == "failed":
            print(f"  repeat: {repeat_command(sample, self.arguments)}", flush=True)

    def close(self) -> int:
        for reason, count in sorted(self.reasons.items()):
            print(f"{count} skipped: {reason}")
        print(f"{self.reran} reran operators at the smallest budget")
        passed, failed, skipped = (self.verdicts[name] for name in ("passed", "failed", "skipped"))
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
        return 1 if failed else 0


def repeat_command(sample: Sample, arguments: argparse.Namespace) -> str:
    options = f"--seed {arguments.seed} --samples {arguments.samples} --kernels {arguments.kernels}"
    return f"python tests/python/operator_samples.py {options} --device {arguments.device} --only '{sample.name}'"


def run_units(units: list[Unit], arguments: argparse.Namespace) -> Tally:
    tally = Tally(arguments)
    for unit in units:
        for sample in unit.samples(arguments.samples, arguments.seed):
            if not arguments.only or {unit.name, sample.name, sample.operator} & set(arguments.only):
                start = time.perf_counter()
                tally.add(sample, check(sample, arguments.kernels, arguments.device), time.perf_counter() - start)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="chooses the samples of each operator")
    parser.add_argument("--samples", type=int, default=2, help="of each operator, at most")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="the I-th of N parts")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of operators, units or samples")
    parser.add_argument("--kernels", choices=sorted(CHECKS), default="eager")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--verbose", action="store_true", help="print every sample")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, arguments.part.split("/"))
    units = part_of(all_units(arguments.device), part, parts)
    if arguments.only:
        operators = {name.split()[0] for name in arguments.only}
        units = [unit for unit in units if unit.name.split()[0] in operators]
    return run_units(units, arguments).close()


if __name__ == "__main__":
    sys.exit(main())
