"""Stages with state for tests of headroom.Sequential, and its comparison with plain training."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

import headroom

WIDTH = 16
BATCH = 64


class Block(nn.Module):
    """A linear layer, a layer of the test's own, and activations that plain training saves."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.linear(x).tanh().sin()).sigmoid()


class Ema(nn.Module):
    """A running mean, updated in place before it is used."""

    def __init__(self, mean: torch.Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH) if mean is None else mean)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x * (2 + self.mean)


class ReadsMean(nn.Module):
    """Reads a mean that another stage updates."""

    def __init__(self, mean: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2 + self.mean)


class Queue(nn.Module):
    """A queue of earlier means, and the position of its next row."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, WIDTH))
        self.register_buffer("next", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x + self.rows.sum(0)
        self.rows[self.next] = x.detach().mean(0)
        self.next.add_(1).remainder_(4)
        return out


class ThroughView(nn.Module):
    """Changes a buffer through a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(2 * WIDTH))
        self.part = self.state[3 : 3 + WIDTH]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part.mul_(0.5).add_(x.detach().mean(0))
        return x * (1 + self.state[3 : 3 + WIDTH])


class Unregistered(nn.Module):
    """State that is not a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.state = [torch.ones(WIDTH)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state[0].mul_(0.5).add_(x.detach().mean(0))
        return x * (1 + self.state[0])


class WritesParameter(nn.Module):
    """Normalizes its weight in place in forward, as embeddings with max_norm do."""

    def __init__(self, *, through_data: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.through_data = through_data

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weight = self.weight.data if self.through_data else self.weight
            weight.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x * self.weight


class OwnGenerator(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand(x.shape, generator=self.generator)

    def __deepcopy__(self, memo: dict) -> OwnGenerator:
        result = OwnGenerator()
        result.generator.set_state(self.generator.get_state())
        return result


def blocks(make_layer: Callable[[], nn.Module], count: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block(make_layer()) for _ in range(count)])


def batch(seed: int = 1) -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(seed))


def smallest_share(model: nn.Sequential, x: torch.Tensor) -> str:
    """Returns a little more than the smallest budget, as a share of the memory that plain training adds."""
    model = copy.deepcopy(model)
    everything = headroom.Sequential(model)
    with torch.random.fork_rng():
        everything(x)
    (planned,) = everything._plans.values()
    (chosen,) = planned.chosen.values()
    added = chosen.stages_bytes
    before = headroom._C.Meter(x.device).current_bytes()
    try:
        headroom.Sequential(model, 1)(x)
    except headroom.BudgetError as error:
        return f"{(error.smallest_budget_bytes - before) / added + 0.03:.6f}x"
    raise AssertionError("a step in one byte")


def recomputing(model: nn.Sequential, x: torch.Tensor) -> headroom.Sequential:
    """Returns the model by the plan of the smallest budget, which reruns stages. The plan for x exists already."""
    run = headroom.Sequential(model, smallest_share(model, x))
    assert max(runs_per_step(run, x)) > 1, "the plan runs nothing again"
    return run


def rerun_stage(run: headroom.Sequential, x: torch.Tensor) -> int:
    """Returns the first stage that the plan reruns."""
    return next(i for i, runs in enumerate(runs_per_step(run, x)) if runs > 1)


def runs_per_step(run: headroom.Sequential, x: torch.Tensor) -> list[int]:
    """Returns the number of runs of each stage in a step, and undoes the step."""
    state, calls = copy.deepcopy(run.model.state_dict()), [0] * len(run.model)

    def count(stage: int) -> Callable[..., None]:
        def hook(*_: object) -> None:
            calls[stage] += 1

        return hook

    handles = [stage.register_forward_hook(count(i)) for i, stage in enumerate(run.model)]
    with torch.random.fork_rng():
        out = run(x)
        torch.autograd.grad(
            out.sum(), [parameter for parameter in run.parameters() if parameter.requires_grad], allow_unused=True
        )
    for handle in handles:
        handle.remove()
    run.model.load_state_dict(state)
    return calls


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters()]


def expect_equal(actual: list, expected: list, text: str = "") -> None:
    assert len(actual) == len(expected), text
    wrong = [
        i
        for i, (tensor, reference) in enumerate(zip(actual, expected, strict=True))
        if not torch.equal(tensor, reference)
    ]
    assert wrong == [], text


def pair(
    make_layer: Callable[[], nn.Module] = nn.Identity, *, trains_input: bool = False
) -> tuple[nn.Sequential, headroom.Sequential, torch.Tensor]:
    """Returns a plain model and its copy in the smallest budget, with the same state."""
    plain, x = blocks(make_layer), batch().requires_grad_(trains_input)
    return plain, recomputing(copy.deepcopy(plain), x), x


def unless_modified(compute: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    """Returns the results, or nothing if PyTorch says that a tensor was modified."""
    try:
        return compute()
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return []
