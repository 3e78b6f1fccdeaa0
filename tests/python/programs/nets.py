"""Random modules."""

from __future__ import annotations

import random

from programs.program import Net, Statement

RATES = (0.1, 0.3, 0.5)
ACTIVATIONS = (
    "{h}.relu()",
    "{h}.tanh()",
    "{h}.sigmoid()",
    "nn.functional.gelu({h})",
    "({h} * 0.1).exp()",
    "{h}.softmax(-1)",
    "{h} - {h}.max(dim=1, keepdim=True).values",
    "{h} * {h}.amax(0)",
    "nn.functional.silu({h})",
    "({h}.abs() + 0.1).sqrt().clamp(max=2)",
)
VIEWS = (
    "{h}.reshape(16, 32).t()",
    "{h}.t().reshape(32, 16)",
    "torch.cat([{h}[:, 8:], {h}[:, :8]], 1)",
    "torch.cat({h}.chunk(4, 1)[::-1], 1)",
    "{h}.unsqueeze(1).expand(32, 3, 16).sum(1)",
    "{h}[:16].repeat(2, 1)",
    "{h}.split([10, 22])[0].mean(0).expand(32, 16) + {h}",
    "{h}.transpose(0, 1).contiguous().t()",
    "{h}[::2].unsqueeze(1).expand(16, 2, 16).reshape(32, 16)",
)
IN_PLACE = (
    "{h}.mul_(2)",
    "{h}.add_({other})",
    "{h}.relu_()",
    "{h}[:, 2:6].add_(1.0)",
    "{h}[:, :4] = {other}[:, 4:8].tanh()",
    "{h}.t().mul_(0.5)",
    "{h}.view(-1)[:100].sigmoid_()",
    "{h}.zero_().add_({other})",
    "{h}[3] = 0.0",
    "{h}.copy_({other}.tanh())",
)
# Nothing reads the old contents after these: a compiled step need not run the operator that computed them.
OVERWRITES = ("{h}.zero_().add_({other})", "{h}.copy_({other}.tanh())")
# Views, copies and repetitions of the first output and of the input, as further outputs.
EXTRA_OUTPUTS = (
    "{h}.reshape(-1)",
    "{h}.t()",
    "{h}[:, :4]",
    "{h}",
    "x",
    "x.reshape(-1)",
    "x[:8]",
    "{h}.exp()",
    "{h}.detach()",
    "{h}.mean()",
    "{other}",
    "{other}.t()",
    "{h}.unsqueeze(0).expand(3, 32, 16)",
)


