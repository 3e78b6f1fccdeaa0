"""Trains real models within budgets and compares every step's peak with its budget, and its time with plain PyTorch.

    python benchmarks/gpu/budgets.py [MODEL ...] [--kernels eager inductor] [--budgets 1x 0.5x least] [--jobs 1]

Each model and kind of kernels is a process of its own, `--jobs` of them at a time. Times are taken by one process
while the others wait, of the budgets that `--timed` names. The loss is inside the compiled function and AdamW updates
the parameters, so its state appears after the first step. A budget is in bytes: what is on the device before a step,
AdamW's state included, and a share of what a step of plain PyTorch adds (1x: 1 % more than that), or the smallest that
an error names. With Inductor's kernels plain is torch.compile. Prints a line for each budget: by how much
steps exceeded it, the prediction's error, and memory and time as multiples of plain PyTorch's. The peak of the first
step includes what is run to measure and to try plans. Exits with 1 where a step exceeds its budget.

`--first-call` prints how long first calls of eager kernels take on a cold cost
cache instead, as multiples of backend aot_eager's: with the shares among `--budgets`, where `none` is no budget.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Loss = Callable[[], torch.Tensor]

STEPS = 5
# Rounds of steps that are timed, in turn with plain PyTorch's, and what one takes about.
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
    """Returns a model and its loss function with arguments, all of it made on the device."""
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
    """Returns T5, which Dynamo cuts into several graphs where it makes a cache."""
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
    """The peak of a device since the last reset, also where headroom resets it meanwhile to measure by itself."""

    def __init__(self, meter: Any) -> None:
        self.meter = meter
        self.noted_bytes = 0
        reset = self._reset = type(meter).reset_peak

        def note(other: Any) -> None:
            if torch.cuda.is_available():  # where all meters of the device have one peak
                self.noted_bytes = max(self.noted_bytes, meter.peak_bytes())
            reset(other)

        type(meter).reset_peak = note

    def reset(self) -> None:
        self._reset(self.meter)
        self.noted_bytes = 0

    def bytes(self) -> int:
        return max(self.noted_bytes, self.meter.peak_bytes())


class Training:
    """Steps of one model with AdamW, measured."""

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
        """Returns what a forward and a backward take where several run in a row."""
        _synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.run(*self.inputs).backward()
            self.model.zero_grad()
        _synchronize()
        return 1000 * (time.perf_counter() - start) / steps


def compare_times(training: Training, plain: Training) -> tuple[float, float]:
    """Returns the time of a step as a multiple of plain PyTorch's, and that in ms."""
    plain.time_ms(2)
    training.time_ms(2)
    steps = max(2, round(1000 * ROUND_S / plain.time_ms(2)))
    pairs = [(training.time_ms(steps), plain.time_ms(steps)) for _ in range(TIMED_ROUNDS)]
    return statistics.median(ours / other for ours, other in pairs), statistics.median(other for _, other in pairs)


class Turn:
    """Lets processes work at the same time, but be timed one by one while no other works."""

    def __init__(self, path: str) -> None:
        self.gate = open(path, "a")  # noqa: SIM115  Held while a process waits for its turn, so that no other begins.
        self.turn = open(f"{path}.turn", "a")  # noqa: SIM115
        self.is_held = False

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        if self.is_held:  # as where a step is planned anew, and tried, among others
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
        """Returns the function as one that works."""

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
    """Returns the number that an error names."""
    import headroom

    try:
        headroom.compile(loss, 1, kernels=kernels, optimizer=optimizer)(*inputs)
    except headroom.BudgetError as error:
        return error.smallest_budget_bytes
    raise RuntimeError("a budget of one byte was accepted")


def examine(name: str, options: argparse.Namespace) -> bool:
    """Trains one model by one kind of kernels in all budgets; returns whether all were kept."""
    from headroom.exec.inductor import kernels as headroom_kernels

    import headroom

    device = torch.device(options.device)
    kernels = options.kernels[0]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    turn = Turn(options.lock)
    model, (loss, inputs) = make(name, options.device, small=options.small)
    measured = Peak(headroom.Meter(device))
    plain = Training(model, torch.compile(loss) if kernels == "inductor" else loss, inputs, measured)
    # Inductor's compilations, which take long and leave the device alone, are not waited for.
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
        plain.optimizer = None  # The state of this budget's own appears after its first step.
        torch._dynamo.reset()
        gc.collect()
        training = Training(model, loss, inputs, measured)
        line = f"{name:13} {kernels:9} {budget:6}"
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
            print(f"{line} REFUSED {limit} bytes: {error}", flush=True)
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
        if budget in options.timed:
            with first_step():
                plain.time_ms(1)  # compiled anew after Dynamo's reset
            with turn.timing():
                ratio, plain_ms = compare_times(training, plain)
            text += f", time {ratio:.3f} of {plain_ms:.1f} ms"
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
    print(time.perf_counter() - start, flush=True)
    return True


def run_inside(name: str, kind: str, options: argparse.Namespace, lock: str) -> subprocess.CompletedProcess[str] | None:
    """Runs one model by one kind of kernels, or its first call with one kind of budget, in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, name, "--inside", "--kernels", kind, "--lock", lock]
    command += ["--budgets", *options.budgets, "--timed", *options.timed, "--device", options.device]
    command += ["--small"] * options.small + ["--first-call"] * options.first_call
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        if options.first_call:
            environment["XDG_CACHE_HOME"] = folder
        try:
            done = subprocess.run(
                command,
                env=environment,
                timeout=options.timeout,
                stdout=subprocess.PIPE if options.first_call else None,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{name:13} {kind:9} FAILED: more than {options.timeout:g} s", flush=True)
            return None
    if done.returncode != 0:
        print(f"{name:13} {kind:9} FAILED: {done.stderr.strip()[-600:]}", flush=True)
    return done


def compare_first_calls(name: str, options: argparse.Namespace, lock: str) -> bool:
    """Prints how long first calls of a model take, each in a process of its own."""
    text = f"{name:13}"
    plain_s = None
    for kind in ["aot_eager", *[budget for budget in options.budgets if budget != "least"]]:
        done = run_inside(name, kind, options, lock)
        if done is None or done.returncode != 0:
            return False
        taken = float(done.stdout.split()[-1])
        plain_s = plain_s or taken
        text += f" {kind} {taken:.2f} s" + (f" ({taken / plain_s:.2f})" if kind != "aot_eager" else "")
    print(text, flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS, help=", ".join(MODELS))
    parser.add_argument("--kernels", nargs="+", default=["eager", "inductor"])
    parser.add_argument("--budgets", nargs="+", default=["1x", "0.5x", "least"])
    parser.add_argument("--timed", nargs="*", default=["1x", "0.5x", "least"], help="budgets whose steps are timed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--small", action="store_true", help="small models, to try this script")
    parser.add_argument("--first-call", action="store_true")
    parser.add_argument("--timeout", type=float, default=500, help="seconds for one process")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--lock", help="a file by which several runs of this script take turns")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.inside:
        work = first_call if options.first_call else examine
        return 0 if work(options.models[0], options) else 1

    with tempfile.NamedTemporaryFile() as file, ThreadPoolExecutor(options.jobs) as pool:
        lock = options.lock or file.name
        if options.first_call:
            results = pool.map(lambda name: compare_first_calls(name, options, lock), options.models)
        else:
            points = [(name, kind) for kind in options.kernels for name in options.models]
            done = pool.map(lambda point: run_inside(*point, options, lock), points)
            results = (one is not None and one.returncode == 0 for one in done)
        held = list(results)
    print(f"{sum(held)} passed, {len(held) - sum(held)} failed")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
