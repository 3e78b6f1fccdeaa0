"""Traces read as Perfetto's importer of JSON reads them: what it would drop, or would not understand, fails."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Slice:
    name: str
    category: str
    begin_ns: int
    end_ns: int


@dataclass
class Trace:
    process: str
    threads: dict[int, str]
    slices: dict[int, list[Slice]] = field(default_factory=dict)
    # The value of a counter from a time on. The last of several events at one time counts.
    counters: dict[str, dict[int, int]] = field(default_factory=dict)


def read_trace(path: Path) -> Trace:
    document = json.loads(path.read_text())
    assert isinstance(document, dict)
    assert document["displayTimeUnit"] in {"ms", "ns"}
    events = document["traceEvents"]
    for event in events:
        assert isinstance(event["name"], str)
        assert event["name"] != ""
        assert_id(event["pid"])
        assert_id(event["tid"])
        assert event["ph"] in {"M", "X", "C"}, event
        assert isinstance(event["args"], dict)
    assert len({event["pid"] for event in events}) == 1
    named = [event for event in events if event["ph"] == "M"]
    processes = [event["args"]["name"] for event in named if event["name"] == "process_name"]
    assert len(processes) == 1
    threads = {event["tid"]: event["args"]["name"] for event in named if event["name"] == "thread_name"}
    assert all(isinstance(name, str) and name for name in [*processes, *threads.values()])
    trace = Trace(processes[0], threads)
    # Perfetto sorts by time, and keeps the order of events at the same time.
    timed = sorted((event for event in events if event["ph"] != "M"), key=lambda event: nanoseconds(event["ts"]))
    for event in timed:
        begin_ns = nanoseconds(event["ts"])
        if event["ph"] == "X":
            assert isinstance(event["cat"], str)
            piece = Slice(event["name"], event["cat"], begin_ns, begin_ns + nanoseconds(event["dur"]))
            trace.slices.setdefault(event["tid"], []).append(piece)
        else:
            ((key, amount),) = event["args"].items()
            assert key == "bytes"
            assert type(amount) is int
            trace.counters.setdefault(event["name"], {})[begin_ns] = amount
    assert trace.slices.keys() <= threads.keys()
    for pieces in trace.slices.values():
        assert_nested(pieces)
    return trace


def assert_id(number: Any) -> None:
    assert type(number) is int
    assert 0 <= number < 1 << 32


def nanoseconds(us: Any) -> int:
    """Truncates to whole nanoseconds, as Perfetto does."""
    assert type(us) in {int, float}
    assert us >= 0
    return int(us * 1000.0)


def assert_nested(pieces: list[Slice]) -> None:
    """Checks that slices are nested or disjoint. Perfetto drops a slice that begins in another and ends after it."""
    around: list[Slice] = []
    for piece in pieces:
        while around and around[-1].end_ns <= piece.begin_ns:
            around.pop()
        assert not around or piece.end_ns <= around[-1].end_ns, (around[-1], piece)
        around.append(piece)
