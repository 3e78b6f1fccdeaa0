#!/usr/bin/env python3
"""Writes the example chains (headroom.chain/1): known networks, derived from their layers' shapes.

Images are 224x224 in batches of 32, text is 1024 tokens in batches of 8; fp32. Bytes are exact, times estimated:
eager.py says how. The layers are those of torchvision, ReLU in place; the adaptive average pools of AlexNet and VGG,
which change nothing at 224x224, are left out. Resident: weights, buffers (running statistics) and labels, and no
optimizer state.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eager import FLOAT_BYTES, INT64_BYTES, Stage, Storage, Tensor, new_tensor

IMAGE_BATCH = 32
TEXT_BATCH = 8
CLASSES = 1000

VGG_CONVS = {  # channels of the five blocks
    "vgg11": [[64], [128], [256] * 2, [512] * 2, [512] * 2],
    "vgg13": [[64] * 2, [128] * 2, [256] * 2, [512] * 2, [512] * 2],
    "vgg16": [[64] * 2, [128] * 2, [256] * 3, [512] * 3, [512] * 3],
    "vgg19": [[64] * 2, [128] * 2, [256] * 4, [512] * 4, [512] * 4],
}
RESNET50_BLOCKS = [(64, 3), (128, 4), (256, 6), (512, 3)]  # inner channels, number of blocks

Forward = Callable[[Stage, Tensor], Tensor]


class ChainBuilder:
    """A chain of stages. Without weights, neither they nor their gradients (nor labels) take memory."""

    def __init__(self, name: str, x: Tensor, label_bytes: int, *, with_weights: bool) -> None:
        self.name = name
        self.x = x
        self.input_bytes = x.storage.bytes
        self.label_bytes = label_bytes
        self.with_weights = with_weights
        self.stages: list[tuple[str, Stage]] = []

    def add(self, name: str, forward: Forward) -> None:
        stage = Stage(self.x, self.with_weights)
        self.x = forward(stage, self.x)
        self.stages.append((name, stage))

    @property
    def parameters(self) -> int:
        return sum(stage.parameters for _, stage in self.stages)

    def chain(self) -> dict[str, Any]:
        buffer_bytes = sum(stage.buffer_bytes for _, stage in self.stages)
        resident_bytes = self.parameters * FLOAT_BYTES + buffer_bytes + self.label_bytes
        last = len(self.stages) - 1
        return {
            "format": "headroom.chain/1",
            "name": self.name,
            "resident_bytes": resident_bytes if self.with_weights else 0,
            "input_bytes": self.input_bytes,
            "input_gradient_bytes": 0,
            "stages": [stage.measure(name, is_last=i == last) for i, (name, stage) in enumerate(self.stages)],
        }


def image_chain(name: str, batch: int, with_weights: bool) -> ChainBuilder:
    images = new_tensor(batch, 3, 224, 224)
    images.needs_gradient = False
    return ChainBuilder(name, images, batch * INT64_BYTES, with_weights=with_weights)


def conv_relu(channels: int, kernel: int, stride: int = 1, padding: int = 0) -> Forward:
    return lambda s, x: s.relu_(s.conv(x, channels, kernel, stride, padding))


def max_pool(kernel: int, stride: int) -> Forward:
    return lambda s, x: s.max_pool(x, kernel, stride)


def alexnet(batch: int = IMAGE_BATCH, *, with_weights: bool = True) -> ChainBuilder:
    chain = image_chain("alexnet", batch, with_weights)
    chain.add("conv1", conv_relu(64, 11, stride=4, padding=2))
    chain.add("pool1", max_pool(3, 2))
    chain.add("conv2", conv_relu(192, 5, padding=2))
    chain.add("pool2", max_pool(3, 2))
    chain.add("conv3", conv_relu(384, 3, padding=1))
    chain.add("conv4", conv_relu(256, 3, padding=1))
    chain.add("conv5", conv_relu(256, 3, padding=1))
    chain.add("pool5", max_pool(3, 2))
    chain.add("fc6", lambda s, x: s.relu_(s.linear(s.dropout(s.flatten(x)), 4096)))
    chain.add("fc7", lambda s, x: s.relu_(s.linear(s.dropout(x), 4096)))
    chain.add("fc8", lambda s, x: s.linear(x, CLASSES))
    chain.add("loss", Stage.cross_entropy)
    return chain


def vgg(name: str, batch: int = IMAGE_BATCH, *, with_weights: bool = True) -> ChainBuilder:
    chain = image_chain(name, batch, with_weights)
    for b, block in enumerate(VGG_CONVS[name], start=1):
        for c, channels in enumerate(block, start=1):
            chain.add(f"conv{b}_{c}", conv_relu(channels, 3, padding=1))
        chain.add(f"pool{b}", max_pool(2, 2))
    chain.add("fc6", lambda s, x: s.dropout(s.relu_(s.linear(s.flatten(x), 4096))))
    chain.add("fc7", lambda s, x: s.dropout(s.relu_(s.linear(x, 4096))))
    chain.add("fc8", lambda s, x: s.linear(x, CLASSES))
    chain.add("loss", Stage.cross_entropy)
    return chain


def conv_norm(s: Stage, x: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
    return s.batch_norm(s.conv(x, channels, kernel, stride, padding=kernel // 2, bias=False))


def bottleneck(channels: int, stride: int, downsample: bool) -> Forward:
    def forward(s: Stage, x: Tensor) -> Tensor:
        out = s.relu_(conv_norm(s, x, channels, 1))
        out = s.relu_(conv_norm(s, out, channels, 3, stride))
        out = conv_norm(s, out, 4 * channels, 1)
        skip = conv_norm(s, x, 4 * channels, 1, stride) if downsample else x
        return s.relu_(s.add_(out, skip))

    return forward


def resnet50(batch: int = IMAGE_BATCH, *, with_weights: bool = True) -> ChainBuilder:
    chain = image_chain("resnet50", batch, with_weights)
    chain.add("stem", lambda s, x: s.relu_(conv_norm(s, x, 64, 7, 2)))
    chain.add("pool", lambda s, x: s.max_pool(x, 3, 2, padding=1))
    for level, (channels, blocks) in enumerate(RESNET50_BLOCKS, start=1):
        for b in range(blocks):
            stride = 2 if level > 1 and b == 0 else 1
            chain.add(f"layer{level}.{b}", bottleneck(channels, stride, downsample=b == 0))
    chain.add("fc", lambda s, x: s.linear(s.average(x), CLASSES))
    chain.add("loss", Stage.cross_entropy)
    return chain


def transformer_block(heads: int) -> Forward:
    def forward(s: Stage, x: Tensor) -> Tensor:
        width = x.shape[-1]
        attended = s.attention(s.linear(s.layer_norm(x), 3 * width), heads)
        x = s.add(x, s.linear(attended, width))
        hidden = s.gelu(s.linear(s.layer_norm(x), 4 * width))
        return s.add(x, s.linear(hidden, width))

    return forward


def gpt24(batch: int = TEXT_BATCH, *, with_weights: bool = True) -> ChainBuilder:
    """The size of GPT-2 medium, without dropout. The head shares the token table; its gradient is the head's."""
    layers, width, heads, tokens, vocabulary = 24, 1024, 16, 1024, 50257
    ids = Tensor((batch, tokens), Storage(batch * tokens * INT64_BYTES), needs_gradient=False)
    chain = ChainBuilder("gpt24", ids, label_bytes=batch * tokens * INT64_BYTES, with_weights=with_weights)
    chain.add("embedding", lambda s, x: s.embedding(x, vocabulary, width))
    for i in range(1, layers + 1):
        chain.add(f"block{i}", transformer_block(heads))
    chain.add("head", lambda s, x: s.linear(s.layer_norm(x), vocabulary, bias=False))
    chain.add("loss", Stage.cross_entropy)
    return chain


