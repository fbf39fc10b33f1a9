"""Rules that are special cases of each other give the same numbers."""

import pytest
import torch

from stdl_engine.rules import ELL, RULES, SLTT, STDL, EvenLocal

from .nets import (
    Recorder,
    assert_same,
    assert_same_results,
    batch,
    batches,
    gradients,
    make,
    numbers,
    sgd,
    small,
    train,
)  # fmt: skip

memories = pytest.mark.parametrize("memory", ["lean", "paper"])


@memories
@pytest.mark.parametrize("name", ["resnet18", "vgg11", "sew_resnet34"])
def test_sltt_of_one_step_is_bptt(name, memory):
    """Gradient for gradient, and bit for bit at that: with one time step there is no past."""
    x, y = batch(name)
    sltt, bptt = (gradients(make(rule, small(name), x, Recorder, memory=memory), x, y, 1) for rule in ("sltt", "bptt"))
    assert len(bptt) == len(list(small(name).parameters()))
    assert_same(sltt, bptt)
    assert all(grad.any() for grad in bptt.values())


def test_sltt_of_two_steps_is_not_bptt():
    """The past has a gradient, except to the head's bias."""
    x, y = batch()
    sltt, bptt = (gradients(make(rule, small(), x, Recorder), x, y, 2) for rule in ("sltt", "bptt"))
    same = [name for name in bptt if torch.equal(sltt[name], bptt[name])]
    assert set(same) <= {"model.9.linear.weight", "model.9.linear.bias"}


@memories
@pytest.mark.parametrize("name", ["resnet18", "vgg16", "sew_resnet34"])
def test_stdl_with_one_subnetwork_is_sltt(name, memory):
    data = batches(3, name)
    stdl = make("stdl", small(name), data[0][0], memory=memory, budget=1.0)
    sltt = make("sltt", small(name), data[0][0], memory=memory)
    assert len(stdl.subnetworks) == 1
    assert_same_results(train(stdl, data, T=3), train(sltt, data, T=3))
    assert_same(numbers(stdl), numbers(sltt))


@memories
@pytest.mark.parametrize("name", ["resnet18", "vgg11"])
def test_ell_is_stdl_of_single_units_with_linear_heads(name, memory):
    data = batches(3, name)
    ell = make("ell", small(name), data[0][0], memory=memory)
    stdl = make("stdl", small(name), data[0][0], memory=memory, budget=0.5, layerwise=True, variant="linear")
    assert len(ell.subnetworks) == len(ell.model) - 1
    assert_same(numbers(ell), numbers(stdl))
    assert_same_results(train(ell, data), train(stdl, data))
    assert_same(numbers(ell), numbers(stdl))


def test_even_groups_of_one_unit_are_ell_and_one_group_is_sltt():
    data = batches(2)
    x = data[0][0]

    def trained(rule, **options):
        torch.manual_seed(5)
        made = rule(small(), sgd, x, **options)
        train(made, data)
        return numbers(made)

    assert_same(trained(EvenLocal, K=9), trained(ELL))
    assert_same(trained(EvenLocal, K=1), trained(SLTT))


@pytest.mark.parametrize("rule", RULES)
def test_an_image_repeated_is_a_sequence_of_it(rule):
    steps = 3
    x, y = batch()
    static, sequence = (make(rule, small(), x) for _ in range(2))
    frames = x.expand(steps, *x.shape).contiguous()
    assert_same_results([static.step(x, y, steps)], [sequence.step(frames, y, steps)])
    assert_same(numbers(static), numbers(sequence))
    assert torch.equal(static.predict(x, steps), sequence.predict(frames, steps))


def test_the_order_of_frames_counts():
    x, y = batch(frames=3)
    forwards, backwards = (make("sltt", small(), x[0]).step(frames, y, 3) for frames in (x, x.flip(0)))
    assert not torch.equal(forwards.logits, backwards.logits)


def test_stdl_learns_something_else_than_sltt():
    """Nothing above holds because nothing happens."""
    data = batches(1)
    stdl, sltt = make("stdl", small(), data[0][0]), make("sltt", small(), data[0][0])
    train(stdl, data), train(sltt, data)
    stem = "model.0.conv.weight"
    assert not torch.equal(numbers(stdl)[stem], numbers(sltt)[stem])
    assert isinstance(stdl, STDL)
