"""Makes a failing program smaller while it keeps failing in the same way."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from programs import prelude
from programs.compare import Failure
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


Change = Callable[[Program], None]


def simplifications(program: Program) -> Iterator[Change]:
    """Returns functions that each replace a statement by a simpler one, or a block by what is in it."""
    for number, statements in enumerate(blocks(program)):
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


def deletions(program: Program) -> Iterator[Change]:
    """Returns functions that each delete consecutive statements, the last ones first, since they use earlier ones."""
    for number, statements in enumerate(blocks(program)):
        count = len(statements)
        while count >= 1:
            for start in range(len(statements) - count, -1, -count):
                yield lambda other, n=number, a=start, b=start + count: _delete(other, n, a, b)
            count //= 2


def _delete(program: Program, number: int, start: int, end: int) -> None:
    del list(blocks(program))[number][start:end]


def _replace(program: Program, number: int, position: int, statements: list[Statement]) -> None:
    list(blocks(program))[number][position : position + 1] = copy.deepcopy(statements)


class Shrinker:
    """Tries changes one after another for a limited time, and keeps those with which the program fails as before."""

    def __init__(self, program: Program, options: Options, failure: Failure, seconds: float) -> None:
        self.program = program
        budget = failure.kind_of_budget()
        self.options = replace(options, has_shares=budget == "x", has_bytes=budget == "s")
        self.failure = failure
        self.deadline = time.process_time() + seconds
        self.tried = {program.source()}

    def fails_as_before(self, candidate: Program) -> bool:
        try:
            result = run_program(candidate, self.options)
        except SyntaxError:  # Half of a statement has been deleted.
            return False
        return any(failure.is_like(self.failure) for failure in result.failures)

    def apply(self, kind: Callable[[Program], Iterator[Change]]) -> bool:
        """Returns whether a change of this kind was kept."""
        is_changed = False
        position = 0
        while position < len(changes := list(kind(self.program))) and time.process_time() < self.deadline:
            candidate = copy.deepcopy(self.program)
            changes[position](candidate)
            source = candidate.source()
            if source not in self.tried and self.fails_as_before(candidate):
                self.program, is_changed = candidate, True
            else:
                position += 1
            self.tried.add(source)
        return is_changed

    def run(self) -> Program:
        while self.apply(deletions) | self.apply(simplifications):
            pass
        return self.program


def shrink(program: Program, options: Options, failure: Failure, seconds: float) -> Program:
    """Returns a smaller program with a failure of the same kind, found within a time."""
    return Shrinker(program, options, failure, seconds).run()


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
