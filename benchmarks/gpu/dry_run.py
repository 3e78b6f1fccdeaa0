"""Shows the code that Inductor writes for a GPU, on a machine without one: kernels, moved bytes and the code's peak.

Usage: dry_run.py gpt2:LAYERS|resnet50:BLOCKS POINT...
A POINT is torch:0.5 (torch.compile with activation_memory_budget 0.5) or inductor:0.5x (headroom, by its first plan).
Inductor stops where kernels would be compiled, so nothing runs, and costs are estimated from sizes. The last figures
are headroom's own: the simulated peak, which must equal the larger of the code's peaks in forward and in backward, and
the planned time on top of plain training's.

Needs PyTorch 2.13 without CUDA, with triton beside it: pip install --no-deps --target build/triton triton, and that
folder in PYTHONPATH. The environment variable DUMP=FOLDER keeps the code.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import importlib.util
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]


def load_absent_gpu() -> None:
    """Compiles and loads the stub device. Must be called before PyTorch is imported, which looks for a GPU once."""
    library = ROOT / "build" / "absent_gpu.so"
    source = Path(__file__).with_name("absent.cpp")
    torch_folder = Path(importlib.util.find_spec("torch").origin).parent
    libraries = [torch_folder / "lib" / f"lib{library_name}.so" for library_name in ("c10", "torch_cpu")]
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        library.parent.mkdir(exist_ok=True)
        options = ["-std=c++20", "-O1", "-fPIC", "-shared", f"-I{torch_folder / 'include'}"]
        subprocess.run(["g++", *options, source, "-o", library, *libraries], check=True)
    for path in [*libraries, library]:
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


load_absent_gpu()

import torch  # noqa: E402
from headroom.exec.inductor import fusion, kernels  # noqa: E402
from headroom.exec.inductor import partitioner as inductor  # noqa: E402
from headroom.settings import Settings  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo import device_interface  # noqa: E402
from torch._inductor import compile_fx, ir  # noqa: E402
from torch._inductor.custom_graph_pass import CustomGraphPass  # noqa: E402
from torch._inductor.debug import DebugContext  # noqa: E402
from torch._inductor.dependencies import WeakDep  # noqa: E402
from torch._inductor.fx_passes import fuse_attention, joint_graph, pad_mm  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torch.utils import _triton  # noqa: E402
from torch.utils.flop_counter import flop_registry  # noqa: E402

GIB = 1 << 30
# Of an H200.
BYTES_PER_NS, FLOPS_PER_NS, START_NS, NS_PER_DRAW = 4300, 600_000, 2000, 0.008
PROPERTIES = SimpleNamespace(
    name="absent",
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    total_memory=139 << 30,
    L2_cache_size=60 << 20,
    gcnArchName="",
)


def pretend() -> None:
    """Makes PyTorch's Python code find the GPU too, and replaces calls that would run on it."""

    def give(value: Any) -> Callable[..., Any]:
        return lambda *_, **__: value

    answers = {
        "get_device_properties": PROPERTIES,
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (9, 0),
        "get_device_name": "absent",
        "memory_allocated": 0,
        "synchronize": None,
        "set_device": None,
        "set_rng_state": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "_lazy_init": None,
    }
    for name, value in answers.items():
        setattr(torch.cuda, name, give(value))
    torch.cuda.device = torch.cuda._DeviceGuard = contextlib.nullcontext
    torch.cuda.random.set_rng_state = give(None)
    torch._C._cuda_getDevice = give(0)
    torch.version.cuda = "13.0"
    interface = device_interface.CudaInterface
    for name, value in {
        "is_available": True,
        "is_bf16_supported": True,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
        "device_count": 1,
        "current_device": 0,
        "exchange_device": 0,
        "maybe_exchange_device": 0,
        "get_device_properties": PROPERTIES,
        "get_raw_stream": 0,
        "get_compute_capability": 90,
        "synchronize": None,
        "set_device": None,
    }.items():
        setattr(interface, name, staticmethod(give(value)))
    interface.Worker.get_device_properties = staticmethod(give(PROPERTIES))
    interface.Worker.current_device = staticmethod(give(0))
    _triton.triton_hash_with_backend = give("absent")
    fuse_attention._sfdp_init = pad_mm._pad_mm_init = give(None)
    folder = joint_graph.UniformValueConstantFolder
    deduce = folder._deduce_value

    def deduce_here(self: Any, node: torch.fx.Node) -> Any:
        kwargs = node.kwargs
        node.kwargs = {**kwargs, "device": torch.device("cpu")} if "device" in kwargs else kwargs
        try:
            return deduce(self, node)
        finally:
            node.kwargs = kwargs

    folder._deduce_value = deduce_here


