"""Compares gradients of steps with eager kernels with those of plain PyTorch, bit for bit.

    python benchmarks/gpu/measure/gradients.py [MODEL ...] [--device cuda] [--budgets 1x 0.5x least] [--json]

Prints a line for each model and budget, and exits with 1 where gradients differ though two runs of plain PyTorch agree.
With --draws it also prints the first operator that draws other random numbers than in plain PyTorch.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import headroom


@dataclass
class Case:
    model: nn.Module
    inputs: torch.Tensor
    labels: torch.Tensor


def image_case(make: str, size: int, batch: int, **options: Any) -> Case:
    import torchvision

    inputs, labels = torch.randn(batch, 3, size, size), torch.randint(10, (batch,))
    return Case(getattr(torchvision.models, make)(num_classes=10, weights=None, **options), inputs, labels)


class Segmentation(nn.Module):
    def __init__(self, make: str) -> None:
        super().__init__()
        import torchvision

        models = torchvision.models.segmentation
        self.model = getattr(models, make)(num_classes=10, weights=None, weights_backbone=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)["out"]


def segmentation_case(make: str) -> Case:
    return Case(Segmentation(make), torch.randn(4, 3, 128, 128), torch.randint(10, (4, 128, 128)))


class Language(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        import transformers

        if kind == "bert":
            config = transformers.BertConfig(num_hidden_layers=4, vocab_size=1000)
            self.model = transformers.BertForMaskedLM(config)
        else:
            config = transformers.GPT2Config(n_layer=4, vocab_size=1000, bos_token_id=1, eos_token_id=1)
            self.model = transformers.GPT2LMHeadModel(config)
        self.options = {"use_cache": False} if kind == "gpt2" else {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=x, **self.options).logits.flatten(0, 1)


def language_case(kind: str) -> Case:
    return Case(Language(kind), torch.randint(1000, (16, 256)), torch.randint(1000, (16 * 256,)))


MODELS: dict[str, Callable[[], Case]] = {
    "bert": lambda: language_case("bert"),
    "gpt2": lambda: language_case("gpt2"),
    "deeplab": lambda: segmentation_case("deeplabv3_resnet50"),
    "fcn": lambda: segmentation_case("fcn_resnet50"),
    "convnext": lambda: image_case("convnext_tiny", 128, 16),
    "swin": lambda: image_case("swin_t", 128, 16),
    "efficientnet": lambda: image_case("efficientnet_b0", 64, 8),
    "densenet": lambda: image_case("densenet121", 64, 8, memory_efficient=False),
}


class Draws(TorchDispatchMode):
    """Lists the operators that advance a random generator, with the distance."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.draws: list[tuple[str, object]] = []

    def position(self) -> object:
        if self.device.type == "cuda":
            return torch.cuda.default_generators[self.device.index or 0].get_offset()
        return hash(torch.get_rng_state().numpy().tobytes())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.position()
        result = func(*args, **(kwargs or {}))
        after = self.position()
        if before != after:
            self.draws.append((str(func), after))
        return result


def train(case: Case, run: Callable[..., torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the loss, the gradients and the buffers after two steps from the same initial state."""
    torch.manual_seed(7)
    case.model.zero_grad()
    for _ in range(2):
        loss = run(case.inputs, case.labels)
        loss.backward()
    result = {"loss": loss.detach()}
    result |= {
        name: parameter.grad.clone() for name, parameter in case.model.named_parameters() if parameter.grad is not None
    }
    return result | {name: buffer.clone() for name, buffer in case.model.named_buffers()}


def difference(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> tuple[int, float]:
    """Returns how many tensors differ, and the largest relative error of one of them."""
    errors = [
        float((actual[name].double() - tensor.double()).norm() / tensor.double().norm().clamp_min(1e-30))
        for name, tensor in expected.items()
        if name not in actual or not torch.equal(actual[name], tensor)
    ]
    return len(errors), max(errors, default=0.0)


def first_draw_apart(case: Case, run: Callable[..., torch.Tensor], plain: Callable[..., torch.Tensor]) -> str:
    lists = []
    for function in (plain, run):
        with Draws(case.inputs.device) as mode:
            train(case, function)
        lists.append(mode.draws)
    for position, (ours, plains) in enumerate(itertools.zip_longest(lists[1], lists[0])):
        if ours is None or plains is None or ours[1] != plains[1]:
            return f"draw {position}: plain {plains}, headroom {ours}"
    return f"all {len(lists[0])} draws agree"


def train_within(
    case: Case, loss: Callable[..., torch.Tensor], budget: str, start: dict[str, torch.Tensor]
) -> tuple[str, Callable[..., torch.Tensor], dict[str, torch.Tensor]]:
    """Trains from the initial state. Raises a share that the second step, which has gradients, cannot keep."""
    share = float(budget.removesuffix("x"))
    for _ in range(8):
        torch._dynamo.reset()
        case.model.load_state_dict(start)
        run = headroom.compile(loss, f"{share:.6f}x")
        try:
            return f"{share:.4g}x", run, train(case, run)
        except headroom.BudgetError:
            share *= 1.1
    raise RuntimeError(f"no budget up to {share}x is kept")


def check(name: str, device: torch.device, options: argparse.Namespace) -> bool:
    log = sys.stderr if options.json else sys.stdout
    # Without warn_only memory-efficient attention is deterministic. Convolutional models call operators that cannot be.
    torch.use_deterministic_algorithms(True, warn_only=name not in ("bert", "gpt2"))
    torch._dynamo.reset()
    torch.manual_seed(0)
    case = MODELS[name]()
    case.model.to(device)
    case.inputs, case.labels = case.inputs.to(device), case.labels.to(device)
    start = copy.deepcopy(case.model.state_dict())

    def loss(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(case.model(inputs), labels)

    expected = train(case, loss)
    case.model.load_state_dict(start)
    repeated = difference(train(case, loss), expected)[0] == 0
    holds = True
    for asked in options.budgets:
        budget = asked
        if budget == "least":
            plan = headroom.plan(loss, case.inputs, case.labels)
            budget = f"{(plan.smallest_budget - plan.before) / (plan.plain_peak - plan.before) + 1e-3:.6f}x"
        budget, run, actual = train_within(case, loss, budget, start)
        count, error = difference(actual, expected)
        verdict = "bit-equal" if count == 0 else f"{count} of {len(expected)} tensors differ, by up to {error:.1e}"
        note = "" if repeated else "; plain PyTorch is not deterministic here"
        if options.json:
            figures = {"model": name, "asked": asked, "budget": budget, "tensors": len(expected)}
            figures |= {"different": count, "largest_difference": error, "repeatable": repeated}
            print(json.dumps(figures), flush=True)
        print(f"{name:13} {budget!s:10} {verdict}{note}", file=log, flush=True)
        if count and options.draws:
            case.model.load_state_dict(start)
            print("   ", first_draw_apart(case, run, loss), file=log, flush=True)
        holds = holds and (count == 0 or not repeated)
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budgets", nargs="+", default=["1x", "0.5x", "least"])
    parser.add_argument("--draws", action="store_true")
    parser.add_argument("--json", action="store_true", help="print figures as JSON, and the rest on standard error")
    options = parser.parse_args()
    torch.backends.cudnn.deterministic = True
    results = [check(name, torch.device(options.device), options) for name in options.models]
    log = sys.stderr if options.json else sys.stdout
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed", file=log)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
