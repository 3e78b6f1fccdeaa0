"""The simulator against a second one, written from docs/formats.md alone, on random graphs and schedules."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from headroom_command import headroom


class Invalid(Exception):
    pass


@dataclass(eq=False)
class Copy:
    bytes: int
    current: bool = True
    holds: list["Copy"] = field(default_factory=list)


@dataclass
class Result:
    moments: list[int]
    afters: list[int]
    peak: int
    time: int


def total(copies: list[Copy]) -> int:
    """Returns the bytes of the copies that are current, or held by a copy that counts."""
    counting = {id(copy): copy for copy in copies if copy.current}
    open_copies = list(counting.values())
    while open_copies:
        for held in open_copies.pop().holds:
            if id(held) not in counting:
                counting[id(held)] = held
                open_copies.append(held)
    return sum(copy.bytes for copy in counting.values())


def is_held(copy: Copy, copies: list[Copy]) -> bool:
    alive = [other for other in copies if other.current]
    while alive:
        other = alive.pop()
        if any(held is copy for held in other.holds):
            return True
        alive += other.holds
    return False


def simulate(graph: dict[str, Any], steps: list[dict[str, str]]) -> Result:
    values = {value["name"]: value for value in graph["values"]}
    ops = {op["name"]: op for op in graph["ops"]}
    now = {name: Copy(value["bytes"]) for name, value in values.items() if value.get("resident")}
    copies = list(now.values())
    result = Result([], [], total(copies), 0)
    ran: set[str] = set()
    for step in steps:
        before = total(copies)
        if "drop" in step:
            name = step["drop"]
            if values[name].get("resident") or name not in now:
                raise Invalid
            now.pop(name).current = False
            result.moments.append(before)
        else:
            op = ops[step["run"]]
            over = step.get("over")
            if any(name not in now for name in op["inputs"]):
                raise Invalid
            if not op.get("recompute", True) and op["name"] in ran:
                raise Invalid
            if over and (over not in op.get("overwrites", []) or op["outputs"][0] in now or is_held(now[over], copies)):
                raise Invalid
            if over and any(over in values[name].get("holds", []) for name in op["outputs"]):
                raise Invalid
            ran.add(op["name"])
            moment = before + sum(values[name]["bytes"] for name in op["outputs"]) + op.get("workspace_bytes", 0)
            if over:
                moment -= values[over]["bytes"]
            made = {name: Copy(values[name]["bytes"]) for name in op["outputs"]}
            seen = {**now, **made}
            for name, copy in made.items():
                copy.holds = [seen[held] for held in values[name].get("holds", [])]
                if name in now:
                    now[name].current = False
            now.update(made)
            copies += made.values()
            if over:
                now.pop(over).current = False
            result.moments.append(moment)
            result.peak = max(result.peak, moment)
            result.time += op["time_ns"]
        result.afters.append(total(copies))
    if any(name not in now for name in graph["outputs"]):
        raise Invalid
    return result


def random_graph(rng: random.Random) -> dict[str, Any]:
    values: list[dict[str, Any]] = [{"name": "x", "bytes": rng.randrange(9), "resident": True}]
    ops: list[dict[str, Any]] = []
    for i in range(rng.randrange(2, 8)):
        inputs = rng.sample([value["name"] for value in values], min(len(values), rng.randrange(1, 4)))
        outputs = []
        for k in range(rng.randrange(1, 3)):
            outputs.append(f"v{i}.{k}")
            values.append({"name": outputs[-1], "bytes": rng.randrange(9)})
        if rng.random() < 0.5:
            # Later outputs may hold inputs and earlier outputs, so holding is never circular.
            holds = [name for name in inputs + outputs[:-1] if name != "x" and rng.random() < 0.7]
            values[-1]["holds"] = holds
        op: dict[str, Any] = {"name": f"op{i}", "inputs": inputs, "outputs": outputs, "time_ns": rng.randrange(9)}
        if rng.random() < 0.3:
            op["workspace_bytes"] = rng.randrange(-3, 5)
        if rng.random() < 0.05:
            op["recompute"] = False
        same = [name for name in inputs if name != "x"]
        if same and rng.random() < 0.5:
            size = next(value["bytes"] for value in values if value["name"] == same[0])
            next(value for value in values if value["name"] == outputs[0])["bytes"] = size
            op["overwrites"] = [same[0]]
        ops.append(op)
        if rng.random() < 0.2:
            ops.append({**op, "name": f"again{i}", "time_ns": rng.randrange(9), "recompute": True})
    return {"format": "headroom.graph/1", "name": "g", "values": values, "ops": ops, "outputs": []}


def random_steps(rng: random.Random, graph: dict[str, Any]) -> list[dict[str, str]]:
    """Returns steps that are mostly valid, and the outputs of the graph for them."""
    alive = {value["name"] for value in graph["values"] if value.get("resident")}
    steps: list[dict[str, str]] = []
    for _ in range(rng.randrange(1, 25)):
        wild = rng.random() < 0.02
        if rng.random() < 0.7:
            ready = [op for op in graph["ops"] if wild or set(op["inputs"]) <= alive]
            op = rng.choice(ready or graph["ops"])
            step = {"run": op["name"]}
            alive |= set(op["outputs"])
            if op.get("overwrites") and rng.random() < 0.5:
                step["over"] = op["overwrites"][0]
                alive.discard(step["over"])
            steps.append(step)
        else:
            names = sorted(value["name"] for value in graph["values"] if wild or value["name"] in alive - {"x"})
            if names:
                steps.append({"drop": rng.choice(names)})
                alive.discard(steps[-1]["drop"])
    names = alive if rng.random() < 0.9 else {value["name"] for value in graph["values"]}
    graph["outputs"] = rng.sample(sorted(names), min(len(names), 1))
    return steps


@pytest.mark.parametrize("seed", range(150))
def test_simulators_agree(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng)
    steps = random_steps(rng, graph)
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    (tmp_path / "steps.json").write_text(json.dumps({"format": "headroom.schedule/1", "graph": "g", "steps": steps}))
    done = headroom("simulate", tmp_path / "graph.json", tmp_path / "steps.json", "--json")
    printed = json.loads(done.stdout)
    try:
        expected = simulate(graph, steps)
    except Invalid:
        assert (done.returncode, printed["valid"]) == (1, False), (graph, steps)
        return
    assert (done.returncode, printed["valid"]) == (0, True), (graph, steps, printed["error"])
    assert printed["moment_bytes"] == expected.moments, (graph, steps)
    assert printed["after_bytes"] == expected.afters, (graph, steps)
    assert printed["peak_bytes"] == expected.peak, (graph, steps)
    assert printed["time_ns"] == expected.time, (graph, steps)
