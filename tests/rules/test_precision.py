"""A rule's own precision: autocast for the whole step, and for float16 gradients that do not vanish."""

import pytest
import torch

from stdl_engine.rules import RULES

from .nets import assert_same, batch, make, numbers, small

T = 2


@pytest.mark.parametrize("rule", ["bptt", "stdl"])
def test_bfloat16_is_autocast_around_the_step(rule):
    x, y = batch()
    inside, around = make(rule, small(), x, precision="bf16"), make(rule, small(), x)
    for _ in range(2):
        inside.step(x, y, T)
        with torch.autocast("cpu", torch.bfloat16):
            around.step(x, y, T)
    assert_same(numbers(inside), numbers(around))
    with torch.autocast("cpu", torch.bfloat16):
        expected = around.predict(x, T)
    assert torch.equal(inside.predict(x, T), expected)


@pytest.mark.parametrize("rule", RULES)
def test_float16_scales_each_subnetworks_gradients(rule):
    x, y = batch()
    made = make(rule, small(), x, precision="fp16")
    assert len(made.scalers) == len(made.subnetworks)
    before = numbers(made)
    made.step(x, y, T)
    assert all(value.isfinite().all() for value in numbers(made).values())
    assert any(not torch.equal(value, before[key]) for key, value in numbers(made).items())


def test_an_overflow_is_left_out_of_its_own_subnetwork_only():
    x, y = batch()
    made = make("stdl", small(), x, precision="fp16")
    made.step(x, y, T)
    first, *others = made.scalers
    for scaler in made.scalers:  # the first gradient becomes more than float16 holds
        scaler.load_state_dict({**scaler.state_dict(), "scale": 1e38 if scaler is first else 8.0})
    scales = [scaler.get_scale() for scaler in made.scalers]
    parameters = [[p.clone() for p in part.parameters()] for part in made.subnetworks]
    made.step(x, y, T)
    stayed = [
        all(torch.equal(p, q) for p, q in zip(part.parameters(), old, strict=True))
        for part, old in zip(made.subnetworks, parameters, strict=True)
    ]
    assert stayed == [True, *[False] * len(others)]
    assert first.get_scale() < scales[0]
    assert [scaler.get_scale() for scaler in others] == scales[1:]


def test_scalers_are_in_the_checkpoint():
    x, y = batch()
    one, other = (make("stdl", small(), x, precision="fp16") for _ in range(2))
    one.step(x, y, T)
    one.scalers[0].load_state_dict({**one.scalers[0].state_dict(), "scale": 2.0})
    other.load_state_dict(one.state_dict())
    assert other.scalers[0].get_scale() == 2.0
    with pytest.raises(ValueError, match="made in another precision"):
        make("stdl", small(), x).load_state_dict(one.state_dict())


def test_unknown_precision():
    with pytest.raises(ValueError, match="unknown precision 'int8': pass one of fp32, bf16, fp16"):
        make("stdl", small(), batch()[0], precision="int8")