def estimate_costs() -> None:
    """Replaces measurements of calls by estimates from their sizes."""

    def fill(captured: Any, *_: Any) -> None:
        for call in captured.calls:
            args, kwargs = pytree.tree_map(
                lambda node: node.meta["val"] if isinstance(node, torch.fx.Node) else node,
                (call.node.args, dict(call.node.kwargs)),
            )
            count = flop_registry.get(getattr(call.node.target, "_overloadpacket", None))
            flops = count(*args, **kwargs, out_val=call.node.meta["val"]) if count else 0
            values = [*(captured.value_of_tensor[tensor] for tensor in call.reads), *call.values]
            moved = sum(captured.values[value].bytes for value in values)
            call.time_ns = START_NS + int(max(flops / FLOPS_PER_NS, moved / BYTES_PER_NS))
            call.workspace_bytes = 0

    fusion.fill_costs = fill
    fusion.move_time_ns = lambda moved, *_: START_NS + moved // BYTES_PER_NS
    fusion.draw_time_ns = lambda count, *_: int(NS_PER_DRAW * count)
    inductor.cost_cache = fusion._C.Meter = lambda *_, **__: None


def put_there(model: nn.Module) -> nn.Module:
    """Replaces all tensors of a model by tensors on the GPU; modules that share a tensor still share it."""
    moved: dict[int, Any] = {}
    for module in model.modules():
        for tensors, wrap in ((module._parameters, nn.Parameter), (module._buffers, lambda tensor: tensor)):
            for name, tensor in tensors.items():
                if tensor is not None:
                    moved.setdefault(id(tensor), wrap(torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")))
                    tensors[name] = moved[id(tensor)]
    return model


Network = tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]


def make_gpt2(layers: int) -> Network:
    """Returns GPT-2 medium with another depth, 8 x 1024 tokens, bf16 autocast."""
    from transformers import AttentionInterface, AttentionMaskInterface, GPT2Config, GPT2LMHeadModel

    def attend(_: object, query: Any, key: Any, value: Any, *__: Any, dropout: float = 0.0, **___: Any) -> Any:
        out = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout, True)[0]
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("causal", attend)
    AttentionMaskInterface.register("causal", lambda *_, **__: None)
    config = GPT2Config(n_layer=layers, n_embd=1024, n_head=16, use_cache=False, attn_implementation="causal")
    model = put_there(GPT2LMHeadModel(config).train())

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(input_ids=tokens).logits
            return functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))

    return loss, torch.zeros(8, 1024, dtype=torch.int64, device="cuda")


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()

        def convolve(before: int, after: int, size: int, step: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(before, after, size, step, size // 2, bias=False), nn.BatchNorm2d(after))

        self.narrow = convolve(channels, width, 1, 1)
        self.middle = convolve(width, width, 3, stride)
        self.widen = convolve(width, 4 * width, 1, 1)
        self.around = convolve(channels, 4 * width, 1, stride) if channels != 4 * width else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.middle(functional.relu(self.narrow(x))))
        return functional.relu(self.widen(inner) + self.around(x))


def make_resnet50(blocks: int) -> Network:
    """Returns ResNet-50's first blocks, of 16, at batch 128."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    body: list[nn.Module] = []
    channels = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for place in range(min(count, blocks - len(body))):
            body.append(Bottleneck(channels, width, stride if place == 0 else 1))
            channels = 4 * width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    model = put_there(nn.Sequential(*stem, *body, *head).train())
    labels = torch.zeros(128, dtype=torch.int64, device="cuda")

    def loss(images: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(images), labels)

    return loss, torch.empty(128, 3, 224, 224, device="cuda")


MODELS = {"gpt2": make_gpt2, "resnet50": make_resnet50}


class Ended(Exception):
    """Ends a compilation before its result would run."""


def end(*_: Any) -> None:
    raise Ended


def moved_bytes(node: Any, graph: GraphLowering) -> int:
    """Returns the bytes that a kernel reads and writes, every tensor counted once."""
    by_name: dict[str, int] = collections.defaultdict(int)
    for dependency in [*node.read_writes.reads, *node.read_writes.writes]:
        if not isinstance(dependency, WeakDep) and dependency.name not in graph.removed_buffers:
            by_name[dependency.name] = max(by_name[dependency.name], graph.get_dep_size_hint(dependency))
    return sum(by_name.values())


class Holder:
    """Follows the code that Inductor writes line by line, and counts the bytes that its names hold."""

    def __init__(self, graph: GraphLowering) -> None:
        self.graph = graph
        self.storage: dict[str, int] = {}
        self.sizes: list[int] = []
        self.names: list[int] = []  # Number of names of each storage.
        self.bytes = 0
        self.peak_bytes = 0
        self.parts: dict[str, list[str]] = collections.defaultdict(list)  # Results of calls that have several.
        for name, buffer in graph.name_to_buffer.items():
            if isinstance(buffer, ir.MultiOutput):
                self.parts[buffer.inputs[0].get_name()].append(name)

    def size_of(self, name: str) -> int:
        buffer = self.graph.name_to_buffer.get(name) or self.graph.graph_inputs[name]
        if not isinstance(buffer.maybe_get_layout(), ir.Layout):
            return 0
        layout = buffer.get_layout()
        return allocated_bytes(layout.size, layout.stride, layout.dtype)

    def make(self, name: str, size: int) -> None:
        self.sizes.append(size)
        self.names.append(0)
        self.bytes += size
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        self.name(name, len(self.sizes) - 1)

    def name(self, name: str, storage: int) -> None:
        self.drop(name)
        self.storage[name] = storage
        self.names[storage] += 1

    def drop(self, name: str) -> None:
        if name in self.storage:
            storage = self.storage.pop(name)
            self.names[storage] -= 1
            self.bytes -= self.sizes[storage] if self.names[storage] == 0 else 0
        for part in self.parts.get(name, ()):
            self.drop(f"{part} in {name}")

    def read(self, line: str) -> None:
        if line.endswith(" = args"):
            for name in re.findall(r"\w+", line.removesuffix(" = args")):
                is_user_s = name.startswith(("primals", "tangents"))
                self.make(name, 0 if is_user_s else self.size_of(name))
        elif allocation := re.match(r"(\w+) = empty_strided\w*\((.*?)\)$", line):
            self.make(allocation[1], allocated_bytes(*eval(f"({allocation[2]})", {"torch": torch})[:3]))
        elif element := re.match(r"(\w+) = (\w+)\[\d+\]", line):
            self.name(element[1], self.storage[f"{element[1]} in {element[2]}"])
        elif alias := re.match(r"(\w+) = (?:reinterpret_tensor\()?(\w+)(?:;|$|,)", line):
            if alias[2] in self.storage:
                self.name(alias[1], self.storage[alias[2]])
        elif called := re.match(r"(buf\d+) = (?:torch\.ops|extern_kernels)", line):
            parts = self.parts.get(called[1], [])
            self.make(called[1], 0 if parts else self.size_of(called[1]))
            for part in parts:
                self.make(f"{part} in {called[1]}", self.size_of(part))
        for name in re.findall(r"\bdel (\w+)", line):
            self.drop(name)


def allocated_bytes(size: Any, stride: Any, dtype: torch.dtype) -> int:
    last = sum((int(length) - 1) * int(step) for length, step in zip(size, stride, strict=True)) + 1
    return 0 if 0 in size else -(-last * dtype.itemsize // 512) * 512


@dataclass
class Half:
    """Figures of the forward or backward code."""

    kernels: int
    moved_bytes: int
    held_bytes: int
    calls: collections.Counter[str]


def write_half(gm: torch.fx.GraphModule, inputs: Any, options: dict[str, Any], label: str) -> Half:
    is_backward = options.get("is_backward", False)
    compile_fx.view_to_reshape(gm)
    fake_mode = compile_fx.fake_tensor_prop(gm, inputs)
    compile_fx._recursive_record_original_output_strides(gm)
    with V.set_fake_mode(fake_mode), torch.no_grad(), DebugContext(), V.set_debug_handler(DebugContext()):
        compile_fx._recursive_post_grad_passes(gm, is_inference=False)
        graph = GraphLowering(
            gm,
            example_inputs=inputs,
            is_backward=is_backward,
            graph_id=0,
            const_output_index={},
            inputs_to_check=(),
            layout_opt=options.get("layout_opt"),
        )
        with V.set_graph_handler(graph):
            graph.run(*inputs)
            # Backward reads the layouts of the tensors that forward saves from here.
            strides = torch._guards.TracingContext.get().output_strides
            if strides is not None and not strides:
                layouts = [output.maybe_get_layout() for output in graph.graph_outputs]
                strides += [
                    tuple(map(int, layout.stride)) if isinstance(layout, ir.Layout) else None for layout in layouts
                ]
            code = graph.codegen()[0].value
            kernels = [node for node in graph.scheduler.nodes if not node.is_extern()]
            moved = sum(moved_bytes(node, graph) for node in kernels)
    if folder := os.environ.get("DUMP"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{label}-{'backward' if is_backward else 'forward'}.py").write_text(code)
    holder = Holder(graph)
    for line in code[code.rindex("def call(") :].splitlines():
        holder.read(line.strip())
    calls = collections.Counter(re.findall(r"(?:extern_kernels|torch\.ops\.\w+)\.(\w+)[\w.]*\(", code))
    return Half(len(kernels), moved, holder.peak_bytes, calls)


class PadProducts(CustomGraphPass):
    """Pads matrix products to multiples of eight elements, as Inductor does if a trial on the GPU is faster."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        aten = torch.ops.aten
        for node in graph.find_nodes(op="call_function", target=aten.mm.default):
            (rows, inner), (_, columns) = (argument.meta["val"].shape for argument in node.args)
            missing = [-size % 8 for size in (rows, inner, columns)]
            if not any(missing):
                continue

            def add(target: Any, *arguments: Any, like: torch.fx.Node = node) -> torch.fx.Node:
                new = graph.call_function(target, arguments)
                values = [
                    argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument for argument in arguments
                ]
                new.meta = {**like.meta, "val": target(*values)}
                return new

            with graph.inserting_before(node):
                pads = [[0, missing[1], 0, missing[0]], [0, missing[2], 0, missing[1]]]
                padded = [
                    add(aten.constant_pad_nd.default, argument, pad) if any(pad) else argument
                    for argument, pad in zip(node.args, pads, strict=True)
                ]
                result = add(aten.mm.default, *padded)
                for axis, size in enumerate((rows, columns)):
                    if result.meta["val"].shape[axis] > size:
                        result = add(aten.slice.Tensor, result, axis, 0, size)
            node.replace_all_uses_with(result)
            graph.erase_node(node)

    def uuid(self) -> None:
        return None


def show(gm: torch.fx.GraphModule, inputs: Any, point: str, mode: FakeTensorMode) -> None:
    kind, _, value = point.partition(":")
    halves: list[Half] = []

    def write(gm: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        halves.append(write_half(gm, inputs, options, point.replace(":", "-")))
        return compile_fx.make_boxed_func(end)

    budget = float(value) if kind == "torch" else 1.0
    patches: dict[str, Any] = {"force_disable_caches": True, "joint_custom_post_pass": PadProducts()}
    partitioner, compiler = None, write
    if kind == "inductor":
        partitioner = inductor.Partitioner(Settings(value, kernels="inductor"), 0, 0, None, by_plan=True)
        patches["custom_partitioner_fn"] = partitioner
        kernels.compile_fx_inner = write
        compiler = kernels.compiler_for(partitioner, [])
    options = {"enable_autograd_cache": False, "force_non_lazy_backward_lowering": True}
    with torch._functorch.config.patch(**options, activation_memory_budget=budget), mode:
        compile_fx.compile_fx(inductor.copy_of(gm), list(inputs), compiler, patches)
    forward, backward = halves
    moved = forward.moved_bytes + backward.moved_bytes
    text = f"{point:16} {forward.kernels:4} + {backward.kernels:4} kernels move {moved / GIB:6.2f} GiB"
    text += f", hold {forward.held_bytes / GIB:.3f} and {backward.held_bytes / GIB:.3f} GiB"
    if partitioner is not None:
        text += f", simulated {partitioner.planned_bytes() / GIB:.3f} GiB"
        text += f", {partitioner.time_ns / partitioner.step.plain_time_ns - 1:+.1%}"
    calls = forward.calls + backward.calls
    print(text, " ".join(f"{name} {count}" for name, count in sorted(calls.items())), sep="\n    ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="gpt2:LAYERS or resnet50:BLOCKS")
    parser.add_argument("points", nargs="+")
    arguments = parser.parse_args()
    pretend()
    estimate_costs()
    name, _, size = arguments.model.partition(":")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    captured: list[tuple[torch.fx.GraphModule, Any]] = []

    def keep(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., None]:
        captured.append((gm, inputs))
        return end

    with mode, contextlib.suppress(Ended):
        loss, batch = MODELS[name](int(size or 2))
        torch.compile(loss, backend=keep, dynamic=False)(batch)
    for point in arguments.points:
        show(*captured[0], point, mode)


if __name__ == "__main__":
    main()
