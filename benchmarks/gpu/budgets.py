"""Trains real models within budgets and compares every step's peak with its budget, and its time with plain PyTorch.

    python benchmarks/gpu/budgets.py [MODEL ...] [--kernels eager inductor] [--budgets 1x 0.5x least] [--jobs 1]

Each model and kind of kernels is a process of its own, `--jobs` of them at a time; times are comparable with one job
only. The loss is inside the compiled function and AdamW updates the parameters, so its state appears after the first
step. A budget is in bytes: what is on the device before a step, AdamW's state included, and a share of what a step of
plain PyTorch adds (1x: 1 % more than that), or the smallest that an error names. With Inductor's kernels plain is
torch.compile. Prints a line for each budget: by how much steps exceeded it, the prediction's error, and memory and time
as multiples of plain PyTorch's. Exits with 1 where a step exceeds its budget. `--first-call` prints how long first
calls take on a cold cost cache instead, beside backend aot_eager's.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Loss = Callable[[], torch.Tensor]

STEPS = 5
TIMED_STEPS = 8
TIMED_ROUNDS = 5


def image_loss(model: nn.Module, device: str, batch: int, size: int) -> tuple[nn.Module, Loss]:
    images, labels = torch.randn(batch, 3, size, size, device=device), torch.randint(10, (batch,), device=device)
    return _loss_of(model, lambda model, x, y: functional.cross_entropy(model(x), y), device, (images, labels))


def segmentation_loss(model: nn.Module, device: str, batch: int, size: int) -> tuple[nn.Module, Loss]:
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.randint(10, (batch, size, size), device=device)
    return _loss_of(model, lambda model, x, y: functional.cross_entropy(model(x)["out"], y), device, (images, labels))


def text_loss(
    model: nn.Module, device: str, batch: int, length: int, *, padded: bool = False
) -> tuple[nn.Module, Loss]:
    words = torch.randint(1000, (batch, length), device=device)
    given = [words]
    if padded:
        lengths = torch.linspace(length // 2, length, batch, device=device)
        given.append((torch.arange(length, device=device) < lengths[:, None]).long())

    decoder = {"decoder_input_ids": words} if model.config.is_encoder_decoder else {}

    def loss(model: nn.Module, words: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        with torch.autocast(words.device.type, torch.bfloat16):
            logits = model(input_ids=words, attention_mask=mask, **decoder).logits
            return functional.cross_entropy(logits.flatten(0, 1), words.flatten())

    return _loss_of(model, loss, device, given)


def _loss_of(
    model: nn.Module, loss: Callable[..., torch.Tensor], device: str, inputs: Any
) -> tuple[nn.Module, Callable[..., Any]]:
    model = model.to(device).train()
    return model, (lambda *given: loss(model, *given), tuple(inputs))


def make(name: str, device: str, *, small: bool) -> tuple[nn.Module, Any]:
    """Returns a model and its loss function with arguments."""
    if name in IMAGE_MODELS:
        import torchvision

        kind, batch, size = IMAGE_MODELS[name]
        if kind.startswith("segmentation."):
            models = torchvision.models.segmentation
            model = getattr(models, kind.split(".")[1])(num_classes=10, weights=None, weights_backbone=None)
            return segmentation_loss(model, device, 2 if small else batch, 64 if small else size)
        model = getattr(torchvision.models, kind)(num_classes=10, weights=None)
        return image_loss(model, device, 2 if small else batch, size if kind.startswith("vit") or not small else 64)
    import transformers

    make_model, batch, length = TEXT_MODELS[name.removesuffix("+mask")]
    torch.manual_seed(0)
    model = make_model(transformers, 2 if small else 1)
    return text_loss(model, device, 2 if small else batch, 64 if small else length, padded=name.endswith("+mask"))


IMAGE_MODELS = {
    "vit": ("vit_l_16", 32, 224),
    "convnext": ("convnext_base", 32, 224),
    "swin": ("swin_b", 32, 224),
    "efficientnet": ("efficientnet_b4", 32, 224),
    "densenet": ("densenet121", 64, 224),
    "deeplab": ("segmentation.deeplabv3_resnet50", 8, 320),
}
TEXT_MODELS: dict[str, tuple[Callable[[Any, int], nn.Module], int, int]] = {
    "bert": (
        lambda t, part: t.BertForMaskedLM(
            t.BertConfig(
                hidden_size=1024 // part, num_hidden_layers=24 // (6 * part - 5), num_attention_heads=16,
                intermediate_size=4096 // part,
            )
        ),
        16,
        512,
    ),
    "roberta": (
        lambda t, part: t.RobertaForMaskedLM(
            t.RobertaConfig(max_position_embeddings=514, num_hidden_layers=12 // (6 * part - 5))
        ),
        16,
        512,
    ),
    "t5": (
        lambda t, part: t.T5ForConditionalGeneration(
            t.T5Config(
                d_model=768, d_ff=3072, num_heads=12, num_layers=12 // (6 * part - 5), decoder_start_token_id=0
            )
        ),
        8,
        512,
    ),
    "llama": (
        lambda t, part: t.LlamaForCausalLM(
            t.LlamaConfig(
                hidden_size=2048 // part, intermediate_size=5632 // part, num_hidden_layers=16 // (6 * part - 5),
                num_attention_heads=16, num_key_value_heads=8, vocab_size=32000, use_cache=False,
            )
        ),
        4,
        1024,
    ),
    "gpt2": (
        lambda t, part: t.GPT2LMHeadModel(
            t.GPT2Config(
                n_embd=1024 // part, n_layer=24 // (6 * part - 5), n_head=16, use_cache=False, bos_token_id=1,
                eos_token_id=1,
            )
        ),
        8,
        1024,
    ),
}  # fmt: skip
MODELS = ["bert", "bert+mask", "roberta", "roberta+mask", "t5", "llama", "gpt2", *IMAGE_MODELS]


class Training:
    """Steps of one model with AdamW, measured."""

    def __init__(self, model: nn.Module, run: Callable[..., torch.Tensor], inputs: tuple[Any, ...], meter: Any) -> None:
        self.model, self.run, self.inputs, self.meter = model, run, inputs, meter
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-5)

    def step(self) -> tuple[int, int]:
        """Returns the bytes before a step and its peak."""
        gc.collect()
        before = self.meter.current_bytes()
        self.meter.reset_peak()
        self.run(*self.inputs).backward()
        peak = self.meter.peak_bytes()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return before, peak

    def time_ms(self) -> float:
        """Returns what a forward and a backward take where several run in a row."""
        _synchronize()
        start = time.perf_counter()
        for _ in range(TIMED_STEPS):
            self.run(*self.inputs).backward()
            self.model.zero_grad()
        _synchronize()
        return 1000 * (time.perf_counter() - start) / TIMED_STEPS


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def smallest_budget(loss: Loss, inputs: Any, kernels: str, optimizer: torch.optim.Optimizer) -> int:
    """Returns the number that an error names."""
    import headroom

    try:
        headroom.compile(loss, 1, kernels=kernels, optimizer=optimizer)(*inputs)
    except headroom.BudgetError as error:
        return error.smallest_budget_bytes
    raise RuntimeError("a budget of one byte was accepted")


def examine(name: str, options: argparse.Namespace) -> bool:
    """Trains one model by one kind of kernels in all budgets; returns whether all were kept."""
    import headroom

    device = torch.device(options.device)
    kernels = options.kernels[0]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    model, (loss, inputs) = make(name, options.device, small=options.small)
    meter = headroom.Meter(device)
    plain = Training(model, torch.compile(loss) if kernels == "inductor" else loss, inputs, meter)
    before, peak = [plain.step() for _ in range(3)][-1]  # with the optimizer's state
    added = peak - before
    holds = True
    for budget in options.budgets:
        plain.optimizer = None  # The state of this budget's own appears after its first step.
        torch._dynamo.reset()
        gc.collect()
        training = Training(model, loss, inputs, meter)
        line = f"{name:13} {kernels:9} {budget:6}"
        planned: list[Any] = []
        try:
            if budget == "least":
                limit = smallest_budget(loss, inputs, kernels, training.optimizer)
                torch._dynamo.reset()
                gc.collect()
            else:
                share = float(budget.removesuffix("x"))
                limit = before + int(added * (1.01 if share == 1 else share))
            training.run = headroom.compile(
                loss, limit, kernels=kernels, optimizer=training.optimizer, on_plan=planned.append
            )
            steps = [training.step() for _ in range(STEPS)]
        except headroom.BudgetError as error:
            print(f"{line} REFUSED: {error}", flush=True)
            holds = False
            continue
        over = [step_peak - limit for _, step_peak in steps]
        here, peak = steps[-1]
        predicted = max(one.predicted_bytes for one in planned) + here
        holds = holds and max(over) <= 0
        text = f"{line} {'kept' if max(over) <= 0 else f'OVER by {over} bytes in steps'}, "
        text += (
            f"peak {peak / 2**30:.3f} GiB of {limit / 2**30:.3f} (predicted {100 * (predicted / peak - 1):+.3f} %), "
        )
        text += f"added {(peak - here) / added:.3f} of plain"
        if options.jobs == 1:
            plain.run(*inputs).backward()  # compiled anew after Dynamo's reset
            pairs = [(training.time_ms(), plain.time_ms()) for _ in range(TIMED_ROUNDS)]
            ratio = statistics.median(ours / other for ours, other in pairs)
            text += f", time {ratio:.3f} of {statistics.median(other for _, other in pairs):.1f} ms"
        print(f"{text}, {len(planned)} plans", flush=True)
        del training
        model.zero_grad()
    return holds


def first_call(name: str, options: argparse.Namespace) -> bool:
    """Prints what the first forward and backward take, with backend aot_eager or with a budget of headroom's."""
    model, (loss, inputs) = make(name, options.device, small=options.small)
    loss(*inputs).backward()  # so that libraries are loaded
    model.zero_grad()
    kind = options.kernels[0]
    if kind == "aot_eager":
        run = torch.compile(loss, backend="aot_eager")
    else:
        import headroom

        run = headroom.compile(loss, None if kind == "none" else kind)
    _synchronize()
    start = time.perf_counter()
    run(*inputs).backward()
    _synchronize()
    print(f"{name:13} {kind:9} first call {time.perf_counter() - start:.2f} s", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS, help=", ".join(MODELS))
    parser.add_argument("--kernels", nargs="+", default=["eager", "inductor"])
    parser.add_argument("--budgets", nargs="+", default=["1x", "0.5x", "least"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--small", action="store_true", help="small models, to try this script")
    parser.add_argument("--first-call", action="store_true")
    parser.add_argument("--timeout", type=float, default=500, help="seconds for one process")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.inside:
        work = first_call if options.first_call else examine
        return 0 if work(options.models[0], options) else 1
    kinds = ["aot_eager", "none", "1x", "0.5x"] if options.first_call else options.kernels

    def run(point: tuple[str, str]) -> int:
        name, kind = point
        command = [sys.executable, "-W", "ignore", __file__, name, "--inside", "--kernels", kind]
        command += ["--budgets", *options.budgets, "--device", options.device, "--jobs", str(options.jobs)]
        command += ["--small"] * options.small + ["--first-call"] * options.first_call
        environment = dict(os.environ)
        folder = tempfile.TemporaryDirectory() if options.first_call else None
        if folder is not None:
            environment["XDG_CACHE_HOME"] = folder.name
        try:
            done = subprocess.run(
                command, env=environment, timeout=options.timeout, stderr=subprocess.PIPE, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"{name:13} {kind:9} FAILED: more than {options.timeout:g} s", flush=True)
            return 1
        if done.returncode != 0:
            print(f"{name:13} {kind:9} FAILED: {done.stderr.strip()[-600:]}", flush=True)
        return done.returncode

    with ThreadPoolExecutor(options.jobs) as pool:
        points = [(name, kind) for kind in kinds for name in options.models]
        failures = sum(code != 0 for code in pool.map(run, points))
    print(f"{len(points) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
