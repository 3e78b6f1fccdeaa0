"""Programs as data: classes of modules and statements, and their source."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Statement:
    """A line of Python, with the lines of its block if it opens one."""

    text: str
    body: list[Statement] | None = None
    simpler: tuple[str, ...] = ()  # lines that may stand in its place

    def lines(self) -> Iterator[str]:
        yield self.text
        if self.body is not None:
            for statement in self.body or [Statement("pass")]:
                for line in statement.lines():
                    yield "    " + line


def text_of(statements: list[Statement]) -> str:
    return "\n".join(line for statement in statements or [Statement("pass")] for line in statement.lines())


@dataclass
class Net:
    """A module: takes a tensor of 32 x 16, or two, and returns one of that shape first."""

    name: str
    layers: list[Statement] = field(default_factory=list)
    forward: list[Statement] = field(default_factory=list)
    has_second_input: bool = False  # z
    result: str = "x"
    output_count: int = 1

    def source(self) -> str:
        body = [*self.forward, Statement(f"return {self.result}")]
        layers = [Statement("super().__init__()"), *self.layers]
        head = f"class {self.name}(nn.Module):\n    def __init__(self) -> None:\n"
        head += textwrap.indent(text_of(layers), " " * 8)
        inputs = "x: torch.Tensor, z: torch.Tensor" if self.has_second_input else "x: torch.Tensor"
        return f"{head}\n\n    def forward(self, {inputs}):\n{textwrap.indent(text_of(body), ' ' * 8)}\n"


@dataclass
class Program:
    """Modules, statements before the steps, and those of a step."""

    seed: int
    nets: list[Net]
    setup: list[Statement]
    step: list[Statement]
    after: list[Statement]
    steps: int = 4
    traits: frozenset[str] = frozenset()

    def source(self) -> str:
        """Returns the source of the modules and of `program(compile, log)`, which trains."""
        rescue = Statement("except Exception as error:", [Statement("log.error(error)"), *RESCUE])
        loop = [
            Statement("log.step = step"),
            Statement("try:", [Statement("train(step)")]),
            rescue,
        ]
        seed = Statement(f"torch.manual_seed({self.seed})")
        main = [seed, Statement("with torch.device(DEVICE):", self.setup)]
        # A function, so that the variables of a step are freed before the next.
        main += [Statement("def train(step: int) -> None:", self.step)]
        main += [Statement(f"for step in range({self.steps}):", loop), *self.after]
        classes = "\n\n".join(net.source() for net in self.nets)
        return (
            f"{classes}\n\ndef program(compile: Compile, log: Log) -> None:\n{textwrap.indent(text_of(main), '    ')}\n"
        )


RESCUE = [Statement("optimizer.zero_grad(set_to_none=True)")]
