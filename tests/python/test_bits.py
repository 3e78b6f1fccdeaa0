"""Traced steps call the kernels that eager calls, so that results have the same bits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from headroom.graph import tracing  # noqa: E402
from torch.nn import functional  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone", "fresh_device")


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_dropout_of_any_rate(rate: float) -> None:
    x = torch.randn(64, 64, requires_grad=True)
    results = []
    for use in (lambda x: functional.dropout(x.sin(), rate), None):
        function = use or headroom.compile(lambda x: functional.dropout(x.sin(), rate), "1x")
        torch.manual_seed(1)
        y = function(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), x)))
    assert all(torch.equal(left, right) for left, right in zip(*results, strict=True))


def test_dropout_of_a_transposed_tensor() -> None:
    x = torch.randn(16, 32, requires_grad=True)
    function = headroom.compile(lambda x: functional.dropout(x.t().sin(), 0.3), "1x")
    torch.manual_seed(1)
    expected = functional.dropout(x.t().sin(), 0.3)
    torch.manual_seed(1)
    assert torch.equal(function(x), expected)


@pytest.mark.parametrize("budget", ["1x", "0.95x"])
def test_views_of_results_that_kernels_lay_out_otherwise(budget: str) -> None:
    """On the CPU, the result of a batch norm of a transposed bf16 tensor is contiguous, but transposed when traced."""
    weight, bias = (torch.rand(16, requires_grad=True) for _ in range(2))
    x = torch.randn(32, 16, dtype=torch.bfloat16, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        rows = x.sin().view(16, 32).t()
        rows = functional.batch_norm(rows, None, None, weight, bias, training=True)
        return rows.t().reshape(-1).sigmoid().float().square().sum()

    wanted = [x, weight, bias]
    expected = torch.autograd.grad(function(x), wanted)
    actual = torch.autograd.grad(headroom.compile(function, budget)(x), wanted)
    assert all(torch.equal(left, right) for left, right in zip(expected, actual, strict=True))


INTERPOLATIONS = [
    ("linear", (2, 3, 8)),
    ("bilinear", (2, 3, 8, 8)),
    ("bicubic", (2, 3, 8, 8)),
    ("trilinear", (2, 3, 8, 8, 8)),
    ("nearest", (2, 3, 8, 8)),
    ("nearest-exact", (2, 3, 8, 8)),
    ("area", (2, 3, 8, 8)),
]


@pytest.mark.parametrize(("mode", "shape"), INTERPOLATIONS)
def test_interpolations(mode: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, requires_grad=True)
    corners = {"align_corners": True} if "linear" in mode else {}

    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x.sin(), scale_factor=1.7, mode=mode, **corners)

    (expected,) = torch.autograd.grad(function(x).square().sum(), x)
    y = headroom.compile(function, "1x")(x)
    assert torch.equal(y, function(x))
    assert torch.equal(torch.autograd.grad(y.square().sum(), x)[0], expected)


def attend(x: torch.Tensor, seen: int) -> torch.Tensor:
    """Attention that writes out a mask only while compiled, as some models do."""
    mask = None
    if torch.compiler.is_compiling() or seen < 16:
        mask = (torch.arange(16) < seen)[None, None, :, None].expand(2, 1, 16, 16)
    heads = x.view(2, 4, 16, 8)
    return functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask).sin()


@pytest.mark.parametrize(("seen", "is_kept"), [(16, False), (12, True)])
def test_only_a_mask_that_masks_nothing_is_dropped(seen: int, *, is_kept: bool) -> None:
    masks = []

    def backend(gm: torch.fx.GraphModule, _: object) -> object:
        tracing.drop_full_masks(gm)
        target = functional.scaled_dot_product_attention
        masks.extend(node.kwargs["attn_mask"] for node in gm.graph.find_nodes(op="call_function", target=target))
        return gm

    x = torch.randn(1024)
    actual = torch.compile(lambda x: attend(x, seen), backend=backend)(x)
    assert [mask is not None for mask in masks] == [is_kept]
    torch.testing.assert_close(actual, attend(x, seen), equal_nan=True)


# The behaviour of transformers while traced, in files of the same names.
MASKS = """
def causal_mask(batch, length, torch):
    places = torch.arange(length)
    return (places[None, None, None, :] <= places[None, None, :, None]).expand(batch, -1, length, length)


