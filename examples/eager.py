"""Costs of a stage of a network in eager PyTorch (fp32, CUDA): exact bytes, and time on an imaginary device.

A stage is written down as the ops that PyTorch runs, each with what autograd saves for it and what its backward
allocates; Stage.measure() walks them forward and backward and counts.

    tape       all that the ops save, and the output; not the stage's input, which is there anyway
    forward    temporaries go when their last reader has run, what is saved stays
    backward   ops in reverse. An op allocates the gradients of its inputs and parameters while that of its output is
               alive; then that one goes, and so does what was saved for this op. Two gradients of one tensor are
               added in place when nothing else refers to the first. The stage's output stays to the end.

Not counted: scratch memory that kernels take for themselves (cuDNN's, that of reductions) and the allocator's rounding.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

FLOAT_BYTES = 4
INT64_BYTES = 8

# The device has 20 TFLOP/s and 1 TB/s. An op takes the longer of computing and moving its bytes.
FLOPS_PER_NS = 20_000
BYTES_PER_NS = 1_000


def device_ns(flops: int, moved_bytes: int) -> int:
    return max(-(-flops // FLOPS_PER_NS), -(-moved_bytes // BYTES_PER_NS))


@dataclass(eq=False)
class Storage:
    bytes: int


@dataclass(eq=False)
class Tensor:
    """A tensor with its own storage or, for views and ops in place, that of another."""

    shape: tuple[int, ...]
    storage: Storage
    needs_gradient: bool = True

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * FLOAT_BYTES


def new_tensor(*shape: int) -> Tensor:
    return Tensor(shape, Storage(math.prod(shape) * FLOAT_BYTES))


def window_shape(x: Tensor, channels: int, kernel: int, stride: int, padding: int) -> tuple[int, int, int, int]:
    """Returns the result of sliding a square window over images."""
    batch, _, height, width = x.shape
    return (
        batch,
        channels,
        (height + 2 * padding - kernel) // stride + 1,
        (width + 2 * padding - kernel) // stride + 1,
    )


@dataclass(eq=False)
class Op:
    inputs: tuple[Tensor, ...]
    output: Tensor
    saved: tuple[Storage, ...]
    parameter_bytes: int
    backward_workspace_bytes: int
    # The gradient of the output is also that of the inputs of the same size, without a copy.
    passes_gradient: bool
    forward_ns: int
    backward_ns: int


@dataclass
class Stage:
    """The ops of one stage, in the order in which they run. Each method runs one layer and returns its output."""

    input: Tensor
    with_weights: bool = True
    ops: list[Op] = field(default_factory=list)
    parameters: int = 0
    buffer_bytes: int = 0

    def conv(
        self, x: Tensor, channels: int, kernel: int, stride: int = 1, padding: int = 0, bias: bool = True
    ) -> Tensor:
        out = new_tensor(*window_shape(x, channels, kernel, stride, padding))
        patch = x.shape[1] * kernel * kernel
        return self._run(
            (x,), out, saved=(x.storage,), parameters=channels * (patch + bias), flops=2 * math.prod(out.shape) * patch
        )

    def linear(self, x: Tensor, features: int, bias: bool = True) -> Tensor:
        out = new_tensor(*x.shape[:-1], features)
        return self._run(
            (x,),
            out,
            saved=(x.storage,),
            parameters=features * (x.shape[-1] + bias),
            flops=2 * math.prod(out.shape) * x.shape[-1],
        )

    def relu_(self, x: Tensor) -> Tensor:
        """Runs in place. Backward masks the gradient into a new tensor by the saved result."""
        return self._run((x,), Tensor(x.shape, x.storage), saved=(x.storage,))

    def gelu(self, x: Tensor) -> Tensor:
        return self._run((x,), new_tensor(*x.shape), saved=(x.storage,))

    def dropout(self, x: Tensor) -> Tensor:
        """Runs the fused kernel: a new output and a mask of one byte for each element."""
        return self._run((x,), new_tensor(*x.shape), saved=(Storage(math.prod(x.shape)),))

    def max_pool(self, x: Tensor, kernel: int, stride: int, padding: int = 0) -> Tensor:
        out = new_tensor(*window_shape(x, x.shape[1], kernel, stride, padding))
        indices = Storage(math.prod(out.shape) * INT64_BYTES)
        return self._run((x,), out, saved=(x.storage, indices))

    def average(self, x: Tensor) -> Tensor:
        """Takes the global average of each channel. Backward needs only the shape."""
        return self._run((x,), new_tensor(*x.shape[:2]))

    def batch_norm(self, x: Tensor) -> Tensor:
        """Normalises channels. Saves its input, and mean and inverse deviation of each channel."""
        channels = x.shape[1]
        statistics = Storage(2 * channels * FLOAT_BYTES)
        self.buffer_bytes += 2 * channels * FLOAT_BYTES + INT64_BYTES  # running mean and variance, number of batches
        return self._run((x,), new_tensor(*x.shape), saved=(x.storage, statistics), parameters=2 * channels)

    def layer_norm(self, x: Tensor) -> Tensor:
        """Normalises rows. Saves its input, and mean and inverse deviation of each row."""
        statistics = Storage(2 * math.prod(x.shape[:-1]) * FLOAT_BYTES)
        return self._run((x,), new_tensor(*x.shape), saved=(x.storage, statistics), parameters=2 * x.shape[-1])

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Adds x and y, which may lack leading dimensions of x."""
        return self._run((x, y), new_tensor(*x.shape), passes_gradient=True)

    def add_(self, x: Tensor, y: Tensor) -> Tensor:
        return self._run((x, y), Tensor(x.shape, x.storage), passes_gradient=True)

    def flatten(self, x: Tensor) -> Tensor:
        view = Tensor((x.shape[0], math.prod(x.shape[1:])), x.storage)
        return self._run((x,), view, passes_gradient=True, moves_bytes=False)

    def attention(self, qkv: Tensor, heads: int) -> Tensor:
        """Runs causal flash attention: saves queries, keys, values, the output and the log-sum-exp of each row.

        Queries, keys and values are views of one tensor; their three gradients are put together into a new one.
        """
        batch, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        parts = self._run((qkv,), Tensor(qkv.shape, qkv.storage), moves_bytes=False)
        out = new_tensor(batch, tokens, width)
        row_sums = Storage(batch * heads * tokens * FLOAT_BYTES)
        return self._run(
            (parts,),
            out,
            saved=(qkv.storage, out.storage, row_sums),
            flops=2 * batch * tokens * tokens * width,
            backward_flops=5 * batch * tokens * tokens * width,
            backward_workspace_bytes=row_sums.bytes,
        )

    def embedding(self, ids: Tensor, vocabulary: int, width: int) -> Tensor:
        """Embeds token plus position. The token table is also the head's weight, where its parameters are counted:

        its gradient here is a temporary, added to the one that the head's backward has made.
        """
        batch, tokens = ids.shape
        table_bytes = vocabulary * width * FLOAT_BYTES if self.with_weights else 0
        token = self._run(
            (ids,), new_tensor(batch, tokens, width), saved=(ids.storage,), backward_workspace_bytes=table_bytes
        )
        positions = Storage(tokens * INT64_BYTES)
        position = self._run((), new_tensor(tokens, width), saved=(positions,), parameters=tokens * width)
        return self.add(token, position)

    def cross_entropy(self, x: Tensor) -> Tensor:
        """Runs log_softmax and nll_loss, which saves its input and the total weight. The labels are resident."""
        logarithms = new_tensor(*x.shape)
        self._run((x,), logarithms, saved=(logarithms.storage,))
        return self._run((logarithms,), new_tensor(), saved=(logarithms.storage, Storage(FLOAT_BYTES)))

    def _run(
        self,
        inputs: tuple[Tensor, ...],
        output: Tensor,
        *,
        saved: tuple[Storage, ...] = (),
        parameters: int = 0,
        flops: int = 0,
        backward_flops: int | None = None,
        backward_workspace_bytes: int = 0,
        passes_gradient: bool = False,
        moves_bytes: bool = True,
    ) -> Tensor:
        """Adds an op. By default, backward takes the forward's flops once for each gradient that it computes."""
        weight_bytes = parameters * FLOAT_BYTES
        wanted_bytes = [x.bytes for x in inputs if x.needs_gradient]
        extra = sum(s.bytes for s in saved if all(s is not x.storage for x in (*inputs, output)))
        forward_bytes = sum(x.bytes for x in inputs) + output.bytes + extra + weight_bytes if moves_bytes else 0
        backward_bytes = (
            0 if passes_gradient else output.bytes + sum(s.bytes for s in saved) + sum(wanted_bytes) + 2 * weight_bytes
        )
        if backward_flops is None:
            backward_flops = flops * (len(wanted_bytes) + (parameters > 0))
        self.parameters += parameters
        self.ops.append(
            Op(
                inputs=inputs,
                output=output,
                saved=saved,
                parameter_bytes=weight_bytes if self.with_weights else 0,
                backward_workspace_bytes=backward_workspace_bytes,
                passes_gradient=passes_gradient,
                forward_ns=device_ns(flops, forward_bytes),
                backward_ns=device_ns(backward_flops, backward_bytes),
            )
        )
        return output

    def measure(self, name: str, *, is_last: bool) -> dict[str, str | int]:
        """Returns the stage in the form of docs/formats.md.

        The model has at B's moment the whole tape, both gradients g_i and g_{i-1} and the parameters' gradients p_i;
        backward_workspace_bytes is what the real peak is above that, or, where the tape shrinks faster than gradients
        come, below. For convolution and ReLU: g_i and the masked gradient, then the masked one, g_{i-1} and p_i, so
        max(0, output - (g_{i-1} + p_i)).

        forward_workspace_bytes is that of the recorded run. A run without recording needs no more in all, and every
        stage is recorded once, with as much alive beside it, so no peak is understated.
        """
        output = self.ops[-1].output
        tape_bytes = sum(s.bytes for s in self._tape())
        gradient_bytes = sum(op.parameter_bytes for op in self.ops)
        input_gradient_bytes = self.input.bytes if self.input.needs_gradient else 0
        moment_bytes = tape_bytes + output.bytes + input_gradient_bytes + gradient_bytes
        return {
            "name": name,
            "forward_ns": sum(op.forward_ns for op in self.ops),
            "backward_ns": sum(op.backward_ns for op in self.ops),
            "output_bytes": output.bytes,
            "tape_bytes": tape_bytes,
            "forward_workspace_bytes": self._forward_peak() - tape_bytes,
            "backward_workspace_bytes": self._backward_peak(gradient_is_resident=is_last) - moment_bytes,
            "gradient_bytes": gradient_bytes,
        }

    def _tape(self) -> set[Storage]:
        saved = {s for op in self.ops for s in op.saved}
        return (saved | {self.ops[-1].output.storage}) - {self.input.storage}

    def _forward_peak(self) -> int:
        last_reader = {x.storage: i for i, op in enumerate(self.ops) for x in op.inputs}
        tape = self._tape()
        alive: set[Storage] = set()
        peak = 0
        for i, op in enumerate(self.ops):
            alive |= {op.output.storage, *op.saved} - {self.input.storage}
            peak = max(peak, sum(s.bytes for s in alive))
            alive = {s for s in alive if s in tape or last_reader.get(s, i) > i}
        return peak

    def _backward_peak(self, *, gradient_is_resident: bool) -> int:
        output = self.ops[-1].output
        gradient = Storage(output.bytes)
        gradients = {output: gradient}
        references = Counter([output.storage, gradient, *(s for op in self.ops for s in op.saved)])
        references[gradient] += gradient_is_resident
        kept = 0

        def now() -> int:
            return kept + sum(s.bytes for s, n in references.items() if n > 0 and s is not self.input.storage)

        peak = 0
        for op in reversed(self.ops):
            gradient = gradients.pop(op.output)
            differentiable = [x for x in op.inputs if x.needs_gradient]
            storages = [
                gradient if op.passes_gradient and x.bytes == op.output.bytes else Storage(x.bytes)
                for x in differentiable
            ]
            references.update(storages)
            kept += op.parameter_bytes
            peak = max(peak, now() + op.backward_workspace_bytes)
            references.subtract([gradient, *op.saved])
            for x, new in zip(differentiable, storages, strict=True):
                old = gradients.setdefault(x, new)
                if old is new:
                    continue
                if references[old] > 1:
                    gradients[x] = Storage(x.bytes)
                    references[gradients[x]] += 1
                    peak = max(peak, now())
                    references[old] -= 1
                references[new] -= 1
        return peak
