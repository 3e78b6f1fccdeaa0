"""Trains a whole run plainly and within a budget, from the same weights on the same data.

    python benchmarks/gpu/measure/train.py gpt|resnet [--steps 1000] [--budget 0.4x] [--json]

gpt is GPT-2 (12 layers) on the bytes of this repository's files, resnet is ResNet-50 on generated images: a pattern for
each class, and noise. AdamW updates the parameters. Prints the losses of both runs, the peak of each step less what is
in use before it, and what the runs took. A share is one of what a step of plain PyTorch adds. Exits with 1 if a step
exceeds the budget.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from steps import Peak, synchronize
from torch import nn
from torch.nn import functional

import headroom

ROOT = Path(__file__).resolve().parents[3]
SUFFIXES = (".md", ".py", ".cpp", ".h")
CLASSES = 100


class Text:
    """Bytes of the repository's files, in sequences from random places."""

    def __init__(self, device: str, batch: int, length: int) -> None:
        folders = [ROOT / name for name in ("docs", "headroom", "python", "tests")]
        paths = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in SUFFIXES)
        text = b"".join(path.read_bytes() for path in paths)
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device).long()
        self.shape = batch, length

    def batch(self, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        count, length = self.shape
        starts = torch.randint(len(self.text) - length, (count, 1), generator=generator, device=self.text.device)
        return (self.text[starts + torch.arange(length, device=self.text.device)],)


class Images:
    """A smooth pattern for each class, hidden in noise."""

    def __init__(self, device: str, batch: int, size: int) -> None:
        coarse = torch.randn(CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(7)).to(device)
        self.patterns = functional.interpolate(coarse, size=(size, size), mode="bilinear")
        self.count = batch

    def batch(self, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        device, shape = self.patterns.device, self.patterns.shape[1:]
        labels = torch.randint(CLASSES, (self.count,), generator=generator, device=device)
        noise = torch.randn(self.count, *shape, generator=generator, device=device)
        return self.patterns[labels] + 2 * noise, labels


def make(name: str, device: str, *, small: bool) -> tuple[nn.Module, Callable[..., torch.Tensor], Any]:
    """Returns a model, its loss as a function of a batch, and batches."""
    torch.manual_seed(0)
    if name == "resnet":
        models = importlib.import_module("torchvision").models
        model = (models.resnet18 if small else models.resnet50)(num_classes=CLASSES)

        def image_loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(model(images), labels)

        return model.to(device), image_loss, Images(device, *((16, 64) if small else (64, 128)))
    transformers = importlib.import_module("transformers")
    size = {"n_layer": 2, "n_embd": 64, "n_head": 2} if small else {"n_layer": 12, "n_embd": 768, "n_head": 12}
    length = 64 if small else 512
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=length, use_cache=False, bos_token_id=0, eos_token_id=0, **size
    )
    model = transformers.GPT2LMHeadModel(config).to(device)

    def text_loss(words: torch.Tensor) -> torch.Tensor:
        with torch.autocast(words.device.type, torch.bfloat16):
            logits = model(input_ids=words).logits
            return functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())

    return model, text_loss, Text(device, 8 if small else 32, length)


def train(
    model: nn.Module,
    run: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Any,
    options: argparse.Namespace,
    peak: Peak,
) -> dict[str, Any]:
    """Trains a whole run and returns its figures."""
    generator = torch.Generator(options.device).manual_seed(3)
    torch.manual_seed(4)
    losses = torch.empty(options.steps, device=options.device)
    befores, peaks, ends_s = [], [], []
    model.train()
    synchronize()
    start = time.perf_counter()
    for index in range(options.steps):
        batch = batches.batch(generator)
        befores.append(peak.meter.current_bytes())
        peak.reset()
        loss = run(*batch)
        loss.backward()
        peaks.append(peak.bytes())
        optimizer.step()
        optimizer.zero_grad()
        losses[index] = loss.detach()
        ends_s.append(round(time.perf_counter() - start, 4))
    synchronize()
    return {
        "losses": [round(loss, 5) for loss in losses.tolist()],
        "peaks_bytes": peaks,
        "before_bytes": befores,
        "ends_s": ends_s,
        "whole_s": time.perf_counter() - start,
        # Without the first tenth, in which a step is compiled.
        "step_ms": 1000 * (ends_s[-1] - ends_s[options.steps // 10]) / (options.steps - 1 - options.steps // 10),
    }


def compare(options: argparse.Namespace) -> bool:
    """Trains plainly and within the budget. Returns whether the budget was kept."""
    device = options.device
    peak = Peak(headroom.Meter(torch.device(device)))
    model, loss, batches = make(options.model, device, small=options.small)
    start = copy.deepcopy({name: tensor.cpu() for name, tensor in model.state_dict().items()})
    loss(*batches.batch(torch.Generator(device).manual_seed(3))).backward()  # Loads libraries.

    def run(budget: int | None) -> dict[str, Any]:
        model.zero_grad()
        model.load_state_dict(start)
        gc.collect()
        optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate)
        step = loss if budget is None else headroom.compile(loss, budget, optimizer=optimizer)
        return {"model": options.model, **train(model, step, optimizer, batches, options, peak)}

    plain = run(None)
    before = max(plain["before_bytes"])  # With the optimizer's state.
    added = plain["peaks_bytes"][-1] - plain["before_bytes"][-1]
    tell(plain | {"run": "plain", "added_bytes": added}, options)
    limit = before + int(added * float(options.budget.removesuffix("x")))
    planned = run(limit)
    over = max(planned["peaks_bytes"]) - limit
    pairs = zip(planned["losses"], plain["losses"], strict=True)
    planned |= {"limit_bytes": limit, "over_bytes": over, "added_bytes": max(planned["peaks_bytes"][1:]) - before}
    planned["largest_difference"] = max(abs(left - right) for left, right in pairs)
    tell(planned | {"run": options.budget}, options)
    if over > 0:
        print(f"a step exceeds the budget by {over} bytes", file=sys.stderr)
    return over <= 0


def tell(figures: dict[str, Any], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(figures), flush=True)
        return
    text = f"{figures['model']} {figures['run']:6} loss {figures['losses'][0]:.3f} to {figures['losses'][-1]:.3f}"
    peak = max(figures["peaks_bytes"]) / 2**30
    print(f"{text}, peak {peak:.3f} GiB, {figures['step_ms']:.2f} ms a step, {figures['whole_s']:.1f} s", flush=True)
    if "over_bytes" in figures:
        print(f"over {figures['over_bytes']}, losses differ by up to {figures['largest_difference']:.2e}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("gpt", "resnet"))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--budget", default="0.4x", help="a share of what a step of plain PyTorch adds (0.4x)")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a small model, to try this script")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    return 0 if compare(options) else 1


if __name__ == "__main__":
    sys.exit(main())
