"""The C++ side of headroom. What users need is in headroom itself."""  # noqa: N999

from collections.abc import Callable, Sequence

import torch

torch_version: str

class InvalidInput(ValueError): ...

def parse_bytes(text: str) -> int: ...
def parse_budget(text: str, store_all_bytes: int) -> int: ...
def format_bytes(bytes: int) -> str: ...  # noqa: A002
def allocated_bytes(bytes: int, device: torch.device) -> int: ...  # noqa: A002
def storage_bytes(tensors: Sequence[torch.Tensor | None]) -> int: ...
def planner_names() -> list[str]: ...

class Meter:
    def __init__(self, device: torch.device) -> None: ...
    def current_bytes(self) -> int: ...
    def peak_bytes(self) -> int: ...
    def reset_peak(self) -> None: ...

# What a step in an arena takes: its block, and beside it at the peak and after forward.
class ArenaMemory:
    block_bytes: int
    forward_peak_bytes: int
    forward_left_bytes: int
    backward_peak_bytes: int

class ArenaStatistics:
    block_bytes: int
    served: int
    native: int
    missed: int
    recordings: int
    bad_in_row: int
    overtaken: int

# A half of a step that runs in an arena, on the thread that enters it.
class HalfContext:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

# A step in flight in an arena.
class ArenaRun:
    def forward(self) -> HalfContext: ...
    def backward(self) -> HalfContext: ...
    def finish(self) -> None: ...

# The block of memory of one step, whose first run records where in it its tensors are to lie.
class Arena:
    def __init__(self, device: torch.device) -> None: ...
    def begin(self) -> ArenaRun | None: ...  # None: another step is in it.
    def memory(self) -> ArenaMemory | None: ...  # None: the next step records.
    def statistics(self) -> ArenaStatistics: ...

def arena_peak_bytes(graph: Graph, schedule: Schedule, call_of_op: Sequence[int], alignment: int) -> int: ...

class TensorReference:
    def __init__(self, number: int, is_updated: bool) -> None: ...

class OpCall: ...

def make_call(
    name: str,
    overload: str,
    arguments: list[object],
    results: Sequence[int],
    draws: bool,
    in_place: tuple[str, str],
    source: str,
) -> OpCall: ...
def make_python_call(
    name: str,
    function: Callable[..., Sequence[torch.Tensor | None]],
    arguments: Sequence[int],
    results: Sequence[int],
    draws: bool,
    source: str,
) -> OpCall: ...

# A value of a graph. `holds`: values whose memory lives as long as this value does.
class Value:
    def __init__(
        self,
        name: str,
        bytes: int,  # noqa: A002
        resident: bool = False,
        holds: Sequence[int] = (),
    ) -> None: ...

# An op of a graph. `recompute`: whether it may run again; `overwrites`: inputs that it may write its result over.
class Op:
    def __init__(
        self,
        *,
        name: str,
        is_backward: bool,
        inputs: Sequence[int],
        outputs: Sequence[int],
        time_ns: int = 0,
        workspace_bytes: int = 0,
        recompute: bool = False,
        overwrites: Sequence[int] = (),
    ) -> None: ...
    @property
    def inputs(self) -> list[int]: ...
    @property
    def outputs(self) -> list[int]: ...

class Graph:
    def __init__(self, name: str, values: Sequence[Value], ops: Sequence[Op], outputs: Sequence[int]) -> None: ...
    def resident_bytes(self) -> int: ...
    def op_count(self) -> int: ...
    def op_inputs(self, op: int) -> list[int]: ...
    def op_name(self, op: int) -> str: ...
    def value_name(self, value: int) -> str: ...
    def value_bytes(self, value: int) -> int: ...
    def to_json(self) -> str: ...

# A step runs an op or drops a value. `value`: what is dropped or, by a run, overwritten; -1 for none, as `op`.
class Step:
    is_run: bool
    op: int
    value: int

