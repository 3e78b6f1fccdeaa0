"""headroom.Sequential as an object: copies, files, replaced tensors, and the memory that its output shares."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from stages import WIDTH, batch, expect_equal, gradients_of, pair, unless_modified  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")


def test_copies_and_files() -> None:
    plain, run, x = pair(lambda: nn.BatchNorm1d(WIDTH))
    assert list(run.state_dict()) == list(run.model.state_dict())
    file = io.BytesIO()
    torch.save(run, file)
    file.seek(0)
    for copied in (copy.deepcopy(run), pickle.loads(pickle.dumps(run)), torch.load(file, weights_only=False)):
        assert copied._plans == {}
        expect_equal(list(copied.state_dict().values()), list(run.state_dict().values()))
        reference = copy.deepcopy(copied.model)
        copied(x).sum().backward()
        reference(x).sum().backward()
        expect_equal(gradients_of(copied.model), gradients_of(reference))
    plain.load_state_dict(run.state_dict())
    run.load_state_dict({name: value + 1 for name, value in plain.state_dict().items()})
    expect_equal(list(run.model.parameters()), [value + 1 for value in plain.parameters()])
    nested = nn.ModuleDict({"run": run})
    assert list(nested.state_dict()) == [f"run.{name}" for name in plain.state_dict()]
    nested.load_state_dict(nested.state_dict())


def test_replaced_parameters_and_buffers_are_planned_again() -> None:
    plain, run, x = pair(lambda: nn.BatchNorm1d(WIDTH))
    state = {name: value.clone() * 2 for name, value in plain.state_dict().items()}
    for trained, forward in ((plain, plain), (run, run)):
        trained.load_state_dict({name: value.clone() for name, value in state.items()}, assign=True)
        forward(x).sum().backward()
        trained.double().float()
        forward(x).sum().backward()
    expect_equal(gradients_of(run.model), gradients_of(plain))
    expect_equal(list(run.model.buffers()), list(plain.buffers()))
    assert len(run._plans) == 1


ALIASES = {
    "identity": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Identity()),
    "flatten": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Unflatten(1, (4, 4)), nn.Flatten()),
    "unflatten": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Unflatten(1, (4, 4))),
    "tanh": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
}


@pytest.mark.parametrize("kind", ALIASES)
def test_the_output_may_be_changed_in_place(kind: str) -> None:
    torch.manual_seed(0)
    plain = ALIASES[kind]()
    model = copy.deepcopy(plain)
    outcomes = []
    for trained, forward in ((plain, plain), (model, headroom.Sequential(model, "1x"))):
        out = forward(batch())
        out.mul_(2)
        loss = out.square().sum()
        parameters = list(trained.parameters())
        gradients = unless_modified(lambda loss=loss, sources=parameters: list(torch.autograd.grad(loss, sources)))
        outcomes.append([out.detach(), *gradients])
    assert len(outcomes[0]) == (1 if kind == "tanh" else 3)
    expect_equal(outcomes[1], outcomes[0])


@pytest.mark.parametrize("only", [nn.Identity(), nn.Flatten(), nn.Unflatten(1, (4, 4))])
def test_an_output_that_is_the_input_is_not_changed_silently(only: nn.Module) -> None:
    x = batch().requires_grad_()
    run = headroom.Sequential(nn.Sequential(only), "1x")
    out = run(x * 1)
    assert torch.equal(out, only(x))
    out.square().sum().backward()
    assert torch.equal(x.grad, 2 * x)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        run(x * 1).mul_(2)
