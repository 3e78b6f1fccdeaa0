#!/usr/bin/env python3
"""Compares `auto` with an exact solver: OR-Tools CP-SAT on a retention-interval model, as in Moccasin (Bartan et al.,
ICML 2023).

    pip install ortools
    benchmarks/exact/compare.py build/headroom FOLDER_OR_FILE... [--seconds 60] [--workers 2] [--results FILE]

Takes chains, and graphs in which every value has one producer and nothing is held; others are left out. Each op may run
--runs times (2). Its first run is at its place in the base order; a later one is in a *stage*, right before the first
run of a later op, where reruns of one stage follow the base order. Of a chain's F and R of a stage one or both run at
their places. A value is kept over intervals, each from a run to its last use, or to the end of the step; a run needs
every input inside an interval; what a tape holds is kept as long as the tape; the intervals at any moment fit the
budget.

The solver starts from nothing but the model. Its plan is checked by `headroom simulate`. With --results the solver's
answers are kept in a file and not asked for again.
"""

import argparse
import json
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from ortools.sat.python import cp_model

SHARES = ["0.9x", "0.8x", "0.65x", "0.5x", "0.35x", "0.25x"]
LONG_SECONDS = 10
WANTED_RATIO = 100


def is_plain(graph: dict[str, Any]) -> bool:
    producers: dict[str, int] = {}
    for op in graph.get("ops", []):
        for name in op["outputs"]:
            producers[name] = producers.get(name, 0) + 1
    return (
        graph.get("format") == "headroom.graph/1"
        and all(count == 1 for count in producers.values())
        and not any(value.get("holds") for value in graph["values"])
    )


def graph_of_chain(chain: dict[str, Any]) -> dict[str, Any]:
    """Returns the graph of a chain, as docs/formats.md defines it."""
    stages = chain["stages"]
    last = len(stages)
    values = [
        {"name": "w", "bytes": chain.get("resident_bytes", 0), "resident": True},
        {"name": "a0", "bytes": chain.get("input_bytes", 0), "resident": True},
        {"name": "g0", "bytes": chain.get("input_gradient_bytes", 0)},
    ]
    forward, backward = [], []
    for i, stage in enumerate(stages, 1):
        output = stage["output_bytes"]
        values += [
            {"name": f"a{i}", "bytes": output},
            {"name": f"t{i}", "bytes": stage["tape_bytes"] - output, "holds": [f"a{i - 1}", f"a{i}"]},
            {"name": f"p{i}", "bytes": stage.get("gradient_bytes", 0)},
            {"name": f"g{i}", "bytes": output, "resident": i == last},
        ]
        workspace = stage.get("forward_workspace_bytes", 0)
        run = {"time_ns": stage["forward_ns"], "inputs": [f"a{i - 1}"]}
        record = {"outputs": [f"a{i}", f"t{i}"], "workspace_bytes": stage.get("record_workspace_bytes", workspace)}
        forward.append({"name": f"F{i}", **run, "outputs": [f"a{i}"], "workspace_bytes": workspace})
        forward.append({"name": f"R{i}", **run, **record})
        backward.append(
            {
                "name": f"B{i}",
                "time_ns": stage["backward_ns"],
                "inputs": [f"a{i - 1}", f"a{i}", f"t{i}", f"g{i}"],
                "outputs": [f"g{i - 1}", f"p{i}"],
                "workspace_bytes": stage.get("backward_workspace_bytes", 0),
                "recompute": False,
            }
        )
    outputs = ["g0"] + [f"p{i}" for i in range(1, last + 1)]
    return {"name": chain["name"], "values": values, "ops": forward + backward[::-1], "outputs": outputs}


