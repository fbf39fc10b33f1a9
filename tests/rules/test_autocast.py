"""A step in bfloat16: low-precision convs, states in float32, and lean memory still equal to paper."""

import pytest
import torch
from torch import nn

from stdl_engine import FusedLIF
from stdl_engine.rules import RULES, SLTT
from stdl_engine.units import Head, ResidualBlock, SEWBlock

from .nets import Recorder, assert_same, assert_same_results, batch, gradients, make, numbers, small, unchanged

T = 2


def trained(rule: str, name: str, memory: str):
    x, y = batch(name)
    made = make(rule, small(name), x, memory=memory)
    before, seen = numbers(made), set()

    def note(neuron, inputs, spikes):
        seen.add((inputs[0].dtype, spikes.dtype, neuron.membrane.dtype))

    for module in made.modules():
        if isinstance(module, FusedLIF):
            module.register_forward_hook(note)
    results = []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            results.append(made.step(x, y, T))
    return before, numbers(made), seen, results


@pytest.mark.parametrize("rule", RULES)
def test_bfloat16_step(rule):
    before, after, seen, results = trained(rule, "resnet18", "lean")
    assert seen == {(torch.bfloat16, torch.bfloat16, torch.float32)}
    assert all(value.isfinite().all() for value in after.values())
    assert all(value.dtype in (torch.float32, torch.int64) for value in after.values())
    assert results[-1].logits.isfinite().all()
    frozen = [key for key in before if rule == "decolle" and key.startswith("auxiliary.")]
    assert unchanged(before, after) == frozen


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize(
    ("rule", "name"), [("sltt", "resnet18"), ("stdl", "resnet18"), ("ell", "vgg16"), ("stdl", "sew_resnet34")]
)
def test_lean_equals_paper(rule, name):
    _, lean, _, results = trained(rule, name, "lean")
    _, paper, seen, plain_results = trained(rule, name, "paper")
    assert {state for *_, state in seen} == {torch.float32}
    assert_same(lean, paper)
    assert_same_results(results, plain_results)


@pytest.mark.usefixtures("norms_by_pytorch")
def test_first_block_adds_its_float32_input():
    """The shortcut of a residual block that comes first is the image, in more precision than the convs give."""
    x, y = batch()
    found = []
    for memory in ("lean", "paper"):
        torch.manual_seed(0)
        model = nn.Sequential(ResidualBlock(3, 3), SEWBlock(3, 3), Head(3, 10))
        with torch.autocast("cpu", torch.bfloat16):
            found.append(gradients(SLTT(model, Recorder, x, memory=memory), x, y, T))
    assert_same(*found)


def test_lean_bptt_equals_paper_to_rounding():
    """Plain autocast adds the time steps' gradients of a weight up in bfloat16, lean memory in float32."""
    x, y = batch()
    found = []
    for memory in ("lean", "paper"):
        with torch.autocast("cpu", torch.bfloat16):
            found.append(gradients(make("bptt", small(), x, Recorder, memory=memory), x, y, T))
    for name, lean in found[0].items():
        assert (lean - found[1][name]).abs().max() <= 2**-7 * lean.abs().max(), name


@pytest.mark.parametrize("memory", ["lean", "paper"])
def test_one_context_around_many_steps(memory):
    """Autocast remembers weights in bfloat16; they must not outlive the optimizer's step."""
    x, y = batch()
    apart, together = (make("stdl", small(), x, memory=memory) for _ in range(2))
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            apart.step(x, y, T)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            together.step(x, y, T)
    assert_same(numbers(apart), numbers(together))


def test_bfloat16_is_near_float32():
    x, y = batch()
    low, full = make("stdl", small(), x), make("stdl", small(), x)
    with torch.autocast("cpu", torch.bfloat16):
        found = low.step(x, y, T).loss.float()
    assert abs(found - full.step(x, y, T).loss) < 0.2
