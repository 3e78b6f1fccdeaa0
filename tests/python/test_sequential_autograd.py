"""headroom.Sequential keeps autograd's guarantees. Each test compares with plain PyTorch."""

from __future__ import annotations

import copy
import gc
import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

import stages  # noqa: E402
from stages import WIDTH, batch, blocks, expect_equal, gradients_of, pair, recomputing, unless_modified  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")


STATEFUL = {
    "ema": stages.Ema,
    "queue": stages.Queue,
    "through a view": stages.ThroughView,
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "spectral norm by hooks": lambda: nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "unregistered": stages.Unregistered,
    "writes its parameter": stages.WritesParameter,
    "writes its parameter's data": lambda: stages.WritesParameter(through_data=True),
    "dropout": lambda: nn.Dropout(0.3),
    "own generator": stages.OwnGenerator,
    "relu in place": lambda: nn.ReLU(inplace=True),
}


@pytest.mark.parametrize("kind", STATEFUL)
def test_stages_with_state_train_as_plainly(kind: str) -> None:
    plain = blocks(STATEFUL[kind])
    model, x = copy.deepcopy(plain), batch()
    for share in (stages.smallest_share(copy.deepcopy(model), x), "0.8x"):
        expected, actual = copy.deepcopy(plain), copy.deepcopy(model)
        run = headroom.Sequential(actual, share)
        for trained, forward in ((expected, expected), (actual, run)):
            torch.manual_seed(2)
            optimizer = torch.optim.SGD(trained.parameters(), 0.1)
            for step in range(3):
                optimizer.zero_grad()
                forward(batch(step)).square().sum().backward()
                optimizer.step()
            trained.random = torch.get_rng_state()
        text = f"{kind}, {share}"
        expect_equal(gradients_of(actual), gradients_of(expected), text)
        expect_equal(list(actual.state_dict().values()), list(expected.state_dict().values()), text)
        assert torch.equal(actual.random, expected.random), text
        for block, reference in zip(actual, expected, strict=True):
            if isinstance(block.layer, stages.Unregistered):
                assert torch.equal(block.layer.state[0], reference.layer.state[0]), text
            if isinstance(block.layer, stages.OwnGenerator):
                assert torch.equal(block.layer.generator.get_state(), reference.layer.generator.get_state()), text


def test_a_buffer_that_a_later_stage_changes_is_seen_as_it_was() -> None:
    def make() -> nn.Sequential:
        torch.manual_seed(0)
        mean = torch.ones(WIDTH)
        layers = [stages.ReadsMean(mean), nn.Tanh(), nn.Tanh(), stages.Ema(mean), nn.Tanh(), nn.Tanh()]
        return nn.Sequential(*[stages.Block(layer) for layer in layers])

    plain, x = make(), batch()
    model = make()
    run = recomputing(model, x)
    for trained, forward in ((plain, plain), (model, run)):
        for step in range(2):
            forward(batch(step)).sum().backward()
        assert trained[0].layer.mean is trained[3].layer.mean
    expect_equal(gradients_of(model), gradients_of(plain))
    expect_equal(list(model.buffers()), list(plain.buffers()))


def test_two_forwards_wait_for_their_backwards() -> None:
    for kind in ("batch norm", "ema", "spectral norm", "dropout"):
        plain, run, x = pair(STATEFUL[kind])
        for forward in (plain, run):
            torch.manual_seed(4)
            losses = [forward(x).sum(), forward(x + 1).sum()]
            for loss in losses:
                loss.backward()
        expect_equal(gradients_of(run.model), gradients_of(plain), kind)
        expect_equal(list(run.model.buffers()), list(plain.buffers()), kind)


class ReplacesBuffer(stages.Ema):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x * (2 + self.mean)


class DrawsInPython(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import random

        return x * random.random()


def test_what_cannot_run_again_is_refused_by_name() -> None:
    model, x = blocks(ReplacesBuffer), batch()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(headroom.Unsupported, match="stage 0 replaces its tensor mean"):
        headroom.Sequential(model, "0.7x")(x)
    expect_equal(list(model.state_dict().values()), list(before.values()))
    with pytest.raises(headroom.Unsupported, match="stage 0 draws random numbers that are not PyTorch's"):
        headroom.Sequential(blocks(DrawsInPython), "0.7x")(x)
    first = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))
    kept = x.clone()
    with pytest.raises(ValueError, match="node '0' changes the network's input 'input' in place"):
        headroom.Sequential(first, "1x")(x)
    assert torch.equal(x, kept)


class SometimesUpdates(stages.Ema):
    """Changes its buffer only on request."""

    updates = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.updates:
            self.mean.add_(1)
        return x * (2 + self.mean)


class SometimesDraws(nn.Module):
    draws = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand_like(x) if self.draws else x


