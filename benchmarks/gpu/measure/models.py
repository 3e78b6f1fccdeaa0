"""Models for measurements, at sizes for a GPU, each with a loss and random inputs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cells
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# A family of torchvision, the batch and the size of images. Other names are torchvision's own.
IMAGE_MODELS = {
    "vit": ("vit_l_16", 32, 224),
    "convnext": ("convnext_base", 32, 224),
    "swin": ("swin_b", 32, 224),
    "efficientnet": ("efficientnet_b4", 32, 224),
    "densenet": ("densenet121", 64, 224),
    "deeplab": ("segmentation.deeplabv3_resnet50", 8, 320),
    "resnet50": ("resnet50", 128, 224),
    "vgg19": ("vgg19", 128, 224),
}
DEFAULT_BATCH, DEFAULT_SIZE = 32, 224
SMALL_BATCH, SMALL_IMAGE, SMALL_TEXT = 4, 64, 64
SMALL_PART = 4  # The part of a text model's width and vocabulary.
WORDS = 1000  # Words that occur.
# The smallest images, at a small size, of networks that shrink them more than others do, or take only one size.
SMALL_IMAGES = {"vit_l_16": 224, "inception_v3": 96, "alexnet": 96}


@dataclass
class Work:
    """A model, and its loss as a function of inputs."""

    model: nn.Module
    loss: Callable[..., torch.Tensor]
    inputs: tuple[Any, ...]

    def run(self) -> torch.Tensor:
        return self.loss(*self.inputs)


@dataclass(frozen=True)
class Kind:
    """What is made of a model."""

    small: bool = False  # A small one, to try scripts.
    same_attention: bool = False  # Without masks that mask nothing, which transformers writes out only if it is traced.
    precise: bool = False  # In fp64, or text in fp32 without autocast.
    dropout: bool = True


def make(text: str, device: str, kind: Kind) -> Work:
    """Returns the model named by NAME[:BATCH[:SIZE]] with its loss and inputs, all on the device."""
    name, _, rest = text.partition(":")
    batch, _, size = rest.partition(":")
    make_one = make_text if name.removesuffix("+mask") in TEXT_MODELS else make_image
    torch.manual_seed(0)
    with torch.device(device):
        work = make_one(name, int(batch or 0), int(size or 0), kind)
    work.model.to(device).train()
    if not kind.dropout:
        for module in work.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    return work


def make_image(name: str, batch: int, size: int, kind: Kind) -> Work:
    family, usual_batch, usual_size = IMAGE_MODELS.get(name, (name, DEFAULT_BATCH, DEFAULT_SIZE))
    batch, size = batch or usual_batch, size or usual_size
    if family in cells.NETWORKS:
        model, classes, size = cells.make_network(family, small=kind.small), cells.CLASSES, 32
    else:
        model, classes = _torchvision_model(family)
        size = SMALL_IMAGES.get(family, SMALL_IMAGE) if kind.small else size
    batch = SMALL_BATCH if kind.small else batch
    images = torch.randn(batch, 3, size, size)
    is_segmentation = family.startswith("segmentation.")
    labels = torch.randint(classes, (batch, size, size) if is_segmentation else (batch,))
    if kind.precise:
        model, images = model.double(), images.double()

    def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = model(images)
        return functional.cross_entropy(logits["out"] if is_segmentation else logits, labels)

    return Work(model, loss, (images, labels))


def _torchvision_model(family: str) -> tuple[nn.Module, int]:
    models = importlib.import_module("torchvision").models
    if family.startswith("segmentation."):
        make_model = getattr(models.segmentation, family.removeprefix("segmentation."))
        return make_model(num_classes=10, weights=None, weights_backbone=None), 10
    options = {"aux_logits": False, "init_weights": False} if family == "inception_v3" else {}
    return getattr(models, family)(weights=None, **options), 1000


def make_text(name: str, batch: int, length: int, kind: Kind) -> Work:
    library = importlib.import_module("transformers")
    make_model, usual_batch, usual_length = TEXT_MODELS[name.removesuffix("+mask")]
    batch = SMALL_BATCH if kind.small else batch or usual_batch
    length = SMALL_TEXT if kind.small else length or usual_length
    options = {"attn_implementation": unmasked_attention()} if kind.same_attention else {}
    model = make_model(library, SMALL_PART if kind.small else 1, options)
    words = torch.randint(WORDS // (SMALL_PART if kind.small else 1), (batch, length))
    inputs = [words]
    if name.endswith("+mask"):
        lengths = torch.linspace(length // 2, length, batch)
        inputs.append((torch.arange(length) < lengths[:, None]).long())
    decoder = model.config.is_encoder_decoder
    is_causal = name.removesuffix("+mask") in ("gpt2", "llama")

    def loss(words: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        with torch.autocast(words.device.type, torch.bfloat16, enabled=not kind.precise):
            more = {"decoder_input_ids": words} if decoder else {}
            logits = model(input_ids=words, attention_mask=mask, **more).logits
            if is_causal:
                return functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())
            return functional.cross_entropy(logits.flatten(0, 1), words.flatten())

    return Work(model, loss, tuple(inputs))


def unmasked_attention() -> str:
    """Returns the name of transformers' fused attention without a mask."""
    transformers = importlib.import_module("transformers")
    attention = importlib.import_module("transformers.integrations.sdpa_attention").sdpa_attention_forward
    transformers.AttentionInterface.register("unmasked", attention)
    transformers.AttentionMaskInterface.register("unmasked", lambda *_, **__: None)
    return "unmasked"


def _layers(count: int, part: int) -> int:
    return count if part == 1 else 2


def _words(count: int, part: int) -> int:
    return count if part == 1 else WORDS // part


