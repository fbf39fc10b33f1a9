"""Membranes, spikes and gradients worked out by hand, with numbers that are exact in binary: λ = 1/2, Vth = 1."""

import pytest
import torch

from stdl_engine.kernels.lif import lif_step, lif_step_

from .every_neuron import LIF, PLIF

INPUT = [0.75, 0.75, 0.75, 1.5, 0.0]
TRACES = {
    # fires at 1.125 and 1.90625, which leaves 0.125 and 0.90625:
    # 0.75   ½·0.75 + 0.75   ½·0.125 + 0.75   ½·0.8125 + 1.5   ½·0.90625 + 0
    "soft": ([0.75, 1.125, 0.8125, 1.90625, 0.453125], [0, 1, 0, 1, 0]),
    # fires at 1.125 and 1.9375, which leaves 0.25:
    # 0.75   ½·0.75 + 0.75   ½·0.25 + 0.75    ½·0.875 + 1.5    ½·0.25 + 0
    "hard": ([0.75, 1.125, 0.875, 1.9375, 0.125], [0, 1, 0, 1, 0]),
    # nothing is taken away:
    # 0.75   ½·0.75 + 0.75   ½·1.125 + 0.75   ½·1.3125 + 1.5   ½·2.15625 + 0
    "none": ([0.75, 1.125, 1.3125, 2.15625, 1.078125], [0, 1, 1, 1, 1]),
}


@pytest.mark.parametrize("reset", TRACES)
@pytest.mark.parametrize("way", ["exact", "online", "over"])
@pytest.mark.parametrize("neuron", [LIF, PLIF], ids=str)
def test_trace(backend, neuron, way, reset):
    """sigmoid(0) is ½, so PLIF has the same."""
    options = {"threshold": 1.0, "reset": reset, "reset_value": 0.25, "backend": backend}
    options |= {"online": True} if way == "online" else {}
    learned, options = ([torch.zeros(())], options) if neuron.learned else ([], options | {"decay": 0.5})
    m, membranes, fired = torch.zeros(1), [], []
    for x in INPUT:
        if way == "over":
            spikes = neuron.step_(torch.tensor([x]), m, *learned, **options)
        else:
            spikes, m = neuron.step(torch.tensor([x]), m, *learned, **options)
        membranes.append(m.item())
        fired.append(spikes.item())
    assert (membranes, fired) == TRACES[reset]


def test_scaled_trace(backend):
    """With the input scaled by ½: ½·1.5 = 0.75, then ½·0.75 + ½·3 = 1.875, which fires and leaves 0.875."""
    options = {"decay": 0.5, "scale": 0.5, "backend": backend}
    m, membranes = torch.zeros(1), []
    for x in (1.5, 3.0, 0.0):
        _, m = lif_step(torch.tensor([x]), m, **options)
        membranes.append(m.item())
    assert membranes == [0.75, 1.875, 0.4375]


# Two steps with input 1.25, then 1.0. The triangle's gradient is 1 - |m - 1|. Upstream: 2 on the first spike, -4 on the
# second, 1 on the final membrane. With m1 = 1.25, which fires: surrogate 0.75.
#
# soft: u1 = 0.25, m2 = 1.125, surrogate 0.875: dm2 = -4·0.875 + 1 = -2.5.
#       attached du1/dm1 = 1 - 0.75 = 0.25:   dm1 = 2·0.75 + ½·-2.5·0.25 = 1.1875
#       detached du1/dm1 = 1:                 dm1 = 1.5 + ½·-2.5 = 0.25
# hard to 0.25: u1, m2 and dm2 are the same.
#       attached du1/dm1 = (0.25 - 1.25)·0.75 = -0.75:   dm1 = 1.5 + ½·-2.5·-0.75 = 2.4375
#       detached du1/dm1 = 0:                            dm1 = 1.5
# none: m2 = 0.625 + 1 = 1.625, surrogate 0.375: dm2 = -1.5 + 1 = -0.5;   dm1 = 1.5 + ½·-0.5 = 1.25
# The input has the membrane's gradient, and the state before the first step, at 0 and so out of the triangle's reach,
# ½ of it.
GRADIENTS = {
    ("soft", False): (1.1875, -2.5),
    ("soft", True): (0.25, -2.5),
    ("hard", False): (2.4375, -2.5),
    ("hard", True): (1.5, -2.5),
    ("none", False): (1.25, -0.5),
    ("none", True): (1.25, -0.5),
}


@pytest.mark.parametrize(("reset", "detach_reset"), GRADIENTS)
def test_gradients_through_time(backend, reset, detach_reset):
    options = {"decay": 0.5, "reset": reset, "reset_value": 0.25, "detach_reset": detach_reset, "backend": backend}
    x1, x2, m0 = torch.tensor([1.25]), torch.tensor([1.0]), torch.zeros(1)
    inputs = [t.requires_grad_() for t in (x1, x2, m0)]
    s1, m1 = lif_step(x1, m0, **options)
    s2, m2 = lif_step(x2, m1, **options)
    upstream = [torch.tensor([g]) for g in (2.0, -4.0, 1.0)]
    found = [g.item() for g in torch.autograd.grad([s1, s2, m2], inputs, upstream)]
    first, second = GRADIENTS[reset, detach_reset]
    assert found == [first, second, first / 2]


def test_online_gradients(backend):
    """The past is a constant: 2·0.75, then -4·0.875."""
    m, found = torch.zeros(1), []
    for current, upstream in ((1.25, 2.0), (1.0, -4.0)):
        x = torch.tensor([current], requires_grad=True)
        lif_step_(x, m, decay=0.5, backend=backend).backward(torch.tensor([upstream]))
        found.append(x.grad.item())
    assert found == [1.5, -3.5]