class Schedule:
    steps: list[Step]
    def to_json(self, graph: Graph) -> str: ...

def store_all(graph: Graph) -> Schedule: ...

# Returns the runs of these ops, in order, with every value dropped after its last use.
def with_drops(graph: Graph, runs: Sequence[int]) -> Schedule: ...

class Simulation:
    peak_bytes: int
    time_ns: int
    moment_bytes: list[int]
    after_bytes: list[int]
    peak_step: int

def simulate(graph: Graph, schedule: Schedule) -> Simulation: ...  # Raises InvalidInput for an invalid schedule.
def is_valid(graph: Graph, schedule: Schedule) -> bool: ...
def alive_during(graph: Graph, schedule: Schedule, step: int) -> list[int]: ...

class Problem:
    def __init__(self, graph: Graph) -> None: ...

class Plan:
    status: str
    schedule: Schedule | None
    peak_bytes: int
    time_ns: int
    base_time_ns: int
    solve_ms: float
    lower_bound_ns: int
    smallest_budget_bytes: int

# `keep_order`: whether first runs keep the base order of the graph.
def make_plan(problem: Problem, planner: str, budget_bytes: int | None, keep_order: bool) -> Plan: ...
def find_plan_without_reruns(problem: Problem) -> Plan | None: ...
def make_report(
    problem: Problem,
    plan: Plan,
    planner: str,
    budget_bytes: int | None,
    keep_order: bool,
    modules: Sequence[str],
    sources: Sequence[str],
) -> str: ...

class CurvePoint:
    peak_bytes: int
    time_ns: int

def plan_curve(problem: Problem, planner: str, points: int, keep_order: bool) -> list[CurvePoint]: ...

class OpProgram:
    def __init__(
        self,
        *,
        graph: Graph,
        calls: Sequence[OpCall],
        call_of_op: Sequence[int],
        call_of_view: Sequence[int],
        value_of_tensor: Sequence[int],
        forward_inputs: Sequence[int],
        backward_inputs: Sequence[int],
        forward_outputs: Sequence[int],
        backward_outputs: Sequence[int],
        device: torch.device,
    ) -> None: ...

# A step between its forward and its backward, which frees it.
class Frame: ...

class OpStep:
    def __init__(self, program: OpProgram, schedule: Schedule) -> None: ...
    def forward(self, inputs: list[object], arena: Arena | None = None) -> tuple[list[torch.Tensor], Frame]: ...
    # Has backward notice changes in place of results that share memory with a tensor that it reads.
    def watch(self, frame: Frame, results: list[torch.Tensor]) -> None: ...
    # Returns the gradients, and whether other code holds one of the given gradients, which then is neither freed nor
    # overwritten as planned.
    def backward(
        self, frame: Frame, gradients: list[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor | None], bool]: ...

class PlannedStages:
    predicted_peak_bytes: int
    arena: Arena | None
    def use_arena(self, device: torch.device) -> None: ...
    def run(self, input: torch.Tensor) -> torch.Tensor: ...  # noqa: A002

class MeasuredStages:
    before_bytes: int
    store_all_peak_bytes: int
    problem: Problem
    graph: Graph
    def plan(self, budget_bytes: int | None, planner: str, later_bytes: int, tries: bool) -> PlannedStages | int: ...
    def forget_sample(self) -> None: ...

class KeptMemory:
    def __enter__(self) -> KeptMemory: ...
    def __exit__(self, *error: object) -> None: ...
    def has_read(self, tensor: torch.Tensor) -> bool: ...

# A stage of a network: a function from a tensor to a tensor, the parameters that it trains, and its buffers.
class Stage:
    def __init__(
        self,
        *,
        name: str,
        run: Callable[[torch.Tensor], torch.Tensor],
        parameters: list[torch.Tensor],
        buffers: list[torch.Tensor],
    ) -> None: ...

def measure_stages(name: str, stages: Sequence[Stage], sample: torch.Tensor) -> MeasuredStages: ...
