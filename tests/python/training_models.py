"""Small models of many kinds, and their plain training as a reference."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first(x), inplace=True)
        return functional.dropout(functional.relu(x + self.second(y), inplace=True), 0.25, self.training)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(*[ResidualBlock(16) for _ in range(4)])
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Vgg(nn.Sequential):
    def __init__(self) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for width in (16, 16, 32, 32):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers += [
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 64, 64),
            nn.ReLU(True),
            nn.Dropout(0.5),
            nn.Linear(64, 10),
        ]
        super().__init__(*layers)


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(8 + 8 * i), nn.ReLU(), nn.Conv2d(8 + 8 * i, 8, 3, padding=1)) for i in range(5)
        )
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.stem(x)]
        for layer in self.layers:
            parts.append(layer(torch.cat(parts, 1)))
        return self.head(torch.cat(parts, 1).mean((2, 3)))


class UNet(nn.Module):
    """Each level is twice as wide as the one before."""

    def __init__(self, width: int = 8, levels: int = 3) -> None:
        super().__init__()
        widths = [width << i for i in range(levels)]
        pairs = zip([3, *widths], widths, strict=False)
        self.down = nn.ModuleList(self.block(inputs, outputs) for inputs, outputs in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * size, size, 2, 2) for size in widths[-2::-1])
        self.join = nn.ModuleList(self.block(2 * size, size) for size in widths[-2::-1])
        self.head = nn.Conv2d(width, 10, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else functional.max_pool2d(x, 2))
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, skips[-2::-1], strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.head(x).mean((2, 3))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.mix(self.norms[0](x)).split(width, dim=2)
        query, key, value = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + functional.dropout(self.out(seen.transpose(1, 2).reshape(batch, tokens, width)), 0.1, self.training)
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))


class Gpt(nn.Module):
    """With the head's weights tied to the embedding's."""

    def __init__(self, layers: int = 3, width: int = 32, words: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        self.blocks = nn.Sequential(*[Attention(width, 4, causal=True) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return functional.linear(self.norm(self.blocks(x)), self.words.weight).flatten(0, 1)


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.blocks = nn.Sequential(*[Attention(32, 4, causal=False) for _ in range(3)])
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class Inception(nn.Module):
    """Two blocks of parallel branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList([self.branches(16), self.branches(32)])
        self.head = nn.Linear(32, 10)

    @staticmethod
    def branches(channels: int) -> nn.ModuleList:
        def block(inputs: int, outputs: int, size: int) -> nn.Module:
            conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

        return nn.ModuleList(
            [
                block(channels, 8, 1),
                nn.Sequential(block(channels, 6, 1), block(6, 8, 3)),
                nn.Sequential(block(channels, 4, 1), block(4, 8, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), block(channels, 8, 1)),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for branches in self.blocks:
            x = torch.cat([branch(x) for branch in branches], 1)
        return self.head(functional.dropout(x.mean((2, 3)), 0.25, self.training))


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(768, 256), nn.Tanh(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )


@dataclass
class Case:
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, torch.Tensor]]


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 3, 16, 16), torch.randint(10, (8,))


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(64, (8, 32)), torch.randint(64, (8 * 32,))


class Transformer(nn.Module):
    """A model of the package transformers with random weights, which returns the logits of a batch of tokens."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        import transformers

        self.kind = kind
        special = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
        if kind == "gpt2":
            config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16, **special)
            self.model = transformers.GPT2LMHeadModel(config)
        elif kind == "t5":
            config = transformers.T5Config(num_layers=2, d_model=32, num_heads=2, d_kv=16, d_ff=64, vocab_size=64)
            self.model = transformers.T5ForConditionalGeneration(config)
        else:
            sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
            sizes |= {"vocab_size": 64, "max_position_embeddings": 16}
            if kind == "bert":
                self.model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
            else:
                config = transformers.LlamaConfig(**sizes, attention_dropout=0.1, **special)
                self.model = transformers.LlamaForCausalLM(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        arguments = (
            {"decoder_input_ids": x} if self.kind == "t5" else {"use_cache": False} if self.kind != "bert" else {}
        )
        return self.model(input_ids=x, **arguments).logits.flatten(0, 1)


def short_texts() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(64, (4, 16)), torch.randint(64, (4 * 16,))


CASES = {
    "mlp": Case(Mlp, images),
    "vgg": Case(Vgg, images),
    "resnet": Case(ResNet, images),
    "densenet": Case(DenseNet, images),
    "inception": Case(Inception, images),
    "unet": Case(UNet, images),
    "vit": Case(Vit, images),
    "gpt": Case(Gpt, tokens),
}
BEFORE_2_13 = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13)
TRANSFORMERS = ("gpt2", "bert", "llama", "t5")
CASES |= {kind: Case(functools.partial(Transformer, kind), short_texts) for kind in TRANSFORMERS}


@dataclass
class Trained:
    losses: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)  # less the memory in use before the step
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


def loss_of(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda inputs, labels: functional.cross_entropy(model(inputs), labels)


def train(model: nn.Module, run: Callable[..., torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor) -> Trained:
    """Trains three steps. Returns the last gradients, the parameters and the buffers."""
    from headroom import _C

    meter = _C.Meter(torch.device("cpu"))
    result = Trained()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(5)
    for _ in range(3):
        optimizer.zero_grad()
        before = meter.current_bytes()
        meter.reset_peak()
        loss = run(inputs, labels)
        loss.backward()
        result.peaks.append(meter.peak_bytes() - before)
        result.losses.append(loss.item())
        del loss
        optimizer.step()
    for name, parameter in model.named_parameters():
        result.tensors[name] = parameter.detach().clone()
        if parameter.grad is not None:
            result.tensors["gradient of " + name] = parameter.grad.clone()
    result.tensors.update({name: buffer.clone() for name, buffer in model.named_buffers()})
    return result
