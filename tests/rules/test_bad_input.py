"""One sentence for each thing that may be wrong with a batch or with a rule's arguments."""

import pytest
import torch
from torch import Tensor, nn

from stdl_engine.rules import RULES, SLTT, STDL
from stdl_engine.units import ConvUnit, Head

from .nets import assert_same, batch, make, numbers, sgd, small


@pytest.fixture(scope="module")
def rule():
    x, _ = batch()
    return make("stdl", small(), x)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1, 10, 2], r"^labels run from 0 to 10, the network has 10 classes: they must be 0 to 9\.$"),
        ([0, -1, 3, 2], r"^labels run from -1 to 3, the network has 10 classes: they must be 0 to 9\.$"),
        (
            [0, 1, 2],
            r"^the labels have shape \(3,\) and dtype torch\.int64: pass one whole number for each of 4 samples",
        ),
        ([[0], [1], [2], [3]], r"^the labels have shape \(4, 1\)"),
        ([0.0, 1.0, 2.0, 3.0], r"^the labels have shape \(4,\) and dtype torch\.float32: pass one whole number"),
        ([True, False, True, True], r"^the labels have shape \(4,\) and dtype torch\.bool: pass one whole number"),
    ],
)
def test_labels(rule, y, message):
    x, _ = batch()
    before = numbers(rule)
    with pytest.raises(ValueError, match=message):
        rule.step(x, torch.tensor(y), 2)
    assert_same(before, numbers(rule))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_whole_number_dtype(dtype):
    x, y = batch()
    assert torch.equal(
        make("sltt", small(), x).step(x, y.to(dtype), 2).loss, make("sltt", small(), x).step(x, y, 2).loss
    )


def test_batch_of_one(rule):
    x, y = batch()
    with pytest.raises(ValueError, match=r"^batch norm cannot learn from a batch of one: pass two samples or more"):
        rule.step(x[:1], y[:1], 2)


def test_empty_batch(rule):
    x, y = batch()
    with pytest.raises(ValueError, match=r"^the batch is empty: pass at least two samples\.$"):
        rule.step(x[:0], y[:0], 2)


@pytest.mark.parametrize("T", [0, -1, 2.0, 2.5, "2", None, True])
@pytest.mark.parametrize("method", ["step", "predict"])
def test_time_steps(rule, T, method):
    x, y = batch()
    with pytest.raises(ValueError, match=r"^T is .*: the number of time steps must be a whole number from 1 up\.$"):
        rule.step(x, y, T) if method == "step" else rule.predict(x, T)


def test_sequence_of_another_length(rule):
    x, y = batch(frames=3)
    message = r"^the sequence has 3 frames and T is 2: pass T=3, or T frames\.$"
    with pytest.raises(ValueError, match=message):
        rule.step(x, y, 2)
    with pytest.raises(ValueError, match=message):
        rule.predict(x, 2)


@pytest.mark.parametrize("shape", [(4, 8, 8), (3,), (2, 2, 4, 3, 8, 8)])
def test_dimensions(rule, shape):
    _, y = batch()
    with pytest.raises(
        ValueError, match=r"^the input has shape .*: pass \[B, 3, 8, 8\], or a sequence of them with T in front\.$"
    ):
        rule.step(torch.randn(shape), y, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Tensor.byte, r"^the input is torch\.uint8: pass a tensor of floating-point numbers"),
        (Tensor.numpy, r"^the input is ndarray: pass a tensor of floating-point numbers"),
        (
            lambda x: x[:, :2],
            r"^the input has shape \(4, 2, 8, 8\), and the network takes 3 channels: pass \[B, 3, 8, 8\]",
        ),
        (lambda x: torch.stack([x] * 2)[:, :, :1], r"^the input has shape \(2, 4, 1, 8, 8\), and the network takes 3"),
    ],
    ids=["uint8", "numpy", "channels", "channels of frames"],
)
def test_inputs(rule, change, message):
    x, y = batch()
    for method in (lambda: rule.step(change(x), y, 2), lambda: rule.predict(change(x), 2)):
        with pytest.raises(ValueError, match=message):
            method()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(3, 3), r"^the model is a Linear: it must be an nn\.Sequential of units .*units_from"),
        (nn.Sequential(ConvUnit(3, 4), nn.Linear(4, 10)), r"^the model ends in a Linear: its last part must be a Head"),
        (nn.Sequential(ConvUnit(3, 4), nn.ReLU(), Head(4, 10)), r"^part 1 of the model \(ReLU\) is no Unit: it lacks"),
    ],
    ids=["no sequence", "no head", "no unit"],
)
def test_models(name, model, message):
    options = {"K": 1} if name == "even" else {}
    with pytest.raises(TypeError, match=message):
        RULES[name](model, sgd, torch.empty(2, 3, 8, 8), **options)


@pytest.mark.parametrize("budget", [0, -0.5, -1, "0", "-2GiB", float("nan"), float("inf")])
def test_budgets_that_are_not_positive(budget):
    x, _ = batch()
    with pytest.raises(ValueError, match=r"^the budget .* is not positive and finite: write"):
        STDL(small(), sgd, x, budget=budget)


@pytest.mark.parametrize("budget", ["abc", "2XB", "", "nan", "inf", True])
def test_budgets_that_say_nothing(budget):
    x, _ = batch()
    with pytest.raises((ValueError, TypeError), match=r"^cannot read the budget .*: write"):
        STDL(small(), sgd, x, budget=budget)


@pytest.mark.parametrize("memory", ["lean", "paper"])
def test_too_small_a_budget_and_the_smallest_that_works(memory):
    x, y = batch()
    with pytest.raises(ValueError, match=r"^unit 0 \(4C3\) with the smallest auxiliary network needs more") as error:
        STDL(small(), sgd, x, budget=0.01, memory=memory)
    smallest = float(str(error.value).rsplit(" ", 1)[1].rstrip("."))
    rule = STDL(small(), sgd, x, budget=smallest, memory=memory)
    assert len(rule.subnetworks) > 1
    rule.step(x, y, 2)
    with pytest.raises(ValueError, match="the smallest budget that works"):
        STDL(small(), sgd, x, budget=smallest - 2e-4, memory=memory)


def test_unknown_variant_and_memory():
    x, _ = batch()
    with pytest.raises(ValueError, match=r"^unknown variant 'deep': choose from stdl, conv3x3, .*depth_only\.$"):
        STDL(small(), sgd, x, variant="deep")
    with pytest.raises(ValueError, match=r"^unknown memory 'small': pass one of lean, paper\.$"):
        SLTT(small(), sgd, x, memory="small")


def test_a_bad_batch_does_not_spoil_the_next():
    x, y = batch()
    spoiled, clean = make("stdl", small(), x), make("stdl", small(), x)
    unhook = spoiled.model[0].norm.register_forward_hook(lambda *_: 1 / 0)  # after its running statistics changed
    with pytest.raises(ZeroDivisionError):
        spoiled.step(x, y, 2)
    unhook.remove()
    assert torch.equal(spoiled.step(x, y, 2).logits, clean.step(x, y, 2).logits)
    assert_same(numbers(spoiled), numbers(clean))