def window_mask(batch, length, torch):
    places = torch.arange(length)
    return causal_mask(batch, length, torch) & (places[None, None, None, :] > places[None, None, :, None] - 4)
"""
HEADS = """
def repeat_heads(x, count):
    batch, heads, length, width = x.shape
    x = x[:, :, None, :, :].expand(batch, heads, count, length, width)
    return x.reshape(batch, heads * count, length, width)
"""


def functions_of(source: str, path: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile(source, path, "exec"), names)
    return SimpleNamespace(**names)


def attention(queries: torch.Tensor, keys: torch.Tensor, *, kind: str, folder: str) -> Callable[..., torch.Tensor]:
    """Attention that passes `is_causal` in eager, and writes out the mask and repeats heads while compiled."""
    masks = functions_of(MASKS, f"/packages/{folder}/masking_utils.py")
    heads = functions_of(HEADS, f"/packages/{folder}/integrations/sdpa_attention.py")
    make = getattr(masks, f"{kind}_mask")
    batch, count, length, _ = queries.shape
    groups = count // keys.shape[1]

    def attend(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        q, k = queries.sin(), keys.cos()
        if kind == "causal" and not torch.compiler.is_compiling():
            return functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=groups > 1)
        k = heads.repeat_heads(k, groups) if groups > 1 else k
        return functional.scaled_dot_product_attention(q, k, k, attn_mask=make(batch, length, torch))

    return attend


@pytest.mark.parametrize(("kind", "key_heads"), [("causal", 4), ("causal", 1), ("window", 4)])
def test_masks_that_only_tracing_writes_out(kind: str, key_heads: int) -> None:
    torch.manual_seed(0)
    queries = torch.randn(2, 4, 16, 8, requires_grad=True)
    keys = torch.randn(2, key_heads, 16, 8, requires_grad=True)
    function = attention(queries, keys, kind=kind, folder="transformers")
    meter = headroom.Meter(torch.device("cpu"))

    def train(run: Any) -> tuple[int, list[torch.Tensor]]:
        gc.collect()
        before = meter.current_bytes()
        meter.reset_peak()
        gradients = torch.autograd.grad(run(queries, keys), [queries, keys])
        return meter.peak_bytes() - before, list(gradients)

    def loss(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return function(queries, keys).square().sum()

    plain_bytes, expected = train(loss)
    plans: list[Any] = []
    run = headroom.compile(loss, "1x", cache=False, on_plan=plans.append)
    train(run)
    planned = headroom.plan(loss, queries, keys, cache=False)
    assert planned.peak - planned.before == plans[-1].predicted_bytes
    actual_bytes, actual = train(run)
    assert all(map(torch.equal, actual, expected))
    assert actual_bytes <= 1.01 * plain_bytes


def test_masks_of_others_are_kept() -> None:
    queries = torch.randn(2, 4, 16, 8)
    given = []

    def backend(gm: torch.fx.GraphModule, _: object) -> object:
        tracing.drop_full_masks(gm)
        (node,) = gm.graph.find_nodes(op="call_function", target=functional.scaled_dot_product_attention)
        given.append((node.kwargs["attn_mask"] is not None, node.kwargs.get("is_causal", False)))
        return gm

    for folder in ("mine", "transformers"):
        torch.compile(attention(queries, queries, kind="causal", folder=folder), backend=backend)(queries, queries)
    assert given == [(True, False), (False, True)]


def test_layers_share_one_converted_mask() -> None:
    """Each call of attention converts a mask of booleans, and plain training keeps all the results."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 64, 8, requires_grad=True)
    is_seen = torch.arange(64) < torch.tensor([40, 64])[:, None]

    def loss(x: torch.Tensor, is_seen: torch.Tensor) -> torch.Tensor:
        mask = is_seen[:, None, None, :].expand(2, 1, 64, 64)
        for _ in range(4):
            x = functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        return x.square().sum()

    meter = headroom.Meter(torch.device("cpu"))
    results = []
    run = headroom.compile(loss, "1x", cache=False)
    run(x, is_seen)
    for function in (loss, run):
        before = meter.current_bytes()
        meter.reset_peak()
        (gradient,) = torch.autograd.grad(function(x, is_seen), x)
        results.append((meter.peak_bytes() - before, gradient))
    (plain_bytes, expected), (actual_bytes, gradient) = results
    assert torch.equal(gradient, expected)
    one_mask = 2 * 64 * 64 * 4
    assert actual_bytes <= plain_bytes - 3 * one_mask
