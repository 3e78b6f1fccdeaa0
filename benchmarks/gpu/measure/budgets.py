"""Trains a real model within budgets and compares every step's peak with its budget, and its time with plain PyTorch.

    python benchmarks/gpu/measure/budgets.py MODEL [--kernels eager] [--budgets 1x 0.5x least] [--timed 1x] [--json]

The loss is inside the compiled function and AdamW updates the parameters, so its state appears after the first step. A
budget is in bytes: what is on the device before a step, AdamW's state included, and a share of what a step of plain
PyTorch adds (1x: 1 % more than that), or the smallest that an error names. With Inductor's kernels plain is
torch.compile. Prints a line for each budget: by how much steps exceeded it, the prediction's error, and memory and time
as multiples of plain PyTorch's. The peak of the first step includes what is run to measure and to try plans. Exits with
1 where a step exceeds its budget or a budget is refused.

`--first-call KIND` prints instead how long the first forward and backward take with eager kernels on a cold cost cache:
with the budget KIND, without one (`none`), or with backend aot_eager (`aot_eager`).

Several of these processes may run at the same time: those with the same `--lock` take turns where they are timed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Loss = Callable[[], torch.Tensor]

STEPS = 5
# Rounds of timed steps, alternating with plain PyTorch, and the approximate seconds of one.
TIMED_ROUNDS = 7
ROUND_S = 0.3


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
    inputs = [words]
    if padded:
        lengths = torch.linspace(length // 2, length, batch, device=device)
        inputs.append((torch.arange(length, device=device) < lengths[:, None]).long())

    decoder = {"decoder_input_ids": words} if model.config.is_encoder_decoder else {}

    def loss(model: nn.Module, words: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        with torch.autocast(words.device.type, torch.bfloat16):
            logits = model(input_ids=words, attention_mask=mask, **decoder).logits
            return functional.cross_entropy(logits.flatten(0, 1), words.flatten())

    return _loss_of(model, loss, device, inputs)


def _loss_of(
    model: nn.Module, loss: Callable[..., torch.Tensor], device: str, inputs: Any
) -> tuple[nn.Module, Callable[..., Any]]:
    model = model.to(device).train()
    return model, (lambda *batch: loss(model, *batch), tuple(inputs))


def make(name: str, device: str, *, small: bool) -> tuple[nn.Module, Any]:
    """Returns a model and its loss function with arguments, all on the device."""
    library = importlib.import_module("torchvision" if name in IMAGE_MODELS else "transformers")
    with torch.device(device):
        return _make(name, library, device, small=small)


def _make(name: str, library: Any, device: str, *, small: bool) -> tuple[nn.Module, Any]:
    if name in IMAGE_MODELS:
        kind, batch, size = IMAGE_MODELS[name]
        if kind.startswith("segmentation."):
            models = library.models.segmentation
            model = getattr(models, kind.split(".")[1])(num_classes=10, weights=None, weights_backbone=None)
            return segmentation_loss(model, device, 2 if small else batch, 64 if small else size)
        model = getattr(library.models, kind)(num_classes=10, weights=None)
        return image_loss(model, device, 2 if small else batch, size if kind.startswith("vit") or not small else 64)
    make_model, batch, length = TEXT_MODELS[name.removesuffix("+mask")]
    torch.manual_seed(0)
    model = make_model(library, 2 if small else 1)
    return text_loss(model, device, 2 if small else batch, 64 if small else length, padded=name.endswith("+mask"))


def make_t5(transformers: Any, part: int, *, use_cache: bool) -> nn.Module:
    """Returns T5, which Dynamo cuts into several graphs where T5 creates a cache."""
    layers = 12 // (6 * part - 5)
    config = transformers.T5Config(
        d_model=768, d_ff=3072, num_heads=12, num_layers=layers, decoder_start_token_id=0, use_cache=use_cache
    )
    return transformers.T5ForConditionalGeneration(config)


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
    "t5": (lambda t, part: make_t5(t, part, use_cache=False), 8, 512),
    "t5+cache": (lambda t, part: make_t5(t, part, use_cache=True), 8, 512),
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
MODELS = ["bert", "bert+mask", "roberta", "roberta+mask", "t5", "t5+cache", "llama", "gpt2", *IMAGE_MODELS]


class Peak:
    """The peak of a device since the last reset, even if headroom resets it for measurements of its own."""

    def __init__(self, meter: Any) -> None:
        self.meter = meter
        self.noted_bytes = 0
        reset = self._reset = type(meter).reset_peak

        def note(other: Any) -> None:
            if torch.cuda.is_available():  # All meters of a CUDA device share one peak.
                self.noted_bytes = max(self.noted_bytes, meter.peak_bytes())
            reset(other)

        type(meter).reset_peak = note

    def reset(self) -> None:
        self._reset(self.meter)
        self.noted_bytes = 0

    def bytes(self) -> int:
        return max(self.noted_bytes, self.meter.peak_bytes())


class Training:
    """Measured steps of one model with AdamW."""

    def __init__(self, model: nn.Module, run: Callable[..., torch.Tensor], inputs: tuple[Any, ...], peak: Peak) -> None:
        self.model, self.run, self.inputs, self.peak = model, run, inputs, peak
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-5)

    def step(self) -> tuple[int, int]:
        """Returns the bytes before a step and its peak."""
        gc.collect()
        before = self.peak.meter.current_bytes()
        self.peak.reset()
        self.run(*self.inputs).backward()
        peak = self.peak.bytes()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return before, peak

    def time_ms(self, steps: int) -> float:
        """Returns the time of a forward and a backward among several consecutive ones."""
        _synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.run(*self.inputs).backward()
            self.model.zero_grad()
        _synchronize()
        return 1000 * (time.perf_counter() - start) / steps


def compare_times(training: Training, plain: Training) -> tuple[float, float]:
    """Returns the time of a step as a multiple of plain PyTorch's, and the latter in ms."""
    plain.time_ms(2)
    training.time_ms(2)
    steps = max(2, round(1000 * ROUND_S / plain.time_ms(2)))
    pairs = [(training.time_ms(steps), plain.time_ms(steps)) for _ in range(TIMED_ROUNDS)]
    return statistics.median(ours / other for ours, other in pairs), statistics.median(other for _, other in pairs)


