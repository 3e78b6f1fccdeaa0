"""Peak against step time of one model, by the means of PyTorch and by headroom, in one run.

Usage: compile_curve.py MODEL POINT... [--turns N] [--exact] [--reference POINT] [--json]
MODEL is resnet50 (batch 128) or gpt2 (medium, 8 x 1024, bf16 autocast); with --small a small one.
A POINT is
  plain             eager PyTorch                       checkpoint          eager, checkpoints by block
  plain:1e-7        the same with weights that are off by that share: what rounding alone does to gradients
  aot               torch.compile, backend aot_eager    compile+checkpoint  torch.compile, checkpoints by block
  torch:0.5         torch.compile with activation_memory_budget 0.5
  eager:BUDGET      headroom, kernels="eager"           inductor:BUDGET     headroom, kernels="inductor"
  costs             measures what Inductor's calls cost, if that is not known yet, and compiles nothing
BUDGET is bytes that the step may add, such as 4GiB, a share of the simulated store-all, such as 0.5x, or least. Peaks
are the largest allocated less what is allocated before the step. Times are the median of steps, each waited for, and
what a step takes where as many run in a row. Gradients of the first step are compared with those of the first point
that has the same kernels, eager ones or Inductor's; --reference names a point that runs one step before the others, to
be compared with. With --exact all are compared with those of a plain step in higher precision (fp64, for gpt2 fp32),
with neither dropout nor TF32. With --json figures are JSON objects, and the rest goes to standard error.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import headroom
from headroom import _C

GIB = 1 << 30
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Checkpointed(nn.Module):
    """A block that reruns in backward."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.block, *args, use_reentrant=False, **kwargs)


@dataclass
class Kind:
    small: bool = False
    exact: bool = False  # whether to compare gradients
    precise: bool = False  # whether to run in higher precision, as the reference


def make_resnet50(kind: Kind) -> tuple[nn.Module, Callable[[], torch.Tensor], Callable[[], None]]:
    from torchvision.models import resnet18, resnet50

    dtype = torch.float64 if kind.precise else torch.float32
    with DEVICE:
        model = (resnet18() if kind.small else resnet50()).to(dtype)
    images = torch.randn(4 if kind.small else 128, 3, 224, 224, device=DEVICE).to(dtype)
    labels = torch.randint(1000, (images.shape[0],), device=DEVICE)

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model(images), labels)

    def wrap() -> None:
        for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
            for name, block in list(layer.named_children()):
                setattr(layer, name, Checkpointed(block))

    return model, loss, wrap


def make_gpt2(kind: Kind) -> tuple[nn.Module, Callable[[], torch.Tensor], Callable[[], None]]:
    from transformers import AttentionInterface, AttentionMaskInterface, GPT2Config, GPT2LMHeadModel
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    # When traced, transformers writes out the causal mask, and attention takes twice the time. Without a mask
    # all points have the same attention, the faster one.
    AttentionInterface.register("causal", sdpa_attention_forward)
    AttentionMaskInterface.register("causal", lambda *_, **__: None)
    size = {"n_layer": 2, "n_embd": 64, "n_head": 2} if kind.small else {"n_layer": 24, "n_embd": 1024, "n_head": 16}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0) if kind.exact else {}
    with DEVICE:
        model = GPT2LMHeadModel(GPT2Config(**size, **dropout, use_cache=False, attn_implementation="causal"))
    tokens = torch.randint(50257, (2, 64) if kind.small else (8, 1024), device=DEVICE)

    def loss() -> torch.Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=not kind.precise):
            logits = model(input_ids=tokens).logits
            return functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))

    def wrap() -> None:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    return model, loss, wrap