class NetWriter:
    """Writes one module. A tensor of 32 x 16 goes through it, `h`; `earlier` are others of that shape."""

    def __init__(self, rng: random.Random, name: str, *, is_random: bool, has_breaks: bool) -> None:
        self.rng = rng
        self.net = Net(name)
        self.h = "x"
        self.earlier = ["x"]
        self.is_random = is_random
        self.is_fragile = False  # The operator that raises on purpose is to be needed.
        self.traits: set[str] = set()
        self.parts = {
            self.linear: 6,
            self.activation: 8,
            self.view: 3,
            self.residual: 3,
            self.in_place: 2,
            self.convolution: 1,
            self.norm: 2,
            self.ema: 1,
            self.queue: 1,
            self.counter: 1,
            self.attention: 1,
            self.shared_layer: 1,
            self.dropout: 2 if is_random else 0,
            self.graph_break: 0.7 if has_breaks else 0,
        }

    def layer(self, text: str, kind: str) -> str:
        name = f"{kind}{len(self.net.layers)}"
        self.net.layers.append(Statement(f"self.{name} = {text}"))
        return f"self.{name}"

    def buffer(self, text: str) -> str:
        name = f"buffer{len(self.net.layers)}"
        self.net.layers.append(Statement(f'self.register_buffer("{name}", {text})'))
        return f"self.{name}"

    def say(self, text: str, *simpler: str) -> None:
        self.net.forward.append(Statement(text, simpler=simpler))

    def make(self, expression: str) -> None:
        """Assigns a new `h` of the same shape."""
        new = f"h{len(self.net.forward)}"
        self.say(f"{new} = {expression}", f"{new} = {self.h}")
        self.earlier.append(new)
        self.h = new

    def other(self) -> str:
        return self.rng.choice(self.earlier)

    def linear(self) -> None:
        self.make(f"{self.layer('nn.Linear(16, 16)', 'linear')}({self.h})")

    def shared_layer(self) -> None:
        """Uses one layer twice, or a layer and a tied copy of its weight."""
        layer = self.layer("nn.Linear(16, 16)", "linear")
        if self.rng.random() < 0.5:
            self.net.layers.append(Statement(f"{layer}_tied = nn.Linear(16, 16)"))
            self.net.layers.append(Statement(f"{layer}_tied.weight = {layer}.weight"))
            self.make(f"{layer}_tied({layer}({self.h}).tanh())")
        else:
            self.make(f"{layer}({layer}({self.h}).tanh())")
        self.traits.add("shared weight")

    def activation(self) -> None:
        self.make(self.rng.choice(ACTIVATIONS).format(h=self.h))

    def view(self) -> None:
        view = self.rng.choice(VIEWS)
        if view.endswith(".t()"):
            self.traits.add("transposed")
        self.make(view.format(h=f"{self.h}.contiguous()" if self.rng.random() < 0.3 else self.h))

    def residual(self) -> None:
        self.make(f"{self.h} {self.rng.choice('++*-')} {self.other()}")

    def attention(self) -> None:
        other = self.other()
        self.make(f"({self.h} @ {other}.t() * 0.1).softmax(-1) @ {self.h}")

    def in_place(self) -> None:
        """Updates a tensor that no operator has saved."""
        other = self.other()
        self.make(self.rng.choice(("{h} * 0.5", "{h} + 1", "{h}.clone()")).format(h=self.h))
        updates = [update for update in IN_PLACE if not (self.is_fragile and update in OVERWRITES)]
        self.say(self.rng.choice(updates).format(h=self.h, other=other))

    def convolution(self) -> None:
        layer = self.layer("nn.Conv2d(4, 4, 3, padding=1)", "conv")
        image = f"{layer}({self.h}.reshape(2, 4, 8, 8))"
        choice = self.rng.randrange(4)
        if choice == 0:
            image = f"{self.layer('nn.BatchNorm2d(4)', 'norm')}({image})"
        elif choice == 1:
            image = f"nn.functional.max_pool2d({image}, 2).repeat(1, 1, 2, 2)"
        elif choice == 2:
            image = f"{self.layer('nn.GroupNorm(2, 4)', 'norm')}({image}).relu_()"
        self.make(f"{image}.reshape(32, 16)")

    def norm(self) -> None:
        kind = self.rng.choice(("nn.LayerNorm(16)", "nn.BatchNorm1d(16)", "nn.BatchNorm1d(16, momentum=0.5)"))
        self.make(f"{self.layer(kind, 'norm')}({self.h})")

    def dropout(self) -> None:
        rate = self.rng.choice(RATES)
        self.traits.add("dropout" if rate == 0.5 else "dropout by no power of two")
        self.make(f"nn.functional.dropout({self.h}, {rate}, self.training)")

    def graph_break(self) -> None:
        self.traits.add("sums in another order")
        self.say("torch._dynamo.graph_break()")

    def ema(self) -> None:
        buffer = self.buffer("torch.ones(16)")
        update = self.rng.choice(
            (
                "{b}.mul_(0.9).add_({h}.detach().mean(0), alpha=0.1)",
                "{b}[:8].mul_(0.9).add_({h}.detach().mean(0)[:8])",
                "{b}.view(4, 4)[1].add_(1.0)",
                "{b}.copy_(0.5 * {b} + {h}.detach().sum(0))",
            )
        ).format(b=buffer, h=self.h)
        if "alpha" in update:
            self.traits.add("scaled addition")
        reads = self.rng.choice(("before", "after", "both", "never"))
        if reads in ("before", "both"):
            self.make(f"{self.h} * {buffer}.clone()")
        self.say(update)
        if reads in ("after", "both"):
            self.make(f"({self.h} + {buffer}).tanh()")

    def queue(self) -> None:
        buffer = self.buffer("torch.randn(32, 16)")
        key = self.h
        self.make(f"({self.h} @ {buffer}.clone().t()).softmax(-1) @ {self.h}")
        rows = self.rng.choice(("[:8]", "[24:]", ""))
        self.say(f"{buffer}{rows}.copy_({key}.detach(){rows})")

    def counter(self) -> None:
        buffer = self.buffer("torch.zeros((), dtype=torch.int64)")
        self.say(f"{buffer}.add_(1)")
        if self.rng.random() < 0.5:
            self.make(f"{self.h} / {buffer}.clone()")

    def fragile(self) -> None:
        """Raises as the first statement, where a step has not changed anything yet."""
        self.is_fragile = True
        self.make(f"fragile({self.h})")

    def mutate_input(self) -> None:
        self.traits.add("mutates input")
        self.say(self.rng.choice(("x.mul_(0.5)", "x.add_(1.0)", "x[:, :4].zero_()", "x.t().mul_(2)")))

    def take_second_input(self) -> None:
        self.net.has_second_input = True
        self.earlier += ["z", "z"]

    def finish(self) -> Net:
        if self.rng.random() < 0.05:
            self.net.layers.append(Statement("self.unused = nn.Linear(2, 2)"))
        outputs = [self.h]
        if self.rng.random() < 0.3:
            for _ in range(self.rng.choice((1, 1, 2, 3))):
                outputs.append(self.rng.choice(EXTRA_OUTPUTS).format(h=self.h, other=self.other()))
        self.net.result = ", ".join(outputs)
        self.net.output_count = len(outputs)
        return self.net


def write_net(
    rng: random.Random,
    name: str,
    *,
    is_random: bool,
    is_fragile: bool = False,
    has_breaks: bool = True,
    second_input: float = 0.0,
) -> tuple[Net, set[str]]:
    """Returns a random module and its traits; `second_input` is the probability that it takes one."""
    writer = NetWriter(rng, name, is_random=is_random, has_breaks=has_breaks)
    if is_fragile:
        writer.fragile()
    if rng.random() < 0.06:
        writer.mutate_input()
    if rng.random() < second_input:
        writer.take_second_input()
        writer.residual()
    parts, weights = zip(*writer.parts.items(), strict=True)
    for part in rng.choices(parts, weights, k=rng.choice((1, 2, 3, 4, 6, 8, 10))):
        part()
    return writer.finish(), writer.traits
