"""Random programs: the part of a step around the compiled modules."""

from __future__ import annotations

import random

from programs.nets import write_net
from programs.program import Net, Program, Statement

OPTIMIZERS = (
    "torch.optim.SGD({parameters}, lr=0.05)",
    "torch.optim.SGD({parameters}, lr=0.05, momentum=0.9)",
    "torch.optim.AdamW({parameters}, lr=0.01)",
)
LOSSES = (
    "{y}.square().mean()",
    "({y} * 2).sum()",
    "({y} * 0.5).exp().mean()",
    "({y} * {y}.detach()).sum()",
    "nn.functional.softplus({y}).sum()",
)
HOOKED = (
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)",
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)",
    "torch.autograd.graph.save_on_cpu()",
)


class Call:
    """One forward of a step: its outputs, and whether it reads an earlier one's."""

    def __init__(self, net: int, outputs: list[str], reads: Call | None) -> None:
        self.net = net
        self.outputs = outputs
        self.root = self if reads is None else reads.root


class StepWriter:
    """Writes a program around modules."""

    def __init__(self, rng: random.Random, nets: list[Net], traits: set[str]) -> None:
        self.rng = rng
        self.nets = nets
        self.traits = traits
        self.setup: list[Statement] = []
        self.step: list[Statement] = []
        self.after: list[Statement] = []
        self.calls: list[Call] = []
        self.inputs: list[str] = []
        self.late: list[Statement] = []  # logged once all backwards are done
        self.mutates_input = "mutates input" in traits

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def say(self, text: str, *simpler: str) -> None:
        self.step.append(Statement(text, simpler=simpler))

    def set_up(self) -> None:
        for position, net in enumerate(self.nets):
            self.setup.append(Statement(f"net{position} = {net.name}()"))
            if self.chance(0.1):
                self.setup.append(Statement(f"first_of(net{position}).requires_grad_(False)"))
            if self.chance(0.1):
                self.setup.append(Statement(f"net{position}.eval()"))
        if self.chance(0.08) and len(self.nets) == 1:
            self.traits |= {"irregular", "eager part"}
            self.setup.append(Statement("outer = nn.Sequential(nn.Linear(16, 16), compile(net0), nn.Tanh())"))
            self.setup.append(Statement("run0 = outer", simpler=("run0 = outer = compile(net0)",)))
            if self.nets[0].output_count > 1:
                self.setup[-2:] = [Statement("run0 = compile(net0)")]
        else:
            self.setup += [Statement(f"run{i} = compile(net{i})") for i in range(len(self.nets))]
        needs_gradient = any("nn." not in line.text for net in self.nets for line in net.layers) or any(
            not net.layers for net in self.nets
        )
        for position in range(self.rng.choice((1, 1, 2))):
            gradient = ", requires_grad=True" if needs_gradient or self.chance(0.6) else ""
            self.setup.append(Statement(f"x{position} = torch.randn(32, 16{gradient})"))
            self.inputs.append(f"x{position}")
        trained = [f"*net{position}.parameters()" for position in range(len(self.nets))]
        trained += [f"*[x for x in ({', '.join(self.inputs)},) if x.requires_grad]"]
        self.setup.append(Statement(f"trained = [{', '.join(trained)}]"))
        unused = "unused output" in self.traits
        optimizer = OPTIMIZERS[0] if unused else self.rng.choice(OPTIMIZERS)
        self.setup.append(Statement(f"optimizer = {optimizer.format(parameters='trained')}"))
        self.setup.append(Statement("kept = []"))

    def input_for_call(self) -> tuple[str, Call | None]:
        """Returns an expression of 32 x 16, and the call whose output it reads."""
        if self.calls and self.chance(0.3):
            call = self.rng.choice(self.calls)
            return call.outputs[0], call
        text = self.rng.choice(self.inputs)
        if self.chance(0.2):
            self.traits |= {"irregular", "eager part"}
            text = self.rng.choice(("{x} * 1.5", "{x}.tanh()", "{x}.clone()", "({x} @ {x}.t()).softmax(-1) @ {x}"))
            text = text.format(x=self.rng.choice(self.inputs))
        return text, None

    def forward(self, net: int) -> None:
        text, reads = self.input_for_call()
        name = "abcdef"[len(self.calls)]
        outputs = [name, *[f"{name}{i}" for i in range(1, self.nets[net].output_count)]]
        if "mutates input" in self.traits:
            self.say(f"{name}_in = ({text}).clone()")
            self.late.append(Statement(f'log("{name}_in at the end", {name}_in)'))
            text, self.traits = f"{name}_in", self.traits | {"irregular"}
        call = Statement(f"{', '.join(outputs)} = run{net}({text}{self.second_input(net, text)})")
        wrapped = self.wrap(call)
        self.step += wrapped
        for output in outputs:
            self.step.append(Statement(f'log("{output}", {output})'))
            self.late.append(Statement(f'log("{output} at the end", {output})'))
        self.calls.append(Call(net, outputs, reads))

    def second_input(self, net: int, text: str) -> str:
        """Returns a second argument: the same tensor once more, or another."""
        if not self.nets[net].has_second_input:
            return ""
        return f", {text if self.chance(0.4) else self.rng.choice(self.inputs)}"

    def wrap(self, call: Statement) -> list[Statement]:
        if "autocast" in self.traits:
            call = Statement("with torch.autocast(DEVICE, torch.bfloat16):", [call])
        if self.chance(0.05):
            self.traits |= {"irregular", "saved tensors hooks"}
            call = Statement(f"with {self.rng.choice(HOOKED)}:", [call])
        return [call]

    def idle_forward(self) -> None:
        """Runs a forward without a backward, or one that does not need any."""
        self.traits.add("irregular")
        net = self.rng.randrange(len(self.nets))
        source = f"{self.rng.choice(self.inputs)}.clone()"
        source += self.second_input(net, source)
        call = Statement(f"run{net}({source})")
        choice = self.rng.randrange(5)
        if choice == 0:
            self.step.append(
                Statement("with torch.no_grad():", [Statement(f'log("idle", tree_leaves(run{net}({source})))')])
            )
        elif choice == 1:
            self.step.append(call)
        elif choice == 2:
            self.traits.add("in flight between steps")
            self.step.append(Statement(f"kept.append(run{net}({source}))"))
            self.late.append(Statement("if step == 2:", [Statement("kept.clear()")]))
        elif choice == 3:
            # The optimizer changes weights in between, so that plain PyTorch refuses most such backwards.
            self.traits |= {"user change", "in flight between steps"}
            later = [Statement("tree_leaves(kept.pop())[0].float().sum().backward()")]
            self.step.append(Statement("if kept:", later))
            self.step.append(Statement(f"kept.append(run{net}({source}))"))
        else:
            self.say(f"net{net}.eval()")
            self.step.append(
                Statement("with torch.no_grad():", [Statement(f'log("idle", tree_leaves(run{net}({source})))')])
            )
            self.say(f"net{net}.train()")

    def change(self) -> None:
        """Changes a tensor of the user between forward and backward."""
        self.traits |= {"irregular", "user change"}
        call = self.rng.choice(self.calls)
        targets = [f"{self.rng.choice(self.inputs)}.mul_(1.5)", f"first_of(net{call.net}).add_(0.1)"]
        if len(call.outputs) == 1 and call.outputs[0] not in ("x0", "x1"):
            targets.append(f"{call.outputs[0]}.add_(1.0)")
        body = [Statement(self.rng.choice(targets))]
        self.step.append(Statement("with torch.no_grad():", body))

    def lone_outputs(self) -> list[str]:
        """Returns outputs that are the only ones of their forward.

        Of several outputs that are views of each other, plain PyTorch adds the gradients of the views to that of their
        base; AOTAutograd makes each a result of its own.
        """
        return [call.outputs[0] for call in self.calls if len(call.outputs) == 1]

    def keep_gradients(self) -> None:
        """Keeps gradients by hooks; they are logged once all backwards are done."""
        self.traits.add("irregular")
        output = self.rng.choice([*self.lone_outputs(), ""])
        choice = self.rng.randrange(4) if output and self.nets[0].output_count == 1 else 2
        if choice == 0:
            self.say("gradients = []")
            self.say(f"{output}.register_hook(gradients.append)")
            self.late.append(Statement('log("kept by a hook", gradients)'))
        elif choice == 1:
            self.say(f"{output}.retain_grad()")
            self.late.append(Statement(f'log("retained", {output}.grad)'))
        elif choice == 2:
            self.setup.append(Statement("accumulated = {}"))
            hook = "parameter.register_post_accumulate_grad_hook(lambda p: accumulated.__setitem__(id(p), p.grad))"
            body = [Statement("if parameter.requires_grad:", [Statement(hook)])]
            self.setup.append(Statement("for parameter in trained:", body))
            self.late += [Statement('log("accumulated", [accumulated.get(id(p)) for p in trained])')]
            self.late += [Statement("accumulated.clear()")]
        else:
            self.setup.append(Statement("passed = []"))
            self.setup.append(Statement("run0 = nn.Sequential(run0)"))
            hook = "lambda _, ins, outs: passed.extend([*ins, *outs])"
            self.setup.append(Statement(f"run0.register_full_backward_hook({hook})"))
            self.late += [Statement('log("passed", passed)'), Statement("passed.clear()")]

    def term(self, call: Call) -> str:
        """Returns an expression of a loss of one forward."""
        outputs = call.outputs
        if "unused output" in self.traits:
            outputs = outputs[: self.rng.randrange(1, len(outputs) + 1)]
        terms = []
        for output in outputs:
            text = output
            if output == call.outputs[0] and self.chance(0.25):
                self.traits.add("sums in another order")
                text = f"({self.rng.choice(self.inputs)} + {output})"
            if self.chance(0.03):
                self.traits.add("expanded gradient")
                terms.append(f"{output}.sum()")
                continue
            terms.append(self.rng.choice(LOSSES).format(y=f"{text}.float()" if "autocast" in self.traits else text))
        return " + ".join(terms)

    def backward(self) -> None:
        groups: dict[int, list[Call]] = {}
        for call in self.calls:
            groups.setdefault(id(call.root), []).append(call)
        if len(groups) > 1 and self.chance(0.5):
            for position, calls in enumerate(groups.values()):
                self.say(f"loss{position} = {' + '.join(self.term(call) for call in calls)}")
                self.step.append(Statement(f'log("loss{position}", loss{position})'))
            for position in self.rng.sample(range(len(groups)), len(groups)):
                self.say(f"loss{position}.backward()")
            return
        last = self.calls[-1].outputs
        if len(self.calls) == 1 and len(last) == 1 and self.chance(0.25):
            vector = self.rng.choice(
                ("torch.ones_like({y})", "torch.randn_like({y})", "torch.ones_like({y}[0]).expand({y}.shape)")
            )
            if "expand" in vector:
                self.traits.add("expanded gradient")
            self.say(f"v = {vector.format(y=last[0])}")
            self.say(f"{last[0]}.backward(v)")
            self.late.append(Statement('log("v", v)'))
            return
        self.say(f"loss = {' + '.join(self.term(call) for call in self.calls)}")
        self.say('log("loss", loss)')
        if self.lone_outputs() and self.chance(0.15):
            self.traits.add("irregular")
            wanted = f"[{self.lone_outputs()[-1]}, *[p for p in trained if p.requires_grad]]"
            self.say(f"gradients_by = torch.autograd.grad(loss, {wanted}, allow_unused=True)")
            self.late.append(Statement('log("by grad", gradients_by)'))
            body = [Statement("p.grad = gradient")]
            pairs = "zip([p for p in trained if p.requires_grad], gradients_by[1:])"
            self.say("pass")
            self.step[-1] = Statement(f"for p, gradient in {pairs}:", body)
            return
        self.say("loss.backward()")

    def arm(self, when: str) -> None:
        self.traits.add("irregular")
        self.step.append(Statement("if step == 1:", [Statement(f'armed["{when}"] = True')]))

    def disarm(self, when: str) -> None:
        self.step.append(Statement(f'armed["{when}"] = False'))

    def write(self, seed: int) -> Program:
        self.set_up()
        raises = self.rng.choice(("forward", "backward")) if "fragile" in self.traits else ""
        if not self.chance(0.1):
            self.say(f"optimizer.zero_grad(set_to_none={self.chance(0.7)})")
        self.say("log.begin_step()")
        if raises == "forward":
            self.arm(raises)
        for position in range(max(len(self.nets), self.rng.choice((1, 1, 1, 2, 3)))):
            self.forward(position if position < len(self.nets) else self.rng.randrange(len(self.nets)))
            if self.chance(0.06):
                self.idle_forward()
        if raises == "forward":
            self.disarm(raises)
        if self.chance(0.15):
            self.keep_gradients()
        if self.chance(0.06):
            self.change()
        if raises == "backward":
            self.arm(raises)
        self.backward()
        if raises == "backward":
            self.disarm(raises)
        self.say("log.end_step()")
        if len(self.calls) > 1:
            self.traits |= {"irregular", "sums in another order"}
        if any(len(call.outputs) > 1 for call in self.calls):
            self.traits.add("sums in another order")
        self.step += self.late
        for position in range(len(self.nets)):
            self.step.append(Statement(f'log("net{position} gradients", gradients_of(net{position}))'))
        self.step += [Statement(f'log("{x}.grad", {x}.grad)') for x in self.inputs]
        self.say("optimizer.step()")
        for position in range(len(self.nets)):
            self.after.append(Statement(f'log("net{position} state", state_of(net{position}))'))
        self.after += [Statement(f'log("{x} at the end", {x})') for x in self.inputs]
        self.after += [Statement('log("random state", torch.get_rng_state())')]
        return Program(seed, self.nets, self.setup, self.step, self.after, traits=frozenset(self.traits))


