"""Peak against step time of one model, by PyTorch's means and by ours, in one run.

Usage: compile_curve.py MODEL POINT...
MODEL is resnet50 (batch 128) or gpt2 (medium, 8 x 1024, bf16 autocast); with --small a small one.
A POINT is
  plain                eager PyTorch                      checkpoint            eager, torch.utils.checkpoint by block
  aot                  torch.compile, backend aot_eager   compile+checkpoint    torch.compile, checkpoints by block
  torch:0.5            torch.compile with activation_memory_budget 0.5
  eager:BUDGET         headroom, kernels="eager"          inductor:BUDGET       headroom, kernels="inductor"
BUDGET is bytes that the step may add, such as 4GiB, or a share of the simulated store-all, such as 0.5x. Peaks are the
largest allocated less what is allocated before the step; times are medians.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import headroom
from headroom import _C, inductor

GIB = 1 << 30
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Checkpointed(nn.Module):
    """A block that is run again in backward."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.block, *args, use_reentrant=False, **kwargs)


def make_resnet50(small: bool) -> tuple[nn.Module, Callable[[], torch.Tensor], Callable[[], None]]:
    from torchvision.models import resnet18, resnet50

    model = (resnet18() if small else resnet50()).to(DEVICE)
    images = torch.randn(4 if small else 128, 3, 224, 224, device=DEVICE)
    labels = torch.randint(1000, (images.shape[0],), device=DEVICE)

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model(images), labels)

    def wrap() -> None:
        for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
            for name, block in list(layer.named_children()):
                setattr(layer, name, Checkpointed(block))

    return model, loss, wrap


def make_gpt2(small: bool) -> tuple[nn.Module, Callable[[], torch.Tensor], Callable[[], None]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    size = {"n_layer": 2, "n_embd": 64, "n_head": 2} if small else {"n_layer": 24, "n_embd": 1024, "n_head": 16}
    model = GPT2LMHeadModel(GPT2Config(**size, use_cache=False)).to(DEVICE)
    tokens = torch.randint(50257, (2, 64) if small else (8, 1024), device=DEVICE)

    def loss() -> torch.Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            logits = model(input_ids=tokens).logits
            return functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))

    def wrap() -> None:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    return model, loss, wrap


MODELS = {"resnet50": make_resnet50, "gpt2": make_gpt2}


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def measure(name: str, small: bool, point: str, turns: int) -> None:
    torch._dynamo.reset()
    gc.collect()
    torch.manual_seed(0)
    model, loss, wrap = MODELS[name](small)
    meter = headroom.aot.meter_of(DEVICE)
    kind, _, value = point.partition(":")
    found: list[inductor.Chosen] = []
    if "checkpoint" in kind:
        wrap()
    run: Callable[[], torch.Tensor] = loss
    if kind == "aot":
        run = torch.compile(loss, backend="aot_eager", dynamic=False)
    elif kind == "compile+checkpoint":
        run = torch.compile(loss, dynamic=False)
    elif kind == "torch":
        torch._functorch.config.activation_memory_budget = float(value)
        run = torch.compile(loss, dynamic=False)
    elif kind in ("eager", "inductor"):
        budget = value if value.endswith("x") else _C.parse_bytes(value) + meter.current_bytes()
        run = headroom.compile(loss, budget, kernels=kind, on_plan=found.append)
    times, peak = [], 0
    first_s = 0.0
    for turn in range(turns + 3):
        model.zero_grad()
        synchronize()
        before = meter.current_bytes()
        meter.reset_peak()
        start = time.perf_counter()
        result = run()
        result.backward()
        synchronize()
        elapsed = time.perf_counter() - start
        if turn == 0:
            first_s = elapsed
        if turn >= 3:
            times.append(elapsed)
            peak = max(peak, meter.peak_bytes() - before)
        del result
    torch._functorch.config.activation_memory_budget = 1.0
    note = ""
    for one in found:
        if one.partitioner is not None and one.partitioner.step is not None:
            simulated = one.partitioner.simulated_bytes - one.partitioner.resident_bytes
            note += f"  simulated {simulated / GIB:.2f}, tried {one.added_bytes / GIB:.2f}, {one.trials} compiled, scale {one.partitioner.scale:.2f}, {one.partitioner.step.graph.op_count()} ops"
    print(f"{name} {point:22} {peak / GIB:6.2f} GiB {1e3 * statistics.median(times):8.1f} ms  first {first_s:.0f} s{note}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("points", nargs="+")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    for point in options.points:
        try:
            measure(options.model, options.small, point, options.turns)
        except Exception as error:
            print(f"{options.model} {point:22} {type(error).__name__}: {str(error)[:600]}", flush=True)


if __name__ == "__main__":
    main()
