"""kernels="inductor" with `fallback_random`: reruns draw the numbers of plain PyTorch, whatever the layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from inductor_steps import assert_close, same_costs  # noqa: E402, F401
from programs.budgets import smallest_kernel_plans  # noqa: E402
from torch.nn import functional  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone", "same_costs")


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


def images(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(2, 4, 8, 8)


class Net(torch.nn.Module):
    """Draws numbers by a function of its input, and stores much more memory afterwards."""

    def __init__(self, draw: Callable[[Net, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.draw = draw
        self.linear = torch.nn.Linear(16, 16)
        self.convolution = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(self.draw(self, x).reshape(32, 16))
        return self.norm(self.convolution(images(x))).reshape(32, 16).tanh().exp()


DRAWS = {
    # Inductor lays out the copy before the transposition as it likes.
    "dropout of a transposed tensor": lambda _, x: functional.dropout(transposed(x), 0.3),
    # Inductor makes convolutions channels-last.
    "dropout after a convolution": lambda net, x: functional.dropout(net.convolution(images(x)).relu(), 0.3),
    "numbers like a transposed tensor": lambda _, x: torch.randn_like(transposed(x).sin()) * x,
    "a transposed tensor of probabilities": lambda _, x: torch.bernoulli(transposed(x).sigmoid()) * x,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_numbers_are_drawn_in_the_traced_layout(draw: Callable[[Net, torch.Tensor], torch.Tensor]) -> None:
    def step(compile_net: Callable[[Net], Callable[..., torch.Tensor]]) -> list[torch.Tensor]:
        torch._dynamo.reset()
        net = Net(draw)
        run = compile_net(net)
        x = torch.randn(32, 16, requires_grad=True)
        torch.manual_seed(1)
        result = run(x)
        (result * torch.arange(512.0).reshape(32, 16)).sum().backward()
        return [result.detach(), x.grad, net.linear.weight.grad]

    with smallest_kernel_plans(), torch._inductor.config.patch(fallback_random=True):
        assert_close(step(lambda net: headroom.compile(net, "1x", kernels="inductor", cache=False)), step(lambda n: n))