def write_threads(rng: random.Random, seed: int) -> Program:
    """Returns a program in which two threads each train their own module."""
    nets = [write_net(rng, f"Net{i}", is_random=False, has_breaks=rng.random() < 0.3)[0] for i in range(2)]
    setup = [Statement("optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)")]
    for position, net in enumerate(nets):
        setup += [Statement(f"net{position} = {net.name}()"), Statement(f"run{position} = compile(net{position})")]
        setup.append(Statement(f"x{position} = torch.randn(32, 16, requires_grad=True)"))
        outputs = ["y", *["_"] * (net.output_count - 1)]
        # Dynamo recompiles for another number of threads, and each thread has its own number.
        body = [Statement("torch.set_num_threads(1)")]
        body.append(Statement(f"{', '.join(outputs)} = run{position}(x{position} * 1.5)"))
        body.append(Statement(f"(x{position} + y).square().mean().backward()"))
        loop = [Statement("for _ in range(3):", body)]
        caught = Statement("except Exception as error:", [Statement("problems.append(error)")])
        setup.append(Statement(f"def train{position}() -> None:", [Statement("try:", loop), caught]))
    # Compiled one after the other: PyTorch cannot call a compiled function while another thread traces one.
    setup += [Statement("problems = []"), Statement("train0()"), Statement("train1()")]
    step = [
        Statement("threads = [threading.Thread(target=target) for target in (train0, train1)]"),
        Statement("for thread in threads:", [Statement("thread.start()")]),
        Statement("for thread in threads:", [Statement("thread.join()")]),
        Statement("for error in problems:", [Statement("raise error")]),
    ]
    for position in range(2):
        step.append(Statement(f'log("net{position}", [*gradients_of(net{position}), *state_of(net{position})])'))
        step.append(Statement(f'log("x{position}.grad", x{position}.grad)'))
    traits = frozenset({"threads", "irregular", "unused output", "sums in another order"})
    return Program(seed, nets, setup, step, [], steps=2, traits=traits)


def generate(seed: int) -> Program:
    """Returns the program of a seed."""
    rng = random.Random(seed)
    if rng.random() < 0.02:
        return write_threads(rng, seed)
    traits: set[str] = set()
    if rng.random() < 0.1:
        traits.add("autocast")
    if rng.random() < 0.06:
        traits.add("fragile")
    nets = []
    is_random = rng.random() < 0.5
    for position in range(rng.choice((1, 1, 1, 2))):
        is_fragile = "fragile" in traits and position == 0
        net, net_traits = write_net(
            rng, f"Net{position}", is_random=is_random, is_fragile=is_fragile, second_input=0.12
        )
        nets.append(net)
        traits |= net_traits
    if any(net.output_count > 1 for net in nets) and rng.random() < 0.2:
        traits.add("unused output")
    return StepWriter(rng, nets, traits).write(seed)
