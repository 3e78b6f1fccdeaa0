"""The example files: published parameter counts, and bytes derived by hand."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import make_chains
import make_graphs
import pytest
from eager import Stage, new_tensor

EXAMPLES = Path(make_chains.__file__).parent
MIB = 1 << 20

PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet50": 25_557_032,
    "gpt24": 354_823_168,
}


def stage_of(chain: dict[str, Any], name: str) -> dict[str, Any]:
    return next(s for s in chain["stages"] if s["name"] == name)


def test_parameters_are_as_published() -> None:
    assert {network.name: network.parameters for network in make_chains.networks()} == PARAMETERS


def test_every_parameter_has_one_gradient() -> None:
    for network in make_chains.networks():
        assert sum(s["gradient_bytes"] for s in network.chain()["stages"]) == 4 * network.parameters


def test_resident_is_weights_buffers_and_labels() -> None:
    assert make_chains.vgg("vgg16").chain()["resident_bytes"] == 4 * PARAMETERS["vgg16"] + 8 * 32
    # 26,560 channels are normalised in 53 layers: running mean and variance, and a counter for each layer.
    assert make_chains.resnet50().chain()["resident_bytes"] == 4 * PARAMETERS["resnet50"] + 8 * 26_560 + 8 * 53 + 8 * 32
    assert make_chains.gpt24().chain()["resident_bytes"] == 4 * PARAMETERS["gpt24"] + 8 * 8 * 1024


def test_vgg19_has_the_stages_of_the_paper() -> None:
    names = [s["name"] for s in make_chains.vgg("vgg19").chain()["stages"]]
    assert {i: name for i, name in enumerate(names, start=1) if not name.startswith("conv")} == {
        3: "pool1",
        6: "pool2",
        11: "pool3",
        16: "pool4",
        21: "pool5",
        22: "fc6",
        23: "fc7",
        24: "fc8",
        25: "loss",
    }


def reentrant_peak(chain: dict[str, Any], checkpoints: list[int]) -> int:
    """Peak of the backward pass with reentrant checkpoints: what is recomputed at a segment's end, and its gradient,

    stay through the segment. All of g_L is there throughout.
    """
    stages = chain["stages"]
    output = [chain["input_bytes"], *(s["output_bytes"] for s in stages)]
    gradient = [chain["input_gradient_bytes"], *output[1:]]
    tape = [0, *(s["tape_bytes"] for s in stages)]
    workspace = [0, *(s["backward_workspace_bytes"] for s in stages)]
    last = len(stages)
    ends = [0, *checkpoints, last]
    peak = 0
    for start, end in itertools.pairwise(ends):
        before = sum(output[c] for c in ends if c <= start) + output[last]
        for k in range(start + 1, end + 1):
            held = output[end] + gradient[end] if k < end < last else 0
            own = gradient[k] if k < last else 0
            peak = max(peak, before + held + sum(tape[start + 1 : k + 1]) + own + gradient[k - 1] + workspace[k])
    return peak


@pytest.mark.parametrize(("name", "times_first_conv"), [("vgg11", 3.5), ("vgg13", 4.5), ("vgg16", 4.5), ("vgg19", 4.5)])
def test_vgg_with_a_checkpoint_at_every_pool_takes_what_was_published(name: str, times_first_conv: float) -> None:
    chain = make_chains.vgg(name, 64, with_weights=False).chain()
    pools = [i for i, s in enumerate(chain["stages"], start=1) if s["name"].startswith("pool")]
    first_conv = chain["stages"][0]["output_bytes"]
    assert first_conv == 784 * MIB
    assert chain["input_bytes"] == 36.75 * MIB
    # At conv1_2: two conv outputs, their gradients, and pool1's output and gradient, a quarter each: 4.5. VGG-11 at
    # conv1_1: its output, its gradient and the masked one, and the two quarters: 3.5. The loss has a gradient: 4 bytes.
    assert reentrant_peak(chain, pools) == times_first_conv * 784 * MIB + 36.75 * MIB + 4
    assert chain["resident_bytes"] == 0
    assert all(s["gradient_bytes"] == 0 for s in chain["stages"])


def test_conv_relu() -> None:
    chain = make_chains.vgg("vgg11").chain()
    first, second = stage_of(chain, "conv1_1"), stage_of(chain, "conv3_2")
    assert first["tape_bytes"] == first["output_bytes"] == 32 * 64 * 224 * 224 * 4
    # No gradient of the images: the masked gradient is on top, but for the weights' gradient that comes after it.
    assert first["gradient_bytes"] == (64 * 27 + 64) * 4
    assert first["backward_workspace_bytes"] == first["output_bytes"] - first["gradient_bytes"]
    # The gradient of the input is as large as that of the output, which is gone by then.
    assert second["backward_workspace_bytes"] == 0


def test_pool_saves_indices() -> None:
    pool = stage_of(make_chains.vgg("vgg11").chain(), "pool1")
    assert pool["output_bytes"] == 32 * 64 * 112 * 112 * 4
    assert pool["tape_bytes"] == 3 * pool["output_bytes"]
    assert (pool["forward_workspace_bytes"], pool["backward_workspace_bytes"]) == (0, 0)


def test_linear_relu_dropout() -> None:
    fc = stage_of(make_chains.vgg("vgg11").chain(), "fc7")
    elements = 32 * 4096
    # ReLU's result, the dropout's output and its mask.
    assert fc["tape_bytes"] == elements * (4 + 4 + 1)
    # The peak is linear's backward, when the mask and ReLU's result are gone.
    assert fc["backward_workspace_bytes"] == -elements * (4 + 1)


def test_loss() -> None:
    loss = stage_of(make_chains.vgg("vgg11").chain(), "loss")
    logits = 32 * 1000 * 4
    assert loss["output_bytes"] == 4
    assert loss["tape_bytes"] == logits + 4 + 4
    # log_softmax's backward: the gradient of its output on top; the total weight is gone.
    assert loss["backward_workspace_bytes"] == logits - 4


def test_bottleneck() -> None:
    chain = make_chains.resnet50().chain()
    unit = 32 * 64 * 56 * 56 * 4  # one of the inner tensors; the block's output is four of them
    first, second = stage_of(chain, "layer1.0"), stage_of(chain, "layer1.1")
    # Two inner convolutions and normalisations, 4 units; the third convolution and the output, 8; statistics.
    assert second["output_bytes"] == 4 * unit
    assert second["tape_bytes"] == 12 * unit + 2 * 4 * (64 + 64 + 256)
    assert second["forward_workspace_bytes"] == 0
    # The branch: its convolution is saved, its normalisation is there until it has been added.
    assert first["tape_bytes"] == 16 * unit + 2 * 4 * (64 + 64 + 256 + 256)
    assert first["forward_workspace_bytes"] == 4 * unit


def test_downsampling_bottleneck_backward() -> None:
    # Units of an inner tensor as above; the input is one unit. The engine goes through the branch first:
    #   ReLU             g_i 4, masked 4                                       8 above the tape
    #   branch's norm    masked 4, gradient of its input 4, its parameters     8
    #   branch's conv    masked 4, that 4, gradient of x 1                     9, saved conv 4 gone: 5
    # At the branch's norm its saved input is still there, so the peak is tape + 8 + what parameters have come;
    # the model counts tape + 4 + 1 + all parameters.
    unit = 32 * 64 * 56 * 56 * 4
    block = stage_of(make_chains.resnet50().chain(), "layer1.0")
    norm_parameters = 2 * 256 * 4
    assert block["backward_workspace_bytes"] == 3 * unit + norm_parameters - block["gradient_bytes"]


def test_transformer_block() -> None:
    block = stage_of(make_chains.gpt24().chain(), "block7")
    tokens = 8 * 1024
    unit = tokens * 1024 * 4
    # norm 1, qkv 3, attention 1, sum 1, norm 1, hidden 4, gelu 4, output 1; two norms' statistics; 16 heads' sums
    assert block["tape_bytes"] == 16 * unit + 2 * tokens * 2 * 4 + tokens * 16 * 4
    # The second projection's result, until it has been added.
    assert block["forward_workspace_bytes"] == unit
    # The peak is gelu's backward: gradients of the output (1), of gelu's output (4) and of its input (4), and the last
    # layer's parameters; gelu's own output (4) has gone. The model counts two gradients and all parameters.
    last_layer = (4 * 1024 + 1) * 1024 * 4
    assert block["backward_workspace_bytes"] == 3 * unit + last_layer - block["gradient_bytes"]


def test_tied_weight_counts_once() -> None:
    chain = make_chains.gpt24().chain()
    table = 50257 * 1024 * 4
    embedding, head = stage_of(chain, "embedding"), stage_of(chain, "head")
    assert head["gradient_bytes"] == table + 2 * 1024 * 4
    assert embedding["gradient_bytes"] == 1024 * 1024 * 4
    # The second gradient of the table is a temporary; the position ids have gone by then.
    assert embedding["backward_workspace_bytes"] == table - 1024 * 8


def test_gradients_are_added_in_place() -> None:
    # gelu's backward makes a second gradient of x beside the sum's, and it is added into that one.
    x = new_tensor(10)
    stage = Stage(x)
    stage.add(x, stage.gelu(x))
    assert stage.measure("stage", is_last=False)["backward_workspace_bytes"] == 0


def test_gradients_that_others_still_need_are_not_overwritten() -> None:
    # When b's backward has made its gradient of x, the one that is there already still waits for a's backward too.
    x = new_tensor(10)
    stage = Stage(x)
    a, b = stage.gelu(x), stage.gelu(x)
    stage.add(stage.add(x, a), b)
    assert stage.measure("stage", is_last=False)["backward_workspace_bytes"] == x.bytes


def test_files_are_what_the_scripts_write(tmp_path: Path) -> None:
    for script in ("make_chains.py", "make_graphs.py"):
        subprocess.run([sys.executable, EXAMPLES / script, "--check"], check=True)
        other = [sys.executable, EXAMPLES / script, "--check", "--out-dir", tmp_path]
        assert subprocess.run(other, check=False, capture_output=True).returncode == 1
        subprocess.run([sys.executable, EXAMPLES / script, "--out-dir", tmp_path, "--batch", "2"], check=True)
        missing = subprocess.run(other, check=False, capture_output=True, text=True)
        assert missing.returncode == 1
        assert f"not what {script} writes" in missing.stderr
        subprocess.run([*other, "--batch", "2"], check=True)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in EXAMPLES.glob("*.json")}


def test_batch_scales_activations() -> None:
    small, large = make_chains.vgg("vgg11", 1).chain(), make_chains.vgg("vgg11", 7).chain()
    assert [7 * s["output_bytes"] for s in small["stages"][:-1]] == [s["output_bytes"] for s in large["stages"][:-1]]


def test_unet_is_a_training_step() -> None:
    graph = make_graphs.unet()
    values = {v["name"]: v for v in graph["values"]}
    alive = {v["name"] for v in graph["values"] if v.get("resident")}
    weights = {name for name in alive if name.endswith(".weight")}
    for op in graph["ops"]:
        assert set(op["inputs"]) <= alive, op["name"]
        assert not set(op["outputs"]) & alive, op["name"]
        for name in op.get("overwrites", []):
            assert name in op["inputs"]
            assert values[name]["bytes"] == values[op["outputs"][0]]["bytes"]
        alive |= set(op["outputs"])
    assert alive == set(values)
    assert set(graph["outputs"]) == {"loss"} | {f"grad.{w}" for w in weights}
    # Down 10,144, 55,424 and 221,440, bottom 885,248, up 573,824, 143,552 and 35,936, head 66.
    assert sum(values[w]["bytes"] for w in weights) == 4 * 1_925_634
    assert json.loads(make_chains.to_text(graph)) == graph
