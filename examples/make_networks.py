#!/usr/bin/env python3
"""Writes training graphs (headroom.graph/1) of larger networks, op by op, into a folder. They are not kept here.

    examples/make_networks.py --out-dir FOLDER [resnet50 densenet121 gpt2 llama]

ResNet-50 and DenseNet-121 on 224x224 images, batch 32; a GPT-2 of 12 layers, 8 texts of 1024 tokens; a Llama-style
network of 16 layers with its norms and rotations in single pointwise ops, 4 texts of 1024 tokens. Convolutions,
normalisations, attention (which saves its output and a logarithm a row) and linear layers are one op each, as
AOTAutograd gives them; adding a residual passes its gradient on. Bytes are exact in fp32, times those of the device in
eager.py.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from make_chains import write_or_check
from make_graphs import UNet, Value

IMAGES = 32
TOKENS = 1024


class Network(UNet):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.names: set[str] = set()

    def value(self, name: str, *shape: int, **options: Any) -> Value:
        self.names.add(name)
        return super().value(name, *shape, **options)

    def conv2d(self, name: str, x: Value, channels: int, kernel: int, stride: int = 1) -> Value:
        batch, in_channels, height, width = x.shape
        weight = self.value(f"{name}.weight", channels * in_channels * kernel * kernel, resident=True)
        out = self.value(name, batch, channels, height // stride, width // stride)
        flops = 2 * math.prod(out.shape) * in_channels * kernel * kernel
        return self.layer(name, [x], [out], saved=[x], weights=[weight], flops=flops)

    def batch_norm(self, name: str, x: Value) -> Value:
        channels = x.shape[1]
        weight = self.value(f"{name}.weight", 2 * channels, resident=True)
        outputs = [self.value(name, *x.shape), self.value(f"{name}.saved", 2 * channels)]
        return self.layer(name, [x], outputs, saved=[x, outputs[1]], weights=[weight])

    def max_pool(self, name: str, x: Value) -> Value:
        return self.pool(name, x)

    def average(self, name: str, x: Value, *shape: int) -> Value:
        return self.layer(name, [x], [self.value(name, *shape)], saved=[])

    def linear(self, name: str, x: Value, features: int) -> Value:
        weight = self.value(f"{name}.weight", features, x.shape[-1], resident=True)
        out = self.value(name, *x.shape[:-1], features)
        flops = 2 * math.prod(out.shape) * x.shape[-1]
        return self.layer(name, [x], [out], saved=[x], weights=[weight], flops=flops)

    def add(self, name: str, x: Value, y: Value) -> Value:
        out = self.value(name, *x.shape)
        self.op(name, [x, y], [out], overwrites=[x, y])

        def backward() -> None:
            for part in (x, y):
                self._add_gradient(part, self.gradients[out])

        self.backward_ops.append(backward)
        return out

    def _gradient_name(self, x: Value) -> str:
        name, number = f"grad.{x.name}", 1
        while name in self.names or f"{name}.sum" in self.names:
            number += 1
            name = f"grad.{x.name}.{number}"
        return name

    def _add_gradient(self, x: Value, part: Value) -> None:
        first = self.gradients.get(x)
        if first is None:
            self.gradients[x] = part
            return
        name = f"{self._gradient_name(x)}.sum"
        self.gradients[x] = self.value(name, *x.shape)
        self.op(f"{name}.add", [first, part], [self.gradients[x]], phase="backward", overwrites=[first, part])

    def concat_all(self, name: str, parts: list[Value]) -> Value:
        batch, _, height, width = parts[0].shape
        out = self.value(name, batch, sum(part.shape[1] for part in parts), height, width)
        return self.layer(name, parts, [out], saved=[])

    def pointwise(self, name: str, inputs: list[Value], *shape: int, saved: list[Value] | None = None) -> Value:
        return self.layer(name, inputs, [self.value(name, *shape)], saved=inputs if saved is None else saved)

    def layer_norm(self, name: str, x: Value) -> Value:
        weight = self.value(f"{name}.weight", 2 * x.shape[-1], resident=True)
        rows = self.value(f"{name}.saved", 2 * math.prod(x.shape[:-1]))
        return self.layer(name, [x], [self.value(name, *x.shape), rows], saved=[x, rows], weights=[weight])

    def attention(self, name: str, parts: list[Value], heads: int) -> Value:
        batch, tokens, width = (
            parts[0].shape[0],
            parts[0].shape[1],
            parts[-1].shape[-1] // (3 if len(parts) == 1 else 1),
        )
        out = self.value(name, batch, tokens, width)
        rows = self.value(f"{name}.rows", batch * heads * tokens)
        flops = 4 * batch * tokens * tokens * width
        return self.layer(name, parts, [out, rows], saved=[*parts, out, rows], flops=flops)

    def classify(self, logits: Value) -> Value:
        labels = self.value("labels", logits.shape[0] * math.prod(logits.shape[1:-1]), element_bytes=8, resident=True)
        logarithms = self.value("log_softmax", *logits.shape)
        self.layer("log_softmax", [logits], [logarithms], saved=[logarithms])
        total = self.value("loss.weight", 1)
        return self.layer("loss", [logarithms, labels], [self.value("loss", 1), total], saved=[labels, total])


def resnet50(batch: int = IMAGES) -> dict[str, Any]:
    net = Network("resnet50-ops")

    def unit(name: str, x: Value, channels: int, kernel: int, stride: int = 1) -> Value:
        return net.batch_norm(f"{name}.norm", net.conv2d(f"{name}.conv", x, channels, kernel, stride))

    x = net.value("image", batch, 3, 224, 224, resident=True)
    x = net.max_pool("pool", net.relu("stem.relu", unit("stem", x, 64, 7, 2)))
    for stage, (channels, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)], start=1):
        for block in range(1, blocks + 1):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            skip = unit(f"{name}.skip", x, 4 * channels, 1, stride) if block == 1 else x
            y = net.relu(f"{name}.relu1", unit(f"{name}.1", x, channels, 1))
            y = net.relu(f"{name}.relu2", unit(f"{name}.2", y, channels, 3, stride))
            x = net.relu(f"{name}.relu3", net.add(f"{name}.add", unit(f"{name}.3", y, 4 * channels, 1), skip))
    net.backward(net.classify(net.linear("head", net.average("average", x, batch, 2048), 1000)))
    return net.graph()


def densenet121(batch: int = IMAGES) -> dict[str, Any]:
    net = Network("densenet121-ops")

    def unit(name: str, x: Value, channels: int, kernel: int) -> Value:
        return net.conv2d(f"{name}.conv", net.relu(f"{name}.relu", net.batch_norm(f"{name}.norm", x)), channels, kernel)

    x = net.value("image", batch, 3, 224, 224, resident=True)
    x = net.relu("stem.relu", net.batch_norm("stem.norm", net.conv2d("stem.conv", x, 64, 7, 2)))
    x = net.max_pool("pool", x)
    for block, layers in enumerate([6, 12, 24, 16], start=1):
        features = [x]
        for layer in range(1, layers + 1):
            name = f"dense{block}.{layer}"
            joined = net.concat_all(f"{name}.concat", features) if len(features) > 1 else x
            features.append(unit(f"{name}.2", unit(f"{name}.1", joined, 128, 1), 32, 3))
        x = net.concat_all(f"dense{block}.concat", features)
        if block < 4:
            y = unit(f"transition{block}", x, x.shape[1] // 2, 1)
            x = net.average(f"transition{block}.pool", y, batch, y.shape[1], y.shape[2] // 2, y.shape[3] // 2)
    x = net.relu("head.relu", net.batch_norm("head.norm", x))
    net.backward(net.classify(net.linear("head", net.average("average", x, batch, x.shape[1]), 1000)))
    return net.graph()


def gpt2(layers: int = 12, batch: int = 8, width: int = 768) -> dict[str, Any]:
    net = Network("gpt2-ops")
    tokens = net.value("tokens", batch, TOKENS, element_bytes=8, resident=True)
    table = net.value("embedding.weight", 50257, width, resident=True)
    x = net.layer(
        "embedding", [tokens], [net.value("embedding", batch, TOKENS, width)], saved=[tokens], weights=[table]
    )
    for i in range(1, layers + 1):
        name = f"block{i}"
        qkv = net.linear(f"{name}.qkv", net.layer_norm(f"{name}.norm1", x), 3 * width)
        y = net.linear(f"{name}.out", net.attention(f"{name}.attention", [qkv], 12), width)
        x = net.add(f"{name}.add1", x, y)
        y = net.linear(f"{name}.up", net.layer_norm(f"{name}.norm2", x), 4 * width)
        y = net.linear(f"{name}.down", net.pointwise(f"{name}.gelu", [y], *y.shape), width)
        x = net.add(f"{name}.add2", x, y)
    net.backward(net.classify(net.linear("head", net.layer_norm("norm", x), 50257)))
    return net.graph()


def llama(layers: int = 16, batch: int = 4, width: int = 2048) -> dict[str, Any]:
    net = Network("llama-ops")

    def norm(name: str, x: Value) -> Value:
        rows = (*x.shape[:-1], 1)
        square = net.pointwise(f"{name}.square", [x], *x.shape)
        mean = net.pointwise(f"{name}.mean", [square], *rows, saved=[])
        root = net.pointwise(f"{name}.rsqrt", [mean], *rows)
        scaled = net.pointwise(f"{name}.scale", [x, root], *x.shape)
        weight = net.value(f"{name}.weight", width, resident=True)
        out = net.value(name, *x.shape)
        return net.layer(name, [scaled], [out], saved=[scaled], weights=[weight])

    def rotate(name: str, x: Value) -> Value:
        turned = net.pointwise(f"{name}.turned", [x], *x.shape, saved=[])
        cosine = net.pointwise(f"{name}.cos", [x], *x.shape, saved=[])
        sine = net.pointwise(f"{name}.sin", [turned], *x.shape, saved=[])
        return net.add(name, cosine, sine)

    tokens = net.value("tokens", batch, TOKENS, element_bytes=8, resident=True)
    table = net.value("embedding.weight", 32000, width, resident=True)
    x = net.layer(
        "embedding", [tokens], [net.value("embedding", batch, TOKENS, width)], saved=[tokens], weights=[table]
    )
    for i in range(1, layers + 1):
        name = f"block{i}"
        y = norm(f"{name}.norm1", x)
        q = rotate(f"{name}.q.rotated", net.linear(f"{name}.q", y, width))
        k = rotate(f"{name}.k.rotated", net.linear(f"{name}.k", y, width))
        v = net.linear(f"{name}.v", y, width)
        y = net.linear(f"{name}.out", net.attention(f"{name}.attention", [q, k, v], 16), width)
        x = net.add(f"{name}.add1", x, y)
        y = norm(f"{name}.norm2", x)
        gate = net.linear(f"{name}.gate", y, 8 * width // 3)
        up = net.linear(f"{name}.up", y, 8 * width // 3)
        sigmoid = net.pointwise(f"{name}.sigmoid", [gate], *gate.shape)
        silu = net.pointwise(f"{name}.silu", [gate, sigmoid], *gate.shape)
        product = net.pointwise(f"{name}.product", [silu, up], *up.shape)
        x = net.add(f"{name}.add2", x, net.linear(f"{name}.down", product, width))
    net.backward(net.classify(net.linear("head", norm("norm", x), 32000)))
    return net.graph()


NETWORKS = {"resnet50": resnet50, "densenet121": densenet121, "gpt2": gpt2, "llama": llama}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write op-level training graphs of larger networks.")
    parser.add_argument("names", nargs="*", choices=[*NETWORKS, []], help="default: all")
    parser.add_argument("--out-dir", type=Path, required=True)
    parser.add_argument("--layers", type=int, help="of the transformers")
    options = parser.parse_args()
    options.out_dir.mkdir(parents=True, exist_ok=True)
    documents = []
    for name in options.names or NETWORKS:
        has_layers = options.layers is not None and name in ("gpt2", "llama")
        documents.append(NETWORKS[name](options.layers) if has_layers else NETWORKS[name]())
        if has_layers:
            documents[-1]["name"] += f"-{options.layers}"
    return write_or_check(documents, options.out_dir, check=False)


if __name__ == "__main__":
    sys.exit(main())
