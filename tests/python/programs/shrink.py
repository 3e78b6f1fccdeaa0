"""Makes a failing program smaller while it keeps failing in the same way."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Iterator

from programs import prelude
from programs.program import Net, Program, Statement
from programs.run import Options, run_program


def blocks(program: Program) -> Iterator[list[Statement]]:
    """Returns every list of statements in a program."""

    def inside(statements: list[Statement]) -> Iterator[list[Statement]]:
        yield statements
        for statement in statements:
            if statement.body is not None:
                yield from inside(statement.body)

    lists = [program.step, program.setup, program.after]
    for net in program.nets:
        lists += [net.forward, net.layers]
    for statements in lists:
        yield from inside(statements)


def smaller_outputs(net: Net) -> Iterator[str]:
    outputs = net.result.split(", ")
    names = [line.text.split(" = ")[0] for line in net.forward if " = " in line.text and line.text[0] == "h"]
    for name in ["x", *names]:
        if name != outputs[0] and outputs[0] != "x":
            yield ", ".join([name, *outputs[1:]])


def changes(program: Program) -> Iterator[Callable[[Program], None]]:
    """Returns functions that each make a copy of the program a little smaller."""
    for number, statements in enumerate(blocks(program)):
        size = len(statements)
        step = max(size // 2, 1)
        while step >= 1:
            for start in range(0, size, step):
                yield lambda other, n=number, a=start, b=start + step: _delete(other, n, a, b)
            step = step // 2 if step > 1 else 0
        for position, statement in enumerate(statements):
            for text in statement.simpler:
                yield lambda other, n=number, p=position, t=text: _replace(other, n, p, [Statement(t)])
            if statement.body:
                yield lambda other, n=number, p=position, body=statement.body: _replace(other, n, p, body)
    for number, net in enumerate(program.nets):
        for result in smaller_outputs(net):
            yield lambda other, n=number, r=result: setattr(other.nets[n], "result", r)
        if len(program.nets) > 1:
            yield lambda other, n=number: other.nets.pop(n)
    for steps in range(1, program.steps):
        yield lambda other, s=steps: setattr(other, "steps", s)


def _delete(program: Program, number: int, start: int, end: int) -> None:
    del list(blocks(program))[number][start:end]


def _replace(program: Program, number: int, position: int, statements: list[Statement]) -> None:
    list(blocks(program))[number][position : position + 1] = copy.deepcopy(statements)


def shrink(program: Program, options: Options, kind: str, *, seconds: float = 60) -> Program:
    """Returns a smaller program with a failure of the same kind, found within a time."""
    deadline = time.monotonic() + seconds
    is_changed = True
    while is_changed:
        is_changed = False
        for change in list(changes(program)):
            if time.monotonic() > deadline:
                return program
            candidate = copy.deepcopy(program)
            try:
                change(candidate)
                source = candidate.source()
            except IndexError:
                continue
            if source == program.source():
                continue
            result = run_program(candidate, options)
            if result.status == "failed" and result.failures[0].kind == kind:
                program, is_changed = candidate, True
                break
    return program


FOOTER = """
def compiled(function):
    return headroom.compile(function, {budget!r}, kernels={kernels!r}, cache=False)


if __name__ == "__main__":
    import numpy as np

    expected, found = Log(), Log()
    bytes_left_by(program, lambda function: function, expected)
    left_bytes = bytes_left_by(program, compiled, found)
    print("errors:", found.errors, "with headroom,", expected.errors, "plainly")
    print("peaks by step:", found.added, "with headroom,", expected.added, "plainly")
    print("bytes left:", left_bytes)
    for (step, name, one), (_, _, two) in zip(expected.entries, found.entries):
        if not (np.array_equal(one, two, equal_nan=one.dtype.kind == "f") if hasattr(one, "dtype") else one is two):
            print(f"step {{step}}: {{name}} differs\\nplain:    {{one}}\\nheadroom: {{two}}")
            break
"""


def script_of(program: Program, options: Options, budget: str) -> str:
    """Returns a script that runs the program plainly and in a budget, and prints the first difference."""
    head = inspect.getsource(prelude).replace('DEVICE = "cpu"', f'DEVICE = "{options.device}"')
    value = int(budget.split()[0]) if budget.endswith("bytes") else budget
    return f"{head}\n\n{program.source()}\n{FOOTER.format(budget=value, kernels=options.kernels)}"
