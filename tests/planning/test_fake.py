"""Results of operators on fake tensors that are remembered are those that PyTorch computes."""

import functools

import pytest
import torch

from stdl_engine.planning import fake
from stdl_engine.planning.fake import Faking, fake_copy, faking
from stdl_engine.planning.planner import traced_step
from stdl_engine.rules import BPTT, ELL, SLTT, STDL

from .fit_nets import ADAMW, IMAGE, SGD, convolutional, counting, residual

aten = torch.ops.aten


def described(result, args):
    """All that a program can see of a result: its form, and which arguments it is or shares memory with."""
    if isinstance(result, list | tuple):
        return type(result), [described(value, args) for value in result]
    if not isinstance(result, torch.Tensor):
        return result
    storage = result.untyped_storage()
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return (
        *(result.shape, result.stride(), result.storage_offset(), result.dtype, result.device, result.requires_grad),
        storage.nbytes(),
        [result is arg for arg in tensors],
        [storage._cdata == arg.untyped_storage()._cdata for arg in tensors],
    )


def maps():
    return torch.empty(2, 6, 5, 4, dtype=torch.float32).to(memory_format=torch.channels_last)


CALLS = {
    "convolution": lambda x: (
        aten.convolution,
        x,
        torch.empty(8, 6, 3, 3),
        None,
        [1, 1],
        [1, 1],
        [1, 1],
        False,
        [0, 0],
        1,
    ),
    "sum of broadcast maps": lambda x: (aten.add, x, torch.empty(6, 1, 1)),
    "in place": lambda x: (aten.add_, x, 1.0),
    "one tensor twice": lambda x: (aten.add, x, x),
    "a view": lambda x: (aten.view, x.contiguous(), [12, 20]),
    "a slice": lambda x: (aten.slice, x, 0, 1, 2),
    "a transposed view": lambda x: (aten.permute, x, [3, 0, 1, 2]),
    "an expanded view": lambda x: (aten.expand, torch.empty(1, 3), [4, 3]),
    "views": lambda x: (aten.split, x, 1),
    "several results": lambda x: (aten.native_batch_norm, x, *(torch.empty(6) for _ in range(4)), True, 0.1, 1e-5),
    "no numbers": lambda x: (aten.mul, torch.empty(0, 3), 2),
    "another dtype": lambda x: (aten.mul, x.to(torch.int32), 0.5),
    "detached": lambda x: (aten.detach, x),
    "a sum": lambda x: (aten.sum, x, [0, 2]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_second_call_returns_what_the_first_did(name):
    with Faking() as mode:
        first, second = CALLS[name](maps()), CALLS[name](maps())
        expected = described(first[0](*first[1:]), first[1:])
        known = len(mode.remembered)
        assert described(second[0](*second[1:]), second[1:]) == expected
        assert len(mode.remembered) == known


def test_an_argument_that_is_equal_and_of_another_type_is_another_argument():
    with faking():
        x = torch.empty(3, dtype=torch.int32)
        assert [(x * factor).dtype for factor in (1, 1.0, True)] == [torch.int32, torch.float32, torch.int32]


def test_the_default_dtype_is_remembered_too():
    with faking():
        try:
            torch.set_default_dtype(torch.float64)
            assert torch.empty(3).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        assert torch.empty(3).dtype == torch.float32


def test_a_tensor_changed_in_shape_is_not_remembered():
    with faking():
        for _ in range(2):
            x = torch.empty(2, 3)
            x.t_()
            assert x.shape == (3, 2)


@pytest.mark.parametrize(
    ("rule", "network", "optimizer", "options"),
    [
        (functools.partial(STDL, budget=0.7), residual, SGD, {}),
        (functools.partial(STDL, budget=0.6), counting, ADAMW, {"recompute": "all"}),
        (BPTT, residual, SGD, {"recompute": "twice"}),
        (BPTT, convolutional, SGD, {"memory": "paper"}),
        (SLTT, convolutional, SGD, {"precision": "bf16", "chunk": 2}),
        (ELL, counting, SGD, {"order": "time"}),
    ],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_training_step_takes_the_same_bytes_at_every_moment(monkeypatch, rule, network, optimizer, options, layout):
    model = network().to(memory_format=layout)

    def events():
        with faking():
            twin = fake_copy(model)
            x = torch.empty(4, *IMAGE).to(memory_format=layout)
            trace = traced_step(rule(twin, optimizer, x, **options), x, torch.empty(4, dtype=torch.int64), 3)
            # At the end autocast frees its copies of the weights, in no particular order.
            return [event for event in trace if event.place.phase != "optimizer" or "precision" not in options]

    remembered = events()
    monkeypatch.setattr(fake, "_maker", lambda *_: None)
    assert remembered == events()
    assert len(remembered) > 300
