"""Traced steps call the kernels that eager calls, so that results have the same bits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from torch.nn import functional  # noqa: E402

from headroom import tracing  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone", "fresh_device")


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_dropout_of_any_rate(rate: float) -> None:
    x = torch.randn(64, 64, requires_grad=True)
    found = []
    for use in (lambda x: functional.dropout(x.sin(), rate), None):
        function = use or headroom.compile(lambda x: functional.dropout(x.sin(), rate), "1x")
        torch.manual_seed(1)
        y = function(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), x)))
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_dropout_of_a_transposed_tensor() -> None:
    x = torch.randn(16, 32, requires_grad=True)
    function = headroom.compile(lambda x: functional.dropout(x.t().sin(), 0.3), "1x")
    torch.manual_seed(1)
    expected = functional.dropout(x.t().sin(), 0.3)
    torch.manual_seed(1)
    assert torch.equal(function(x), expected)


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
    """Attention that writes out a mask only while it is compiled, as some models do."""
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
    found = torch.compile(lambda x: attend(x, seen), backend=backend)(x)
    assert [mask is not None for mask in masks] == [is_kept]
    torch.testing.assert_close(found, attend(x, seen), equal_nan=True)