def test_what_measuring_did_not_see_gives_an_error_or_the_right_gradient() -> None:
    _, run, x = pair(SometimesUpdates)
    run.model[stages.rerun_stage(run, x)].layer.updates = True
    out = run(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    plain, run, x = pair(SometimesDraws)
    stage = stages.rerun_stage(run, x)
    for trained, forward in ((plain, plain), (run.model, run)):
        trained[stage].layer.draws = True
        torch.manual_seed(5)
        forward(x).sum().backward()
    expect_equal(gradients_of(run.model), gradients_of(plain))


@pytest.mark.parametrize("way", ["backward(v)", "residual", "two steps", "hooks", "retain_grad", "scaled", "grad"])
def test_incoming_gradients_are_left_alone(way: str) -> None:
    plain, run, _ = pair(trains_input=True)
    results = []
    for trained, forward in ((plain, plain), (run.model, run)):
        x, v = batch(3).requires_grad_(), batch(4)
        kept = v.clone()
        held: list[torch.Tensor] = []
        extra: list[torch.Tensor] = []
        handles = [trained[0].register_full_backward_hook(lambda _m, _i, o, held=held: held.extend(o))]
        out = forward(x)
        if way == "backward(v)":
            out.backward(v)
        elif way == "residual":
            (x + out).backward(v)
        elif way == "two steps":
            (out + forward(x)).backward(v)
        elif way == "hooks":
            out.register_hook(held.append)
            out.backward(v)
        elif way == "retain_grad":
            out.retain_grad()
            out.backward(v)
            extra.append(out.grad)
        elif way == "scaled":
            (out.sum() * 1024).backward()
        else:
            extra.extend(torch.autograd.grad(out, [x, *trained.parameters()], v))
        assert torch.equal(v, kept)
        results.append([*held, *extra, *([x.grad, *gradients_of(trained)] if way != "grad" else [])])
        for handle in handles:
            handle.remove()
    expect_equal(results[1], results[0], way)


MODIFIED = r"one of the variables needed for gradient computation has been modified by an inplace operation: \[torch.*"


def change(name: str, stage: nn.Module, x: torch.Tensor, out: torch.Tensor) -> None:
    with torch.no_grad():
        {
            "weight": stage.linear.weight,
            "frozen weight": stage.linear.bias,
            "input": x,
            "buffer": stage.layer.mean,
            "output": out,
        }[name].add_(1)


@pytest.mark.parametrize("name", ["weight", "frozen weight", "input", "buffer", "output"])
def test_a_change_between_forward_and_backward_is_pytorchs_error_or_harmless(name: str) -> None:
    def make() -> nn.Sequential:
        model = blocks(lambda: stages.ReadsMean(torch.ones(WIDTH)))
        for block in model:
            block.linear.bias.requires_grad_(False)
        return model

    x = batch().requires_grad_()
    run = recomputing(make(), x)
    stage = stages.rerun_stage(run, x)
    out = run(x)
    change(name, run.model[stage], x, out)
    with pytest.raises(RuntimeError, match=MODIFIED + r"is at version \d+; expected version \d+ instead"):
        out.sum().backward()
    for parameter in run.parameters():
        parameter.grad = None
    plain = copy.deepcopy(run.model)
    x = x.detach().clone().requires_grad_()
    run(x).sum().backward()
    plain(x.detach()).sum().backward()
    trained = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
    expect_equal([p.grad for p in trained], [p.grad for p in plain.parameters() if p.requires_grad])

    # Without a rerun only the checks of the tapes apply, as in plain PyTorch.
    model, x = make(), batch().requires_grad_()
    outcomes = []
    for module, forward in ((model, model), (copy.deepcopy(model), None)):
        forward = forward or headroom.Sequential(module)
        out = forward(x)
        change(name, module[stage], x, out)
        loss, weights = out.sum(), [block.linear.weight for block in module]
        outcomes.append(unless_modified(lambda loss=loss, weights=weights: list(torch.autograd.grad(loss, weights))))
        with torch.no_grad():
            x.copy_(batch())
    expect_equal(outcomes[1], outcomes[0])


def live_bytes() -> int:
    gc.collect()
    return headroom._C.Meter(torch.device("cpu")).current_bytes()


def test_steps_leave_no_bytes() -> None:
    _, run, x = pair(lambda: nn.BatchNorm1d(WIDTH))
    before = live_bytes()
    out = run(x)
    assert live_bytes() > before
    del out
    assert live_bytes() == before
    with pytest.raises(RuntimeError):
        run(x).backward(torch.ones(3))
    assert live_bytes() == before
    out = run(x).square().sum()
    run.model[0].linear.weight.data = run.model[0].linear.weight.data.clone()
    del out
    assert live_bytes() == before


class Raises(nn.Module):
    """Raises at a chosen call, or in a chosen backward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.raises: BaseException | None = None
        self.countdown = -1
        self.backward_raises: BaseException | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        x = nn.functional.dropout(x, 0.1)
        self.countdown -= 1
        if self.raises is not None and self.countdown < 0:
            raise self.raises
        if self.backward_raises is not None and x.requires_grad:
            x.register_hook(self.fail)
        return x.tanh()

    def fail(self, gradient: torch.Tensor) -> None:
        raise self.backward_raises


class Special(Exception):
    pass


@pytest.mark.parametrize("error", [Special("odd"), KeyboardInterrupt(), torch.OutOfMemoryError("full"), KeyError("k")])
@pytest.mark.parametrize("moment", ["first run", "rerun", "backward"])
def test_errors_keep_their_types_and_the_next_step_is_right(error: BaseException, moment: str) -> None:
    plain, run, x = pair(Raises)
    state = torch.get_rng_state()
    before = live_bytes()
    layer = run.model[1].layer
    calls = float(layer.calls)
    if moment == "backward":
        layer.backward_raises = error
    else:
        layer.raises, layer.countdown = error, int(moment == "rerun")
    after = []

    def step() -> None:
        loss = run(x).sum()
        after.append(torch.get_rng_state())
        loss.backward()

    with pytest.raises(type(error)) as caught:
        step()
    notes = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    work = "backward" if moment == "backward" else "forward"
    assert f"{work} of node '1' on [{stages.BATCH}, {WIDTH}]" in notes
    assert float(layer.calls) == calls + 1
    assert [torch.equal(torch.get_rng_state(), random_state) for random_state in after] == [True] * (
        moment != "first run"
    )
    caught = None
    after.clear()
    error.__traceback__ = None
    layer.raises = layer.backward_raises = None
    run.zero_grad()
    assert live_bytes() == before
    with torch.no_grad():
        plain.load_state_dict(run.state_dict())
    for forward in (plain, run):
        torch.set_rng_state(state)
        forward(x).sum().backward()
    expect_equal(gradients_of(run.model), gradients_of(plain))


def test_a_failing_hook_keeps_its_type() -> None:
    _, run, x = pair()
    out = run(x)

    def fail(_: torch.Tensor) -> None:
        raise Special("in a hook")

    out.register_hook(fail)
    with pytest.raises(Special, match="in a hook"):
        out.sum().backward()


def test_second_and_double_backward_are_refused() -> None:
    _, run, x = pair(trains_input=True)
    out = run(x).sum()
    out.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="runs once"):
        out.backward()
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(run(x).sum(), x, create_graph=True)


def test_threads_train_side_by_side() -> None:
    pairs = [pair(lambda: nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(WIDTH))) for _ in range(2)]
    problems: list[object] = []

    def work(run: headroom.Sequential, plain: nn.Sequential, x: torch.Tensor) -> None:
        # Masks as they were drawn first, taken from the outputs of dropout; the plain model uses them.
        masks: list[torch.Tensor] = []
        drops = [block.layer[0] for block in run.model]
        count = len(drops)
        try:
            for _ in range(20):
                masks.clear()
                handles = [
                    drop.register_forward_hook(lambda _m, _i, out: masks.append((out != 0).float() * 2))
                    for drop in drops
                ]
                run.zero_grad()
                plain.zero_grad()
                plain.load_state_dict(run.state_dict())
                loss = run(x).square().sum()
                first = list(masks[:count])
                loss.backward()
                for handle in handles:
                    handle.remove()
                value = x
                for block, mask in zip(plain, first, strict=True):
                    hidden = block.linear(value).tanh().sin() * mask
                    value = block.layer[1](hidden).sigmoid()
                value.square().sum().backward()
                expect_equal(gradients_of(run.model), gradients_of(plain))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(run, plain, x)) for plain, run, x in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_saved_tensor_hooks_around_a_step() -> None:
    plain, run, x = pair(lambda: nn.Dropout(0.2))
    for forward in (plain, run):
        torch.manual_seed(6)
        with torch.autograd.graph.save_on_cpu():
            out = forward(x)
        out.sum().backward()
    expect_equal(gradients_of(run.model), gradients_of(plain))
    fresh = headroom.Sequential(copy.deepcopy(plain), "0.7x")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        out = fresh(x)
    out.sum().backward()


def test_modes_between_forward_and_backward() -> None:
    plain, run, x = pair(lambda: nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(WIDTH)))
    for trained, forward in ((plain, plain), (run.model, run)):
        torch.manual_seed(7)
        out = forward(x)
        forward.eval()
        with torch.no_grad():
            forward(x)
        out.sum().backward()
        assert not any(module.training for module in trained.modules())
        forward.train()
    expect_equal(gradients_of(run.model), gradients_of(plain))
    expect_equal(list(run.model.buffers()), list(plain.buffers()))


class TakesNoNotes(Exception):
    def add_note(self, note: str) -> None:
        raise TypeError("no notes")


def test_an_error_that_takes_no_notes_keeps_its_type() -> None:
    _, run, x = pair(Raises)
    run.model[1].layer.raises = TakesNoNotes("odd")
    with pytest.raises(TakesNoNotes, match="odd"):
        run(x)


def test_kept_memory_is_left_only_where_it_was_entered() -> None:
    with pytest.raises(ValueError, match="without having been entered"):
        headroom._C.KeptMemory().__exit__(None, None, None)
