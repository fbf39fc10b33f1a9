"""The torch operators of every neuron: schema, fake tensors, autograd registration, tracing with dynamic shapes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from stdl_engine.kernels.operators import Operator
from stdl_engine.kernels.steps import Call, Wanted

from .compare import on_targets_and_dtypes
from .every_neuron import ALIF, LIF, PLIF, choices, every_neuron, random

wants_gradient = pytest.mark.parametrize("requires_grad", [False, True], ids=["constant", "gradient"])
STEP = Call(sequence=False, online=False, keep=False, keep_first=False, pack=True)
ONLINE = STEP._replace(online=True)


def check(operator: Operator, *arguments, **options) -> None:
    outcome = opcheck(operator.overload, tuple(operator.spread(arguments)), **options)
    assert set(outcome.values()) == {"SUCCESS"}


def operands(neuron, given, past: bool) -> tuple:
    """Input, states and decay as the operators take them."""
    given = given.leaves(past)
    learned = given.learned[0].detach().reshape(()).requires_grad_() if neuron.learned else None
    return given.x, *(*given.states, None)[:2], learned


def constant(tensors: tuple) -> tuple:
    return tuple(None if t is None else t.detach() for t in tensors)


@wants_gradient
@every_neuron
def test_opcheck_of_a_step(target, neuron, requires_grad):
    given = operands(neuron, random(neuron, (3, 5), device=target.device), past=True)
    given = given if requires_grad else constant(given)
    options = neuron.kernel_options._replace(backend=target.backend)
    check(neuron.operators.fresh, *given, options, STEP)


@every_neuron
@pytest.mark.parametrize("over", [False, True], ids=["", "over its input"])
@pytest.mark.parametrize("in_place", [False, True], ids=["", "over its state"])
def test_opcheck_of_an_online_step(target, neuron, in_place, over):
    x, *given = operands(neuron, random(neuron, (3, 5), device=target.device), past=False)
    x = x * 1 if over else x  # no leaf: those may not be written over
    options = neuron.kernel_options._replace(backend=target.backend)
    operators = neuron.operators
    choices = (operators.fresh, operators.fresh_over), (operators.online, operators.online_over)
    keep_first = in_place and neuron.learned
    check(choices[in_place][over], x, *given, options, ONLINE._replace(keep_first=keep_first))


@on_targets_and_dtypes(lambda target, dtype: target.takes(dtype) and dtype != torch.float32)
def test_opcheck_of_other_dtypes(target, dtype):
    given = operands(LIF, random(LIF, (3, 5), dtype, target.device), past=True)
    choice = next(one for one in choices(LIF) if one.dtype == dtype)
    options = LIF.kernel_options._replace(backend=target.backend, **LIF.variants[choice.variant])
    check(LIF.operators.fresh, *given, options, STEP)


@every_neuron
@pytest.mark.parametrize("online", [False, True], ids=["exact", "online"])
def test_opcheck_of_a_sequence(target, neuron, online):
    given = operands(neuron, random(neuron, (2, 4), device=target.device, steps=3), past=not online)
    options = neuron.kernel_options._replace(backend=target.backend)
    call = Call(sequence=True, online=online, keep=True, keep_first=False, pack=True)
    check(neuron.operators.fresh, *given, options, call)
    call = call._replace(online=True, keep_first=neuron.learned)
    check(neuron.operators.online, given[0], *constant(given[1:3]), given[3], options, call)


@every_neuron
@pytest.mark.parametrize("online", [False, True], ids=["exact", "online"])
def test_opcheck_of_the_backward(target, neuron, online):
    given = random(neuron, (3, 5), device=target.device)
    states = (*(t.clone() for t in given.states), None)[:2]
    first = (None, None) if online and not neuron.learned else (*given.states, None)[:2]
    grads = (None, None) if online else (*given.grad_states, None)[:2]
    w = given.learned[0].reshape(()) if neuron.learned else None
    wanted = Wanted(False, online, not online, neuron.learned, torch.float32)
    options = neuron.kernel_options._replace(backend=target.backend)
    arguments = *states, None, None, *first, given.grad_spikes, *grads, w, options, wanted
    check(neuron.operators.backward, *arguments)
    # Tracing asks for a second derivative, which there is none of; all else must hold.
    given.grad_spikes.requires_grad_()
    check(
        neuron.operators.backward,
        *arguments,
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


@pytest.mark.parametrize(
    "arrange",
    [
        lambda t: t.contiguous(memory_format=torch.channels_last),
        lambda t: t.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0),
        lambda t: t[:, :0],
    ],
    ids=["channels_last", "permuted", "empty"],
)
def test_opcheck_of_layouts(target, arrange):
    given = random(LIF, (2, 3, 4, 5), device=target.device)
    x, m, *rest = operands(LIF, given._replace(x=arrange(given.x), states=(arrange(given.states[0]),)), past=False)
    options = LIF.kernel_options._replace(backend=target.backend)
    check(LIF.operators.online, x, m, *rest, options, ONLINE)
    check(LIF.operators.fresh, x, m, *rest, options, STEP)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("online", [False, True], ids=["exact", "online"])
@every_neuron
def test_fake_tensors(neuron, online, dtype, device):
    """Shapes, strides, dtypes and gradients without any data; a GPU is not needed either."""
    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 5, dtype=dtype, device=device).to(memory_format=torch.channels_last)
        x.requires_grad_(device == "cpu")  # the engine of a CUDA build wants a real device to go back
        states = [torch.empty_like(x, dtype=torch.float32, requires_grad=False) for _ in range(neuron.states)]
        w = [torch.empty(1, device=device, requires_grad=device == "cpu")] if neuron.learned else []
        if online:
            spikes = neuron.step_(x, *states, *w)
        else:
            spikes, *states = neuron.step(x, *states, *w)
        for t, kind in ((spikes, dtype), *((state, torch.float32) for state in states)):
            assert (t.shape, t.stride(), t.dtype, t.device.type) == (x.shape, x.stride(), kind, device)
        if device == "cpu":
            spikes.backward(torch.empty_like(spikes))
            for t in (x, *w):
                assert (t.grad.shape, t.grad.dtype) == (t.shape, t.dtype)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@every_neuron
def test_fake_sequences(neuron, device):
    with FakeTensorMode():
        x = torch.empty(3, 2, 4, dtype=torch.bfloat16, device=device, requires_grad=device == "cpu")
        states = [torch.empty(2, 4, device=device) for _ in range(neuron.states)]
        w = [torch.empty(1, device=device)] if neuron.learned else []
        spikes, *new = neuron.sequence(x, *states, *w)
        over = neuron.sequence_(x, *states, *w)
        for t in (spikes, over):
            assert (t.shape, t.dtype, t.device.type) == (x.shape, x.dtype, device)
        assert all((t.shape, t.dtype) == ((2, 4), torch.float32) for t in new)
        if device == "cpu":
            (spikes + over).backward(torch.empty_like(spikes))
            assert x.grad.shape == x.shape


@every_neuron
def test_meta_tensors(neuron):
    x = torch.empty(2, 3, device="meta", requires_grad=True)
    states = [torch.zeros(2, 3, device="meta") for _ in range(neuron.states)]
    w = [torch.zeros(1, device="meta")] if neuron.learned else []
    spikes, *new = neuron.step(x, *states, *w)
    over = neuron.step_(x, *states, *w)
    assert all(t.shape == (2, 3) for t in (spikes, over, *new))
    (spikes + over).backward(torch.empty_like(spikes))
    assert x.grad.is_meta


@every_neuron
def test_second_derivative_is_refused(target, neuron):
    for sequence in (False, True):
        given = random(neuron, (5,), device=target.device, steps=2 if sequence else 0).leaves()
        function = neuron.sequence if sequence else neuron.step
        spikes, *_ = function(given.x, *given.states, *given.learned, backend=target.backend)
        (first,) = torch.autograd.grad(spikes, given.x, given.grad_spikes.requires_grad_(), create_graph=True)
        with pytest.raises(RuntimeError, match=f"fused {neuron.name.upper()} step has no second derivative: pass back"):
            first.sum().backward()


def test_names_that_clash_are_refused():
    def add(a: torch.Tensor, options: type(LIF.kernel_options)) -> torch.Tensor:
        return a

    with pytest.raises(ValueError, match="an operator cannot have two parameters a: rename one of them"):
        Operator("clashing", add, add, types={"a": torch.Tensor, "options": type(LIF.kernel_options)})


def test_every_operator_has_a_name_that_helps(target):
    """It shows in the graph, in profiles and in tracebacks."""
    for neuron in (LIF, PLIF, ALIF):
        given = random(neuron, (5,), device=target.device).leaves()
        spikes, *_ = neuron.step(given.x, *given.states, *given.learned, backend=target.backend)
        assert type(spikes.grad_fn).__name__ == f"{neuron.name}_stepsBackward"
