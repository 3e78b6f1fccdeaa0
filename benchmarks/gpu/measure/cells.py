"""The networks of cells for CIFAR-10 that Feng and Huang measure: 20 cells, 36 channels, doubled by two reductions.

A cell reads the outputs of the two cells before it. Each of its states is the sum of two operations on earlier states,
where states 0 and 1 are the inputs; its output is the concatenation of some states. The lists of operations are those
of DARTS (Liu et al. 2019), NASNet-A (Zoph et al. 2018) and AmoebaNet-A (Real et al. 2019), in the form in which Liu et
al. compare them. Without drop path and auxiliary head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

CLASSES = 10
CELLS, CHANNELS = 20, 36
STEM = 3  # Multiple of the channels in the stem.


class Cells(NamedTuple):
    """The operations of normal and of reduction cells, in pairs, and the states that are concatenated."""

    normal: Sequence[tuple[str, int]]
    normal_output: Sequence[int]
    reduction: Sequence[tuple[str, int]]
    reduction_output: Sequence[int]


NETWORKS = {
    "darts-cifar": Cells(
        [("sep3", 1), ("sep3", 0), ("skip", 0), ("sep3", 1), ("skip", 0), ("sep3", 1), ("sep3", 0), ("skip", 2)],
        (2, 3, 4, 5),
        [("max", 0), ("max", 1), ("skip", 2), ("max", 0), ("max", 0), ("skip", 2), ("skip", 2), ("average", 0)],
        (2, 3, 4, 5),
    ),
    "nasnet-cifar": Cells(
        [
            ("sep5", 1), ("sep3", 0), ("sep5", 0), ("sep3", 0), ("average", 1), ("skip", 0), ("average", 0),
            ("average", 0), ("sep3", 1), ("skip", 1),
        ],
        (2, 3, 4, 5, 6),
        [
            ("sep5", 1), ("sep7", 0), ("max", 1), ("sep7", 0), ("average", 1), ("sep5", 0), ("skip", 3),
            ("average", 2), ("sep3", 2), ("max", 1),
        ],
        (4, 5, 6),
    ),
    "amoebanet-cifar": Cells(
        [
            ("average", 0), ("max", 1), ("sep3", 0), ("sep5", 2), ("sep3", 0), ("average", 3), ("sep3", 1),
            ("skip", 1), ("skip", 0), ("average", 1),
        ],
        (4, 5, 6),
        [
            ("average", 0), ("sep3", 1), ("max", 0), ("sep7", 2), ("sep7", 0), ("average", 1), ("max", 0), ("max", 1),
            ("rows", 0), ("sep3", 5),
        ],
        (3, 4, 6),
    ),
}  # fmt: skip


def _convolution(inputs: int, outputs: int, size: int = 1, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)


def _separable(channels: int, size: int, stride: int) -> nn.Module:
    """Returns two depthwise convolutions, each followed by a pointwise one."""
    layers: list[nn.Module] = []
    for step in (stride, 1):
        depthwise = _convolution(channels, channels, size, step, channels)
        layers += [nn.ReLU(), depthwise, _convolution(channels, channels), nn.BatchNorm2d(channels)]
    return nn.Sequential(*layers)


def _rows_and_columns(channels: int, stride: int) -> nn.Module:
    rows = nn.Conv2d(channels, channels, (1, 7), (1, stride), (0, 3), bias=False)
    columns = nn.Conv2d(channels, channels, (7, 1), (stride, 1), (3, 0), bias=False)
    return nn.Sequential(nn.ReLU(), rows, columns, nn.BatchNorm2d(channels))


class Halves(nn.Module):
    """Halves the image: half of the channels from the even pixels, half from the odd ones."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.even = _convolution(inputs, outputs // 2, stride=2)
        self.odd = _convolution(inputs, outputs // 2, stride=2)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x)
        return self.norm(torch.cat([self.even(x), self.odd(x[:, :, 1:, 1:])], 1))


def _operation(name: str, channels: int, stride: int) -> nn.Module:
    if name.startswith("sep"):
        return _separable(channels, int(name[3:]), stride)
    if name == "max":
        return nn.MaxPool2d(3, stride, 1)
    if name == "average":
        return nn.AvgPool2d(3, stride, 1, count_include_pad=False)
    if name == "rows":
        return _rows_and_columns(channels, stride)
    return nn.Identity() if stride == 1 else Halves(channels, channels)


def _squeeze(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.ReLU(), _convolution(inputs, outputs), nn.BatchNorm2d(outputs))


class Cell(nn.Module):
    def __init__(
        self, cells: Cells, before: int, previous: int, channels: int, *, reduces: bool, after_reduction: bool
    ) -> None:
        super().__init__()
        self.operations = cells.reduction if reduces else cells.normal
        self.output = cells.reduction_output if reduces else cells.normal_output
        self.first = Halves(before, channels) if after_reduction else _squeeze(before, channels)
        self.second = _squeeze(previous, channels)
        self.layers = nn.ModuleList(
            _operation(name, channels, 2 if reduces and state < 2 else 1) for name, state in self.operations
        )

    def forward(self, before: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        states = [self.first(before), self.second(previous)]
        for left in range(0, len(self.operations), 2):
            parts = [self.layers[index](states[self.operations[index][1]]) for index in (left, left + 1)]
            states.append(parts[0] + parts[1])
        return torch.cat([states[state] for state in self.output], 1)


class Network(nn.Module):
    def __init__(self, cells: Cells, cell_count: int, channels: int) -> None:
        super().__init__()
        before = previous = STEM * channels
        self.stem = nn.Sequential(_convolution(3, previous, 3), nn.BatchNorm2d(previous))
        self.cells = nn.ModuleList()
        after_reduction = False
        for index in range(cell_count):
            reduces = index in (cell_count // 3, 2 * cell_count // 3)
            channels *= 2 if reduces else 1
            cell = Cell(cells, before, previous, channels, reduces=reduces, after_reduction=after_reduction)
            self.cells.append(cell)
            before, previous, after_reduction = previous, channels * len(cell.output), reduces
        self.head = nn.Linear(previous, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        before = previous = self.stem(images)
        for cell in self.cells:
            before, previous = previous, cell(before, previous)
        return self.head(previous.mean((2, 3)))


def make_network(name: str, *, small: bool = False) -> nn.Module:
    return Network(NETWORKS[name], 3, 8) if small else Network(NETWORKS[name], CELLS, CHANNELS)
