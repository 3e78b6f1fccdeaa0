#!/usr/bin/env python3
"""Writes the training graphs of five networks, captured from PyTorch with measured costs, as files of `headroom`:

    PYTHONPATH=build/python benchmarks/capture_graphs.py [FOLDER]        (default: build/graphs)

ResNet-50, DenseNet-121, a U-Net, GPT-2 with 12 layers and a Llama with 12: all layers, at batches, images and (of the
last two) widths small enough that measuring every kind of operator takes about a minute in all on two cores. Files that
are there already are left as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import headroom

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))
from training_models import UNet


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv(inputs, width, 1), conv(width, width, 3, stride)
        self.third = conv(width, 4 * width, 1)
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else conv(inputs, 4 * width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first(x), inplace=True)
        y = self.third(functional.relu(self.second(y), inplace=True))
        return functional.relu(y + self.shortcut(x), inplace=True)


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if i == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm, self.join = nn.BatchNorm2d(inputs), conv(inputs, 4 * growth, 1)
        self.grow = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        x = functional.relu(self.norm(torch.cat(parts, 1)), inplace=True)
        return self.grow(functional.relu(self.join(x), inplace=True))


class DenseBlock(nn.Module):
    def __init__(self, inputs: int, layers: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(inputs + growth * i, growth) for i in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x]
        for layer in self.layers:
            parts.append(layer(parts))
        return torch.cat(parts, 1)


def densenet121() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for count in (6, 12, 24, 16):
        layers.append(DenseBlock(channels, count, 32))
        channels += 32 * count
        layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        if count != 16:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class DoubleUNet(UNet):
    """Two convolutions at each level, down and up."""

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        layers = [conv(inputs, outputs, 3), nn.ReLU(inplace=True), conv(outputs, outputs, 3), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)


WORDS = 4096


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 12, "n_embd": 256, "n_head": 4, "vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"num_hidden_layers": 12, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 688}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=WORDS, use_cache=False))


def image_step(model: nn.Module, batch: int, size: int) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    inputs = [torch.randn(batch, 3, size, size), torch.randint(10, (batch,))]
    return lambda images, labels: functional.cross_entropy(model(images), labels), inputs


def text_step(model: nn.Module, batch: int, length: int) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    inputs = [torch.randint(WORDS, (batch, length)), torch.randint(WORDS, (batch * length,))]
    return lambda tokens, next_ones: functional.cross_entropy(model(tokens).logits.flatten(0, 1), next_ones), inputs


STEPS = {
    "resnet50": lambda: image_step(resnet50(), 8, 128),
    "densenet121": lambda: image_step(densenet121(), 4, 128),
    "unet": lambda: image_step(DoubleUNet(32, 5), 4, 128),
    "gpt2": lambda: text_step(gpt2(), 8, 256),
    "llama": lambda: text_step(llama(), 8, 256),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", nargs="?", default="build/graphs", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in STEPS.items():
        file = folder / f"{name}-captured.json"
        if file.exists():
            continue
        begin = time.monotonic()
        torch.manual_seed(0)
        torch._dynamo.reset()
        loss, inputs = make()
        part = file.with_suffix(".part")
        headroom.plan(loss, *inputs, cache=False).save(str(part), os.devnull)
        graph = json.loads(part.read_text()) | {"name": f"{name}-captured"}
        part.write_text(json.dumps(graph))
        part.replace(file)
        print(f"{file}: {len(graph['ops'])} ops, {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
