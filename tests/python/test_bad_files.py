"""Files that are malformed, truncated, hostile or absurd: status 2 and one line, never a crash, a hang or a file."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headroom_command import ROOT, UNET, assert_refused, headroom
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

GRAPH = {
    "format": "headroom.graph/1",
    "name": "g",
    "values": [{"name": "x", "bytes": 8, "resident": True}, {"name": "a", "bytes": 4}, {"name": "b", "bytes": 4}],
    "ops": [
        {"name": "f", "inputs": ["x"], "outputs": ["a"], "time_ns": 5},
        {"name": "h", "inputs": ["a"], "outputs": ["b"], "time_ns": 5, "phase": "backward", "overwrites": ["a"]},
    ],
    "outputs": ["b"],
}
CHAIN = {
    "format": "headroom.chain/1",
    "name": "c",
    "resident_bytes": 1,
    "input_bytes": 4,
    "stages": [
        {"name": "s", "forward_ns": 1, "backward_ns": 1, "output_bytes": 4, "tape_bytes": 8},
        {"name": "loss", "forward_ns": 0, "backward_ns": 0, "output_bytes": 0, "tape_bytes": 0},
    ],
}
GRAPH_TEXT = json.dumps(GRAPH)
CHAIN_TEXT = json.dumps(CHAIN)


def changed(document: dict[str, Any], change: Callable[[Any], None]) -> str:
    copied = copy.deepcopy(document)
    change(copied)
    return json.dumps(copied)


def graph(change: Callable[[Any], None]) -> str:
    return changed(GRAPH, change)


def chain(change: Callable[[Any], None]) -> str:
    return changed(CHAIN, change)


TEXTS: dict[str, str | bytes] = {
    "empty": "",
    "blank": " \n",
    "not json": "hello",
    "truncated": GRAPH_TEXT[:-1],
    "more after the end": GRAPH_TEXT + "{}",
    "an array": "[]",
    "null": "null",
    "a number": "1",
    "a nul": GRAPH_TEXT + "\0",
    "not utf-8": GRAPH_TEXT.replace('"g"', '"\xff"').encode("latin-1"),
    "broken surrogate": GRAPH_TEXT.replace('"g"', '"\\ud800"'),
    "deep arrays": "[" * 200_000,
    "deep objects": '{"a":' * 200_000,
    "deep inside": GRAPH_TEXT.replace("8", "[" * 100_000 + "]" * 100_000, 1),
    "comment": GRAPH_TEXT.replace("{", "{/**/", 1),
    "trailing comma": GRAPH_TEXT[:-1] + ",}",
    "nan": GRAPH_TEXT.replace("8", "NaN", 1),
    "infinity": GRAPH_TEXT.replace("8", "Infinity", 1),
    "2^70": GRAPH_TEXT.replace("8", str(2**70), 1),
    "-2^70": GRAPH_TEXT.replace("8", str(-(2**70)), 1),
    "2^63": GRAPH_TEXT.replace("8", str(2**63), 1),
    "4.0": GRAPH_TEXT.replace("8", "8.0", 1),
    "1e3": GRAPH_TEXT.replace("8", "1e3", 1),
    "1e999999": GRAPH_TEXT.replace("8", "1e999999", 1),
    "a string for a number": GRAPH_TEXT.replace("8", '"8"', 1),
    "a number for a name": GRAPH_TEXT.replace('"g"', "7", 1),
    "a null for a list": graph(lambda g: g.update(values=None)),
    "duplicate key": GRAPH_TEXT.replace('"name": "g"', '"name": "g", "name": "g"', 1),
    "duplicate key inside": GRAPH_TEXT.replace('"bytes": 8', '"bytes": 8, "bytes": 8', 1),
    "unknown key": graph(lambda g: g.update(extra=1)),
    "unknown key in a value": graph(lambda g: g["values"][0].update(size=1)),
    "unknown key in an op": graph(lambda g: g["ops"][0].update(cost=1)),
    "no format": graph(lambda g: g.pop("format")),
    "other format": graph(lambda g: g.update(format="headroom.graph/2")),
    "schedule": json.dumps({"format": "headroom.schedule/1", "graph": "g", "steps": []}),
    "no name": graph(lambda g: g.pop("name")),
    "no values": graph(lambda g: g.pop("values")),
    "no ops": graph(lambda g: g.pop("ops")),
    "no outputs": graph(lambda g: g.pop("outputs")),
    "no time": graph(lambda g: g["ops"][0].pop("time_ns")),
    "no bytes": graph(lambda g: g["values"][0].pop("bytes")),
    "negative bytes": graph(lambda g: g["values"][1].update(bytes=-4)),
    "negative time": graph(lambda g: g["ops"][0].update(time_ns=-1)),
    "sum of bytes": graph(lambda g: [v.update(bytes=2**62) for v in g["values"]]),
    "sum of times": graph(lambda g: [op.update(time_ns=2**62) for op in g["ops"]]),
    "workspace too large": graph(lambda g: g["ops"][0].update(workspace_bytes=2**63 - 1)),
    "value named twice": graph(lambda g: g["values"][2].update(name="a")),
    "op named twice": graph(lambda g: g["ops"][1].update(name="f")),
    "empty name": graph(lambda g: g["ops"][1].update(name="")),
    "unknown input": graph(lambda g: g["ops"][0].update(inputs=["y"])),
    "unknown output": graph(lambda g: g.update(outputs=["y"])),
    "cycle": graph(lambda g: g["ops"][0].update(inputs=["b"])),
    "reads what it writes": graph(lambda g: g["ops"][0].update(inputs=["a"])),
    "out of order": graph(lambda g: g["ops"].reverse()),
    "no producer": graph(lambda g: g["ops"].pop()),
    "resident is written": graph(lambda g: g["values"][1].update(resident=True)),
    "input twice": graph(lambda g: g["ops"][0].update(inputs=["x", "x"])),
    "op without outputs": graph(lambda g: g["ops"][0].update(outputs=[])),
    "overwrites no input": graph(lambda g: g["ops"][1].update(overwrites=["x"])),
    "overwrites other bytes": graph(lambda g: g["values"][1].update(bytes=5)),
    "holds itself": graph(lambda g: g["values"][1].update(holds=["a"])),
    "holds what is not read": graph(lambda g: g["values"][2].update(holds=["x"])),
    "phase": graph(lambda g: g["ops"][0].update(phase="sideways")),
    "recompute": graph(lambda g: g["ops"][0].update(recompute=1)),
    "chain without stages": chain(lambda c: c.update(stages=[])),
    "chain: unknown key": chain(lambda c: c["stages"][0].update(bytes=1)),
    "chain: no name": chain(lambda c: c["stages"][0].pop("name")),
    "chain: no tape": chain(lambda c: c["stages"][0].pop("tape_bytes")),
    "chain: tape below output": chain(lambda c: c["stages"][0].update(tape_bytes=3)),
    "chain: negative": chain(lambda c: c["stages"][0].update(output_bytes=-1)),
    "chain: negative weights": chain(lambda c: c.update(resident_bytes=-1)),
    "chain: sum": chain(lambda c: [s.update(output_bytes=2**62, tape_bytes=2**62) for s in c["stages"]]),
    "chain: values": chain(lambda c: c.update(values=[])),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_bad_file(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    out = tmp_path / "out.json"
    assert_refused(headroom("plan", path, "--planner", "store-all", "--out", out, "--json"), "bad.json")
    assert_refused(headroom("simulate", path, UNET), "bad.json")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("command", [["compare"], ["curve"], ["plan", "--budget", "1x"]])
def test_bad_file_in_every_command(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text("{")
    assert_refused(headroom(*command, path, "--json"), "bad.json")
    assert_refused(headroom(*command, tmp_path / "missing.json"), "missing.json")
    assert_refused(headroom(*command, tmp_path), tmp_path.name)


def test_the_unchanged_files_are_good(tmp_path: Path) -> None:
    for text in (GRAPH_TEXT, CHAIN_TEXT):
        path = tmp_path / "good.json"
        path.write_text(text)
        assert headroom("plan", path, "--planner", "store-all").returncode == 0


def test_line_breaks_in_names_do_not_break_the_message(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(graph(lambda g: g["ops"][0].update(inputs=["two\nlines\x1b[31m"])))
    done = headroom("plan", path, "--planner", "store-all")
    assert_refused(done, "bad.json")
    assert "\x1b" not in done.stderr


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(["unet", "alexnet"]),
    position=st.integers(0, 20_000),
    removed=st.integers(0, 40),
    added=st.sampled_from(
        ["", '"', "{", "}", "[", "]", ",", ":", "-", "0", "99999999999999999999", "null", "\\", "\x00", "é"]
    ),
)
def test_edited_files_are_read_or_refused(name: str, position: int, removed: int, added: str, tmp_path: Path) -> None:
    text = (ROOT / "examples" / f"{name}.json").read_text()
    position %= len(text)
    path = tmp_path / "edited.json"
    path.write_text(text[:position] + added + text[position + removed :])
    done = headroom("plan", path, "--planner", "store-all", "--json")
    if done.returncode == 0:
        json.loads(done.stdout)
    else:
        assert_refused(done, "edited.json")