MODELS = {"resnet50": make_resnet50, "gpt2": make_gpt2}


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def cause(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def least_budget(loss: Callable[[], torch.Tensor], kernels: str) -> int:
    try:
        headroom.compile(loss, 1, kernels=kernels)().backward()
    except Exception as error:
        refusal = cause(error, headroom.BudgetError)
        if refusal is None:
            raise
        return refusal.smallest_budget_bytes + (1 << 20)
    raise RuntimeError("nothing was too small")


class Known(Exception):
    """Returns the costs of calls."""


def measure_costs(loss: Callable[[], torch.Tensor]) -> None:
    with mock.patch("headroom.exec.inductor.partitioner.emit", side_effect=Known):
        try:
            headroom.compile(loss, 1, kernels="inductor")()
        except Exception as error:
            if cause(error, Known) is None:
                raise


def make_run(kind: str, value: str, loss: Callable[[], torch.Tensor], plans: list[Any]) -> Callable[[], torch.Tensor]:
    if kind == "aot":
        return torch.compile(loss, backend="aot_eager", dynamic=False)
    if kind == "compile+checkpoint":
        return torch.compile(loss, dynamic=False)
    if kind == "torch":
        torch._functorch.config.activation_memory_budget = float(value)
        return torch.compile(loss, dynamic=False)
    if kind in ("eager", "inductor"):
        budget: int | str = value
        if value == "least":
            budget = least_budget(loss, kind)
        elif not value.endswith("x"):
            budget = _C.parse_bytes(value) + headroom.current_bytes(DEVICE)
        return headroom.compile(loss, budget, kernels=kind, on_plan=plans.append)
    return loss


@torch.no_grad()
def nudge(model: nn.Module, share: float) -> None:
    for parameter in model.parameters():
        parameter.mul_(1 + share * torch.randn_like(parameter))


def gradients_of(model: nn.Module) -> list[np.ndarray]:
    """Returns copies outside of torch's memory, where budgets would count them as memory outside the step."""
    return [parameter.grad.cpu().numpy().copy() for parameter in model.parameters() if parameter.grad is not None]


def difference(gradients: list[np.ndarray], expected: list[np.ndarray]) -> tuple[float, float]:
    """Returns the distance as a share of the expected norm: of all gradients, and the largest of one parameter's."""
    if all(np.array_equal(gradient, other) for gradient, other in zip(gradients, expected, strict=True)):
        return 0.0, 0.0

    def norm(gradient: np.ndarray, subtrahend: np.ndarray | float = 0.0) -> float:
        return (
            (torch.as_tensor(gradient, device=DEVICE).double() - torch.as_tensor(subtrahend, device=DEVICE))
            .norm()
            .item()
        )

    norms = [norm(gradient, other) for gradient, other in zip(gradients, expected, strict=True)]
    whole = math.hypot(*[norm(gradient) for gradient in expected])
    return math.hypot(*norms) / whole, max(norms) / whole


def is_by_inductor(kind: str) -> bool:
    return kind in ("torch", "compile+checkpoint", "inductor")


def precise_gradients(options: argparse.Namespace) -> list[np.ndarray]:
    torch.manual_seed(0)
    model, loss, _ = MODELS[options.model](Kind(options.small, exact=True, precise=True))
    loss().backward()
    return gradients_of(model)


def run_reference(options: argparse.Namespace, expected: dict[bool, list[np.ndarray]]) -> None:
    """Keeps the gradients of the reference's first step."""
    torch.manual_seed(0)
    model, loss, wrap = MODELS[options.model](Kind(options.small, options.exact))
    kind, _, value = options.reference.partition(":")
    if "checkpoint" in kind:
        wrap()
    run = make_run(kind, value, loss, [])
    torch.manual_seed(1)
    run().backward()
    synchronize()
    expected[is_by_inductor(kind)] = gradients_of(model)
    torch._functorch.config.activation_memory_budget = 1.0


def measure(point: str, options: argparse.Namespace, expected: dict[bool, list[np.ndarray]]) -> None:
    name, turns = options.model, options.turns
    torch._dynamo.reset()
    gc.collect()
    torch.manual_seed(0)
    model, loss, wrap = MODELS[name](Kind(options.small, options.exact))
    meter = headroom.budget.meter.meter_of(DEVICE)
    kind, _, value = point.partition(":")
    if "checkpoint" in kind:
        wrap()
    if kind == "plain" and value:
        nudge(model, float(value))
    if kind == "costs":
        measure_costs(loss)
        print(f"{name} {point}: known", file=sys.stderr if options.json else sys.stdout, flush=True)
        return
    plans: list[Any] = []
    run = make_run(kind, value, loss, plans)
    figures: dict[str, Any] = {"model": name, "point": point}
    times, peak = [], 0
    torch.manual_seed(1)
    for turn in range(turns + 3):
        model.zero_grad()
        synchronize()
        before = meter.current_bytes()
        meter.reset_peak()
        start = time.perf_counter()
        run().backward()
        synchronize()
        elapsed = time.perf_counter() - start
        if turn == 0:
            figures["first_s"] = elapsed
            by_inductor = is_by_inductor(kind)
            if by_inductor in expected:
                figures["off"], figures["off_in_one"] = difference(gradients_of(model), expected[by_inductor])
            else:
                expected[by_inductor] = gradients_of(model)
        if turn >= 3:
            times.append(elapsed)
            peak = max(peak, meter.peak_bytes() - before)
    start = time.perf_counter()
    for _ in range(turns):
        model.zero_grad()
        run().backward()
    synchronize()
    figures["row_ms"] = 1e3 * (time.perf_counter() - start) / turns
    figures["step_ms"] = 1e3 * statistics.median(times)
    figures["peak_bytes"] = peak
    torch._functorch.config.activation_memory_budget = 1.0
    if plans:
        last = plans[-1]
        figures |= {"predicted_bytes": last.predicted_bytes, "predicted_ns": last.time_ns}
        figures |= {"plain_ns": last.plain_time_ns, "compilations": sum(plan.compilations for plan in plans)}
    print(json.dumps(figures) if options.json else text_of(figures, kind), flush=True)


def text_of(figures: dict[str, Any], kind: str) -> str:
    text = f"{figures['model']} {figures['point']:18} {figures['peak_bytes'] / GIB:6.2f} GiB"
    text += f" {figures['step_ms']:7.1f} ms, in a row {figures['row_ms']:.1f}  first {figures['first_s']:.0f} s"
    if "off" in figures:
        off = f"off by {figures['off']:.1e}, at most {figures['off_in_one']:.1e} in one parameter"
        text += f"  gradients {off if figures['off_in_one'] else 'equal'}"
    if "predicted_bytes" in figures:
        predicted, plain_ns = figures["predicted_bytes"], figures["plain_ns"]
        text += f"  predicted {predicted / GIB:.2f} ({predicted / figures['peak_bytes'] - 1:+.1%})"
        text += f", {plain_ns / 1e6:.1f} ms {figures['predicted_ns'] / plain_ns - 1:+.1%}"
        text += f", compiled {figures['compilations']} x" if kind == "inductor" else ""
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("points", nargs="+")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--reference", metavar="POINT")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # Logs the peak of each trial of a plan with Inductor.
    stream = sys.stderr if options.json else sys.stdout
    logging.basicConfig(stream=stream, format=f"{options.model}     %(message)s")
    logging.getLogger("headroom").setLevel(logging.INFO)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not options.exact
    # Makes libraries allocate their workspaces before the first point.
    MODELS[options.model](Kind(small=True))[1]().backward()
    expected: dict[bool, list[np.ndarray]] = {}  # by whether Inductor compiles it
    if options.exact:
        expected = dict.fromkeys((False, True), precise_gradients(options))
    if options.reference:
        run_reference(options, expected)
    failed = 0
    for point in options.points:
        try:
            measure(point, options, expected)
        except Exception as error:
            failed += 1
            if options.json:
                logging.exception(point)
            else:
                print(f"{options.model} {point:22} {type(error).__name__}: {str(error)[:600]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
