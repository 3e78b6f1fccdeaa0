#!/usr/bin/env python3
"""Writes the example graph (headroom.graph/1): a training step of a small U-Net, op by op.

Three levels and a bottom, 32 to 256 channels, 3x3 convolutions, 256x256 images in batches of 8, two classes for each
pixel; fp32. Bytes are exact; times are those of the device in eager.py. Resident: weights, images, labels and the
gradient of the loss. The step's outputs: the loss and the weights' gradients.
"""

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eager import FLOAT_BYTES, INT64_BYTES, device_ns
from make_chains import add_file_options, positive, write_or_check

BATCH = 8
SIZE = 256
CHANNELS = [32, 64, 128]
BOTTOM_CHANNELS = 256
CLASSES = 2


@dataclass(frozen=True)
class Value:
    name: str
    shape: tuple[int, ...]
    bytes: int
    resident: bool


class GraphBuilder:
    """Forward ops in the order of the calls, then, by backward(), their gradients in reverse."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: list[dict[str, Any]] = []
        self.ops: list[dict[str, Any]] = []
        self.outputs: list[str] = []
        self.gradients: dict[Value, Value] = {}
        self.backward_ops: list[Callable[[], None]] = []

    def value(self, name: str, *shape: int, element_bytes: int = FLOAT_BYTES, resident: bool = False) -> Value:
        value = Value(name, shape, math.prod(shape) * element_bytes, resident)
        self.values.append({"name": name, "bytes": value.bytes} | ({"resident": True} if resident else {}))
        return value

    def op(
        self,
        name: str,
        inputs: list[Value],
        outputs: list[Value],
        *,
        phase: str = "forward",
        flops: int = 0,
        overwrites: list[Value] | None = None,
    ) -> None:
        op = {
            "name": name,
            "phase": phase,
            "inputs": [v.name for v in inputs],
            "outputs": [v.name for v in outputs],
            "time_ns": device_ns(flops, sum(v.bytes for v in inputs + outputs)),
        }
        self.ops.append(op | ({"overwrites": [v.name for v in overwrites]} if overwrites else {}))

    def layer(
        self,
        name: str,
        inputs: list[Value],
        outputs: list[Value],
        *,
        saved: list[Value],
        weights: list[Value] | None = None,
        flops: int = 0,
        in_place: bool = False,
    ) -> Value:
        """Adds an op and its backward, which reads `saved`, the weights and the gradient of the first output.

        Resident inputs (images, labels) have no gradient. Backward takes the forward's flops for each of the gradients
        that it makes. In place: the output may take the memory of the input, and in backward the gradient of the input
        that of the output's, or of what was saved.
        """
        weights = weights or []
        self.op(name, inputs + weights, outputs, flops=flops, overwrites=inputs if in_place else None)

        def backward() -> None:
            gradient = self.gradients[outputs[0]]
            differentiable = [x for x in inputs if not x.resident]
            gradients = [self.value(self._gradient_name(x), *x.shape) for x in differentiable]
            weight_gradients = [self.value(f"grad.{w.name}", *w.shape) for w in weights]
            self.outputs += [g.name for g in weight_gradients]
            self.op(
                f"{name}.backward",
                [*saved, *weights, gradient],
                gradients + weight_gradients,
                phase="backward",
                flops=flops * (len(gradients) + len(weight_gradients)),
                overwrites=[gradient, *saved] if in_place else None,
            )
            for x, part in zip(differentiable, gradients, strict=True):
                self._add_gradient(x, part)

        self.backward_ops.append(backward)
        return outputs[0]

    def _gradient_name(self, x: Value) -> str:
        return f"grad.{x.name}" if x not in self.gradients else f"grad.{x.name}.second"

    def _add_gradient(self, x: Value, part: Value) -> None:
        first = self.gradients.get(x)
        if first is None:
            self.gradients[x] = part
            return
        self.gradients[x] = self.value(f"grad.{x.name}.sum", *x.shape)
        self.op(
            f"{x.name}.add_gradients",
            [first, part],
            [self.gradients[x]],
            phase="backward",
            overwrites=[first, part],
        )

    def backward(self, loss: Value) -> None:
        self.outputs.append(loss.name)
        self.gradients[loss] = self.value(f"grad.{loss.name}", *loss.shape, resident=True)
        for op in reversed(self.backward_ops):
            op()

    def graph(self) -> dict[str, Any]:
        return {
            "format": "headroom.graph/1",
            "name": self.name,
            "values": self.values,
            "ops": self.ops,
            "outputs": self.outputs,
        }


class UNet(GraphBuilder):
    def conv(self, name: str, x: Value, channels: int, kernel: int) -> Value:
        batch, in_channels, height, width = x.shape
        weight = self.value(f"{name}.weight", channels * (in_channels * kernel * kernel + 1), resident=True)
        out = self.value(name, batch, channels, height, width)
        flops = 2 * math.prod(out.shape) * in_channels * kernel * kernel
        return self.layer(name, [x], [out], saved=[x], weights=[weight], flops=flops)

    def relu(self, name: str, x: Value) -> Value:
        out = self.value(name, *x.shape)
        return self.layer(name, [x], [out], saved=[out], in_place=True)

    def convs(self, name: str, x: Value, channels: int) -> Value:
        for i in (1, 2):
            x = self.relu(f"{name}.relu{i}", self.conv(f"{name}.conv{i}", x, channels, 3))
        return x

    def pool(self, name: str, x: Value) -> Value:
        batch, channels, height, width = x.shape
        shape = (batch, channels, height // 2, width // 2)
        indices = self.value(f"{name}.indices", *shape, element_bytes=INT64_BYTES)
        return self.layer(name, [x], [self.value(name, *shape), indices], saved=[indices])

    def up(self, name: str, x: Value, channels: int) -> Value:
        """Adds a transposed 2x2 convolution of stride 2, in which each output pixel reads one input pixel."""
        batch, in_channels, height, width = x.shape
        weight = self.value(f"{name}.weight", channels * (in_channels * 4 + 1), resident=True)
        out = self.value(name, batch, channels, 2 * height, 2 * width)
        return self.layer(name, [x], [out], saved=[x], weights=[weight], flops=2 * math.prod(out.shape) * in_channels)

    def concat(self, name: str, x: Value, y: Value) -> Value:
        batch, _, height, width = x.shape
        out = self.value(name, batch, x.shape[1] + y.shape[1], height, width)
        return self.layer(name, [x, y], [out], saved=[])

    def cross_entropy(self, logits: Value) -> Value:
        batch, _, height, width = logits.shape
        labels = self.value("labels", batch, height, width, element_bytes=INT64_BYTES, resident=True)
        logarithms = self.value("log_softmax", *logits.shape)
        self.layer("log_softmax", [logits], [logarithms], saved=[logarithms])
        total = self.value("loss.weight", 1)
        return self.layer("loss", [logarithms, labels], [self.value("loss", 1), total], saved=[labels, total])


def unet(batch: int = BATCH) -> dict[str, Any]:
    net = UNet("unet")
    x = net.value("image", batch, 3, SIZE, SIZE, resident=True)
    skips = []
    for level, channels in enumerate(CHANNELS, start=1):
        skips.append(net.convs(f"down{level}", x, channels))
        x = net.pool(f"down{level}.pool", skips[-1])
    x = net.convs("bottom", x, BOTTOM_CHANNELS)
    for level, channels in reversed(list(enumerate(CHANNELS, start=1))):
        x = net.concat(f"up{level}.concat", skips.pop(), net.up(f"up{level}.up", x, channels))
        x = net.convs(f"up{level}", x, channels)
    net.backward(net.cross_entropy(net.conv("head", x, CLASSES, 1)))
    return net.graph()


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the example graph.")
    parser.add_argument("--batch", type=positive, default=BATCH, help=f"batch size (default: {BATCH})")
    add_file_options(parser)
    options = parser.parse_args()
    return write_or_check([unet(options.batch)], options.out_dir, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
