"""kernels="inductor": backward reads the old contents of buffers that forward updates, as in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from inductor_steps import (  # noqa: E402
    BATCH,
    WIDTH,
    Net,
    assert_close,
    batch,
    compiled,
    each_budget,
    gradients,
    same_costs,  # noqa: F401
)

pytestmark = pytest.mark.usefixtures("alone", "same_costs")


class Remembering(torch.nn.Module):
    """Reads buffers that it then updates: a queue, a codebook, a history of maxima, and an average through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(2)
        self.register_buffer("queue", torch.randn(32, WIDTH))
        self.register_buffer("codebook", torch.randn(8, WIDTH))
        self.register_buffer("history", torch.rand(4) + 1)
        self.register_buffer("average", torch.rand(2, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (self.net(x) * self.average.clone()[1]).sin()
        scale = self.history.amax()
        x = (x / scale).tanh() * scale
        similar = (x @ self.queue.clone().t()).softmax(-1)
        x = x - (x @ self.codebook.clone().t()).softmax(-1) @ self.codebook.clone()
        with torch.no_grad():
            self.queue[: BATCH // 4].copy_(x[: BATCH // 4])
            self.codebook.mul_(0.5).add_(x[:8], alpha=0.5)
            self.history.copy_(self.history.roll(1) * 3)
            self.average[1].mul_(0.1).add_(x.mean(0))
        return similar.square().sum() + x.square().mean()


@pytest.mark.parametrize("budget", ["10x", "0.75x"])
def test_backward_reads_buffers_as_they_were(budget: str) -> None:
    plain, model = Remembering(), Remembering()
    step, _ = compiled(model, budget)
    for seed in range(2):
        inputs = [batch(seed, requires_grad=True) for _ in range(2)]
        plain(inputs[0]).backward()
        step(inputs[1]).backward()
        assert_close([inputs[1].grad, *gradients(model)], [inputs[0].grad, *gradients(plain)])
        assert_close(list(model.buffers()), list(plain.buffers()))


class _ReadsInBackward(torch.autograd.Function):
    """Its backward reads a buffer that its forward does not."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(buffer)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.saved_tensors[0], None


@each_budget
def test_a_buffer_that_only_backward_reads_is_kept(budget: str) -> None:
    buffers = [torch.rand(WIDTH) for _ in range(2)]
    buffers[1].copy_(buffers[0])
    plain, model = Net(), Net()

    def make(net: torch.nn.Module, buffer: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            result = _ReadsInBackward.apply(net(x), buffer.clone())
            buffer.fill_(3.0)
            return result

        return run

    make(plain, buffers[0])(batch()).sum().backward()
    step, _ = compiled(make(model, buffers[1]), budget)
    step(batch()).sum().backward()
    assert_close([*gradients(model), buffers[1]], [*gradients(plain), buffers[0]])