class Turn:
    """Lets processes work at the same time, but time one at a time while no other works."""

    def __init__(self, path: str) -> None:
        self.gate = open(path, "a")  # noqa: SIM115  Held while a process waits for its turn, so that no other begins.
        self.turn = open(f"{path}.turn", "a")  # noqa: SIM115
        self.is_held = False

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        if self.is_held:  # For example, if a step is replanned and tried among others.
            yield
            return
        with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        torch.cuda.empty_cache()
        with self._held(fcntl.LOCK_EX):
            yield
        torch.cuda.empty_cache()

    def wait_in(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function wrapped as work."""

        def run(*arguments: Any) -> Any:
            with self.working():
                return work(*arguments)

        return run

    @contextlib.contextmanager
    def _held(self, kind: int) -> Iterator[None]:
        fcntl.flock(self.gate, fcntl.LOCK_EX)
        fcntl.flock(self.turn, kind)
        fcntl.flock(self.gate, fcntl.LOCK_UN)
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False
            fcntl.flock(self.turn, fcntl.LOCK_UN)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def smallest_budget(loss: Loss, inputs: Any, kernels: str, optimizer: torch.optim.Optimizer) -> int:
    """Returns the budget that an error names."""
    import headroom

    try:
        headroom.compile(loss, 1, kernels=kernels, optimizer=optimizer)(*inputs)
    except headroom.BudgetError as error:
        return error.smallest_budget_bytes
    raise RuntimeError("a budget of one byte was accepted")


def examine(options: argparse.Namespace) -> bool:
    """Trains a model within all budgets. Returns whether all were kept."""
    from headroom.exec.inductor import kernels as headroom_kernels

    import headroom

    device = torch.device(options.device)
    name, kernels = options.model, options.kernels
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    turn = Turn(options.lock)
    model, (loss, inputs) = make(name, options.device, small=options.small)
    measured = Peak(headroom.Meter(device))
    plain = Training(model, torch.compile(loss) if kernels == "inductor" else loss, inputs, measured)
    # Does not wait for Inductor's compilations, which take long and do not use the device.
    first_step = contextlib.nullcontext if kernels == "inductor" else turn.working
    headroom_kernels.try_step = turn.wait_in(headroom_kernels.try_step)
    with first_step():
        plain.step()
    with turn.working():
        before, peak = [plain.step() for _ in range(2)][-1]  # with the optimizer's state
    torch.cuda.empty_cache()
    added = peak - before
    holds = True
    for budget in options.budgets:
        plain.optimizer = None  # The optimizer's state for this budget appears after its first step.
        torch._dynamo.reset()
        gc.collect()
        training = Training(model, loss, inputs, measured)
        figures: dict[str, Any] = {"model": name, "kernels": kernels, "budget": budget}
        planned: list[Any] = []
        try:
            if budget == "least":
                with first_step():
                    limit = smallest_budget(loss, inputs, kernels, training.optimizer)
                torch._dynamo.reset()
                gc.collect()
            else:
                share = float(budget.removesuffix("x"))
                limit = before + int(added * (1.01 if share == 1 else share))
            training.run = headroom.compile(
                loss, limit, kernels=kernels, optimizer=training.optimizer, on_plan=planned.append
            )
            with first_step():
                steps = [training.step()]
            with turn.working():
                steps += [training.step() for _ in range(STEPS - 1)]
        except headroom.BudgetError as error:
            figures |= {"refused": str(error), "limit_bytes": limit}
            tell(figures, options)
            holds = False
            continue
        over = [step_peak - limit for _, step_peak in steps]
        here, peak = steps[-1]
        predicted = max(plan.predicted_bytes for plan in planned) + here
        holds = holds and max(over) <= 0
        figures |= {"limit_bytes": limit, "over_bytes": over, "peak_bytes": peak, "predicted_bytes": predicted}
        figures |= {"added_share": (peak - here) / added, "plans": len(planned)}
        if budget in options.timed:
            with first_step():
                plain.time_ms(1)  # Recompiles after Dynamo's reset.
            with turn.timing():
                figures["time_ratio"], figures["plain_ms"] = compare_times(training, plain)
        tell(figures, options)
        del training
        model.zero_grad()
    return holds


def tell(figures: dict[str, Any], options: argparse.Namespace) -> None:
    """Prints the figures of a budget. As JSON, faults go to standard error too."""
    line = f"{figures['model']:13} {figures['kernels']:9} {figures['budget']:6}"
    limit = figures["limit_bytes"]
    if "refused" in figures:
        text, is_wrong = f"{line} REFUSED {limit} bytes: {figures['refused']}", True
    else:
        over, peak = figures["over_bytes"], figures["peak_bytes"]
        is_wrong = max(over) > 0
        text = f"{line} {f'OVER by {over} bytes in steps' if is_wrong else 'kept'}"
        text += f", peak {peak / 2**30:.3f} GiB of {limit / 2**30:.3f}"
        text += f" (predicted {100 * (figures['predicted_bytes'] / peak - 1):+.3f} %)"
        text += f", added {figures['added_share']:.3f} of plain"
        if "time_ratio" in figures:
            text += f", time {figures['time_ratio']:.3f} of {figures['plain_ms']:.1f} ms"
        text += f", {figures['plans']} plans"
    if options.json:
        print(json.dumps(figures), flush=True)
    if is_wrong or not options.json:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)


def first_call(options: argparse.Namespace) -> bool:
    """Prints the time of the first forward and backward, with backend aot_eager or with a budget of headroom."""
    model, (loss, inputs) = make(options.model, options.device, small=options.small)
    loss(*inputs).backward()  # Loads libraries.
    model.zero_grad()
    kind = options.first_call
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        if kind == "aot_eager":
            run = torch.compile(loss, backend="aot_eager")
        else:
            import headroom

            run = headroom.compile(loss, None if kind == "none" else kind)
        _synchronize()
        start = time.perf_counter()
        run(*inputs).backward()
        _synchronize()
        seconds = time.perf_counter() - start
    figures = {"model": options.model, "kind": kind, "first_s": seconds}
    print(json.dumps(figures) if options.json else f"{options.model:13} {kind:9} {seconds:.2f} s", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--kernels", choices=["eager", "inductor"], default="eager")
    parser.add_argument("--budgets", nargs="+", default=["1x", "0.5x", "least"])
    parser.add_argument("--timed", nargs="*", default=["1x", "0.5x", "least"], help="budgets whose steps are timed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a small model, to try this script")
    parser.add_argument("--first-call", metavar="KIND")
    parser.add_argument("--lock", help="a file by which processes take turns where they are timed")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        options.lock = options.lock or f"{folder}/lock"
        Path(options.lock).parent.mkdir(parents=True, exist_ok=True)
        work = first_call if options.first_call else examine
        return 0 if work(options) else 1


if __name__ == "__main__":
    sys.exit(main())