def _make_bert(t: Any, part: int, options: dict[str, Any]) -> nn.Module:
    config = t.BertConfig(
        hidden_size=1024 // part, num_hidden_layers=_layers(24, part), num_attention_heads=16,
        intermediate_size=4096 // part, vocab_size=_words(30522, part), **options,
    )  # fmt: skip
    return t.BertForMaskedLM(config)


def _make_roberta(t: Any, part: int, options: dict[str, Any]) -> nn.Module:
    config = t.RobertaConfig(
        hidden_size=768 // part, num_hidden_layers=_layers(12, part), intermediate_size=3072 // part,
        max_position_embeddings=514, vocab_size=_words(50265, part), **options,
    )  # fmt: skip
    return t.RobertaForMaskedLM(config)


def _make_t5(t: Any, part: int, *, use_cache: bool = False) -> nn.Module:
    """Returns T5, which Dynamo cuts into several graphs where T5 creates a cache."""
    config = t.T5Config(
        d_model=768 // part, d_ff=3072 // part, num_heads=12 // part, num_layers=_layers(12, part),
        vocab_size=_words(32128, part), decoder_start_token_id=0, use_cache=use_cache,
    )  # fmt: skip
    return t.T5ForConditionalGeneration(config)


def _make_llama(t: Any, part: int, options: dict[str, Any]) -> nn.Module:
    config = t.LlamaConfig(
        hidden_size=2048 // part, intermediate_size=5632 // part, num_hidden_layers=_layers(16, part),
        num_attention_heads=16, num_key_value_heads=8, vocab_size=_words(32000, part), use_cache=False, **options,
    )  # fmt: skip
    return t.LlamaForCausalLM(config)


def _make_gpt2(t: Any, part: int, options: dict[str, Any]) -> nn.Module:
    config = t.GPT2Config(
        n_embd=1024 // part, n_layer=_layers(24, part), n_head=16, use_cache=False, bos_token_id=1, eos_token_id=1,
        vocab_size=_words(50257, part), **options,
    )  # fmt: skip
    return t.GPT2LMHeadModel(config)


# A function from transformers, the part of the size and options, the batch, and the tokens of a sequence.
TEXT_MODELS: dict[str, tuple[Callable[[Any, int, dict[str, Any]], nn.Module], int, int]] = {
    "bert": (_make_bert, 16, 512),
    "roberta": (_make_roberta, 16, 512),
    "t5": (lambda t, part, _: _make_t5(t, part), 8, 512),
    "t5+cache": (lambda t, part, _: _make_t5(t, part, use_cache=True), 8, 512),
    "llama": (_make_llama, 4, 1024),
    "gpt2": (_make_gpt2, 8, 1024),
}


class Checkpointed(nn.Module):
    """A block that reruns in backward."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.block, *args, use_reentrant=False, **kwargs)


# Blocks of torchvision's models that are checkpointed by hand.
BLOCKS = ("BasicBlock", "Bottleneck", "CNBlock", "EncoderBlock", "SwinTransformerBlock", "MBConv", "InceptionBlock")


def checkpoint_blocks(model: nn.Module) -> None:
    """Checkpoints a model by block, as its library does it or as its users do by hand."""
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return
    if type(model).__name__ == "VGG":  # From one pooling to the next.
        model.features = nn.Sequential(*[Checkpointed(part) for part in _parts(model.features, nn.MaxPool2d)])
        return
    for module in list(model.modules()):
        if type(module).__name__ == "_DenseLayer":
            module.memory_efficient = True
        for name, child in list(module.named_children()):
            if type(child).__name__ in BLOCKS:
                setattr(module, name, Checkpointed(child))


def _parts(layers: nn.Sequential, last: type[nn.Module]) -> list[nn.Sequential]:
    """Returns the layers in groups that each end with a layer of the type."""
    parts: list[list[nn.Module]] = [[]]
    for layer in layers:
        parts[-1].append(layer)
        if isinstance(layer, last):
            parts.append([])
    return [nn.Sequential(*part) for part in parts if part]


class _Concatenated(nn.Module):
    """A dense layer, and what it reads beside its result."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer  # Called as a whole it would copy x.
        bottleneck = layer.conv1(layer.relu1(layer.norm1(x)))
        return torch.cat([x, layer.conv2(layer.relu2(layer.norm2(bottleneck)))], 1)


def sequential(model: nn.Module) -> nn.Sequential:
    """Returns a network of torchvision as a sequence of stages over the same parameters.

    A ReLU belongs to the stage before it, because it may overwrite its input, which checkpoints must not lose.
    """
    stages: list[nn.Module] = []
    for layer in _layers_of(model):
        if isinstance(layer, nn.ReLU) and stages:
            stages[-1] = nn.Sequential(stages[-1], layer)
        else:
            stages.append(layer)
    return nn.Sequential(*stages)


def _layers_of(model: nn.Module) -> list[nn.Module]:
    kind = type(model).__name__
    if kind in ("VGG", "AlexNet"):
        return [*model.features, model.avgpool, nn.Flatten(1), *model.classifier]
    if kind == "ResNet":
        blocks = [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
        stem = [model.conv1, model.bn1, model.relu, model.maxpool]
        return [*stem, *blocks, model.avgpool, nn.Flatten(1), model.fc]
    if kind == "DenseNet":
        layers: list[nn.Module] = []
        for child in model.features:
            is_block = type(child).__name__ == "_DenseBlock"
            layers += [_Concatenated(layer) for layer in child.values()] if is_block else [child]
        return [*layers, nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), model.classifier]
    if kind == "Inception3":
        *layers, head = [child for name, child in model.named_children() if name != "AuxLogits"]
        return [*layers, nn.Flatten(1), head]
    raise ValueError(f"{kind} is not known as a sequence of stages")