class Model:
    """Builds the model. Run (stage s, op v), v <= s, has the time index s(s+1)/2 + v."""

    def __init__(self, graph: dict[str, Any], budget_bytes: int, most_runs: int) -> None:
        self.ops = needed_ops(graph)
        self.model = cp_model.CpModel()
        sizes = {value["name"]: value["bytes"] for value in graph["values"]}
        resident = {value["name"] for value in graph["values"] if value.get("resident")}
        outputs = set(graph["outputs"])
        n = len(self.ops)
        horizon = n * (n + 1) // 2
        self.runs: list[list[tuple[Any, Any]]] = []  # (time, is present) of the runs of each op
        keeps: dict[str, list[tuple[Any, Any, Any]]] = {}  # (start, end, is present) of each run that writes a value
        holds = {value["name"]: value.get("holds", []) for value in graph["values"]}
        producers: dict[str, list[int]] = {}
        for v, op in enumerate(self.ops):
            for name in op["outputs"]:
                producers.setdefault(name, []).append(v)
        intervals, demands = [], []
        for v, op in enumerate(self.ops):
            first = v * (v + 1) // 2 + v
            is_alone = all(len(producers[name]) == 1 for name in op["outputs"])
            runs: list[tuple[Any, Any]] = [(first, True if is_alone else self.model.new_bool_var(""))]
            if op.get("recompute", True):
                for _ in range(1, most_runs if v + 1 < n else 1):
                    times = cp_model.Domain.from_values([s * (s + 1) // 2 + v for s in range(v + 1, n)])
                    runs.append((self.model.new_int_var_from_domain(times, ""), self.model.new_bool_var("")))
            self.runs.append(runs)
            copies: dict[str, list[tuple[Any, Any, Any]]] = {}
            for name in op["outputs"]:
                copies[name] = []
                for start, is_live in runs:
                    end = self.model.new_int_var(first, horizon - 1, "")
                    length = self.model.new_int_var(1, horizon, "")
                    intervals.append(self.model.new_optional_interval_var(start, length, end + 1, is_live, ""))
                    demands.append(sizes[name])
                    copies[name].append((start, end, is_live))
                self.order_copies(copies[name], is_alone)
                keeps.setdefault(name, []).extend(copies[name])
            for name in op["outputs"]:  # Held values are outputs of the same run, or live during it.
                for held in set(holds[name]) - resident:
                    for k, (start, end, is_live) in enumerate(copies[name]):
                        if held in copies:
                            self.model.add(copies[held][k][1] >= end).only_enforce_if(is_live)
                        else:
                            self.need(keeps[held], start, is_live, end)
            workspace = op.get("workspace_bytes", 0)
            if workspace > 0:
                for start, is_live in runs:
                    interval = self.model.new_optional_fixed_size_interval_var(start, 1, is_live, "")
                    intervals.append(interval)
                    demands.append(workspace)
            for start, is_live in runs:
                for name in op["inputs"]:
                    if name not in resident:
                        self.need(keeps[name], start, is_live)
        for name in outputs:
            self.need(keeps[name], horizon - 1, True)
        for makers in producers.values():  # One of several producers runs at its position.
            firsts = [self.runs[v][0][1] for v in makers]
            if len(makers) > 1:
                self.model.add_bool_or(firsts)
        capacity = budget_bytes - sum(sizes[name] for name in resident)
        self.model.add_cumulative(intervals, demands, capacity)
        self.base_ns = sum(op["time_ns"] for op, runs in zip(self.ops, self.runs, strict=True) if runs[0][1] is True)
        paid = [
            op["time_ns"] * is_live
            for op, runs in zip(self.ops, self.runs, strict=True)
            for _, is_live in runs
            if is_live is not True
        ]
        self.model.minimize(sum(paid))

    def order_copies(self, copies: list[tuple[Any, Any, Any]], is_alone: bool) -> None:
        """Adds the order of reruns. The first run of an alternative may be absent."""
        for k, ((_, end, was_live), (start, _, is_live)) in enumerate(pairwise(copies)):
            if was_live is True:
                self.model.add(end < start).only_enforce_if(is_live)
            else:
                self.model.add(end < start).only_enforce_if(is_live, was_live)
                if k > 0 or is_alone:
                    self.model.add_implication(is_live, was_live)

    def need(self, copies: list[tuple[Any, Any, Any]], when: Any, is_needed: Any, until: Any = None) -> None:
        """Requires that one of the copies of a value is live over an interval."""
        chosen = []
        for start, end, is_live in copies:
            this = self.model.new_bool_var("")
            if is_live is not True:
                self.model.add_implication(this, is_live)
            self.model.add(start <= when).only_enforce_if(this)
            self.model.add(end >= (when if until is None else until)).only_enforce_if(this)
            chosen.append(this)
        if is_needed is True:
            self.model.add_bool_or(chosen)
        else:
            self.model.add_bool_or([*chosen, is_needed.negated()])

    def solve(self, seconds: float, workers: int) -> dict[str, Any]:
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = workers
        begin = time.monotonic()
        status = solver.solve(self.model)
        result: dict[str, Any] = {"status": solver.status_name(status).lower(), "seconds": time.monotonic() - begin}
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            result["time_ns"] = self.base_ns + round(solver.objective_value)
            result["bound_ns"] = self.base_ns + round(solver.best_objective_bound)
            order = [
                (start if is_live is True else solver.value(start), op["name"])
                for op, runs in zip(self.ops, self.runs, strict=True)
                for start, is_live in runs
                if is_live is True or solver.boolean_value(is_live)
            ]
            result["runs"] = [name for _, name in sorted(order)]
        return result


def needed_ops(graph: dict[str, Any]) -> list[dict[str, Any]]:
    needed = set(graph["outputs"])
    ops = []
    for op in reversed(graph["ops"]):
        if needed & set(op["outputs"]):
            needed |= set(op["inputs"])
            ops.append(op)
    return ops[::-1]


def with_drops(graph: dict[str, Any], runs: list[str]) -> list[dict[str, str]]:
    """Returns the schedule that drops every value after its last use before the next recomputation."""
    ops = {op["name"]: op for op in graph["ops"]}
    used = {value["name"] for value in graph["values"] if value.get("resident")} | set(graph["outputs"])
    steps: list[dict[str, str]] = []
    for name in reversed(runs):
        op = ops[name]
        for value in op["outputs"]:
            if value not in used:
                steps.append({"drop": value})
            used.discard(value)
        for value in op["inputs"]:
            if value not in used:
                steps.append({"drop": value})
            used.add(value)
        steps.append({"run": name})
    return steps[::-1]


class Headroom:
    def __init__(self, binary: str) -> None:
        self.binary = binary

    def call(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run([self.binary, *arguments, "--json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def simulate(self, file: Path, graph: dict[str, Any], runs: list[str]) -> dict[str, Any]:
        schedule = {"format": "headroom.schedule/1", "graph": graph["name"], "steps": with_drops(graph, runs)}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as out:
            json.dump(schedule, out)
            out.flush()
            return self.call("simulate", str(file), out.name)


def solve_case(headroom: Headroom, file: Path, graph: dict[str, Any], budget: int, options: Any) -> dict[str, Any]:
    result = Model(graph, budget, options.runs).solve(options.seconds, options.workers)
    if "runs" in result:
        simulation = headroom.simulate(file, graph, result.pop("runs"))
        if not simulation["valid"] or simulation["peak_bytes"] > budget or simulation["time_ns"] != result["time_ns"]:
            raise SystemExit(f"{file} within {budget}: the solver's plan is not what it says")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("headroom")
    parser.add_argument("inputs", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=2, help="most runs of an op in the solver's model")
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--budgets", default=",".join(SHARES))
    parser.add_argument("--results", type=Path, help="the solver's answers, kept between calls")
    options = parser.parse_args()
    headroom = Headroom(options.headroom)
    answers = json.loads(options.results.read_text()) if options.results and options.results.exists() else {}
    files = [file for path in options.inputs for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    print("| graph | budget | solver | time | bound | s | auto | against solver | bound | s | times faster |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    long_ratios: list[float] = []
    for file in files:
        graph = json.loads(file.read_text())
        if graph.get("format") == "headroom.chain/1":
            graph = graph_of_chain(graph)
        elif not is_plain(graph):
            continue
        smallest = headroom.call("plan", str(file), "--planner", "auto", "--budget", "1x", "--effort", options.effort)
        for share in [*options.budgets.split(","), str(smallest["smallest_budget_bytes"])]:
            plan = headroom.call("plan", str(file), "--planner", "auto", "--budget", share, "--effort", options.effort)
            key = f"{file.name} {plan['budget_bytes']} {options.seconds} {options.workers} {options.runs}"
            if key not in answers:
                answers[key] = solve_case(headroom, file, graph, plan["budget_bytes"], options)
                if options.results:
                    options.results.write_text(json.dumps(answers, indent=1))
            solver = answers[key]
            time_ns, best = plan["time_ns"], solver.get("time_ns")
            change = f"{100 * (time_ns / best - 1):+.2f} %" if time_ns is not None and best else ""
            ratio = 1000 * solver["seconds"] / plan["solve_ms"]
            if solver["seconds"] > LONG_SECONDS:
                long_ratios.append(ratio)
            label = share if share.endswith("x") else f"smallest, {share}"
            print(
                f"| {graph['name']} | {label} | {solver['status']} | {best or '-'} | {solver.get('bound_ns', '-')} | "
                f"{solver['seconds']:.1f} | {time_ns or plan['status']} | {change} | {plan['lower_bound_ns']} | "
                f"{plan['solve_ms'] / 1000:.3f} | {ratio:.0f} |",
                flush=True,
            )
    minimum = min(long_ratios, default=float("inf"))
    print(
        f"\nat least {WANTED_RATIO} times faster wherever the solver needs more than {LONG_SECONDS} s: "
        f"{'yes' if minimum >= WANTED_RATIO else 'no'}, least ratio {minimum:.0f} of {len(long_ratios)} cases"
    )


if __name__ == "__main__":
    main()