def networks(batch: int | None = None, *, with_weights: bool = True) -> list[ChainBuilder]:
    images = batch or IMAGE_BATCH
    return [
        alexnet(images, with_weights=with_weights),
        *(vgg(name, images, with_weights=with_weights) for name in VGG_CONVS),
        resnet50(images, with_weights=with_weights),
        gpt24(batch or TEXT_BATCH, with_weights=with_weights),
    ]


def to_text(document: dict[str, Any]) -> str:
    """Returns JSON with a line for each entry of a list of objects."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = ",\n".join("    " + json.dumps(entry) for entry in value)
            lines.append(f"  {json.dumps(key)}: [\n{entries}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_or_check(documents: list[dict[str, Any]], folder: Path, *, check: bool) -> int:
    """Writes NAME.json for each document, or prints to stderr which files differ. Returns an exit status."""
    differing = []
    for document in documents:
        path = folder / f"{document['name']}.json"
        text = to_text(document)
        if not check:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            differing.append(path)
    for path in differing:
        print(f"{path}: not what {Path(sys.argv[0]).name} writes", file=sys.stderr)
    return 1 if differing else 0


def add_file_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out-dir", type=Path, default=Path(__file__).parent, help="default: this script's folder")
    parser.add_argument("--check", action="store_true", help="write nothing, compare with the files that are there")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the example chains.")
    parser.add_argument(
        "--batch", type=positive, help=f"batch size (default: {IMAGE_BATCH} images, {TEXT_BATCH} texts)"
    )
    parser.add_argument("--no-weights", action="store_true", help="leave out weights, their gradients and labels")
    add_file_options(parser)
    options = parser.parse_args()
    chains = [network.chain() for network in networks(options.batch, with_weights=not options.no_weights)]
    return write_or_check(chains, options.out_dir, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
