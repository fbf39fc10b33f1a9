"""Whether a layer computes what the reference does; one that does not is not timed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .peers import THRESHOLD, Contender, Layer, Plain, inputs, plain

NEAR = 1e-6
"""Distance of a membrane from the threshold within which rounding may decide whether it fires."""
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""The tolerance for gradients, whose upstream gradients are standard normal."""


@dataclass(frozen=True)
class Agreement:
    """How close a layer's spikes and gradients are to the reference's.

    Attributes:
        flips: neurons that fire in one and not in the other at some step; they are not compared from there on.
        distance: the largest distance of a membrane from the threshold at its first flip.
        error: the largest difference of a gradient, without neurons that flip.
    """

    neurons: int
    flips: int
    distance: float
    error: float
    tolerance: float
    near: float

    @property
    def same(self) -> bool:
        """Whether rounding explains all of it."""
        return self.distance <= self.near and self.error <= self.tolerance and self.flips <= self.neurons // 100

    def __str__(self) -> str:
        flips = f"{self.flips} of {self.neurons} neurons flip"
        if self.flips:
            flips += f", {self.distance:.1e} from the threshold"
        return f"{flips}; gradients within {self.error:.1e}"


def run_exact(layer: Layer, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Spikes of a sequence from the reset state, and the gradient of the input through time."""
    x = x.detach().requires_grad_()
    layer.reset()
    spikes = layer.sequence(x) if len(x) > 1 else layer.step(x[0]).unsqueeze(0)
    (grad_x,) = torch.autograd.grad(spikes, x, grad)
    return spikes.detach(), grad_x


def run_online(layer: Layer, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The same, with the past as a constant and each step's backward before the next step."""
    layer.reset()
    spikes, grads = [], []
    for x_t, grad_t in zip(x.detach(), grad, strict=True):
        x_t.requires_grad_()
        spikes_t = layer.step(x_t)
        grads.append(torch.autograd.grad(spikes_t, x_t, grad_t)[0])
        spikes.append(spikes_t.detach())
        layer.detach()
    return torch.stack(spikes), torch.stack(grads)


def agreement(
    contender: Contender,
    *,
    online: bool,
    T: int,
    neurons: int = 4096,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    layer: Layer | None = None,
) -> Agreement:
    """Compare a contender, or the layer of it that will be timed, with the reference on random currents."""
    layer = layer or contender.build(online, T)
    x, grad = inputs(neurons, T, dtype, device)
    run = run_online if online else run_exact
    expected, expected_grad = run(plain(online, T), x, grad)
    spikes, grad_x = run(layer, x * layer.factor, grad)
    if spikes.shape != expected.shape:
        raise ValueError(f"{contender.name} gives spikes {tuple(spikes.shape)} for input {tuple(x.shape)}.")
    differ = spikes != expected
    flipped = differ.any(0)
    first = differ & (differ.cumsum(0) == 1)
    distance = (_membranes(x) - THRESHOLD).abs()[first].max().item() if differ.any() else 0.0
    error = (grad_x * layer.factor - expected_grad).float()[:, ~flipped]
    return Agreement(
        neurons=neurons,
        flips=int(flipped.sum()),
        distance=distance,
        error=error.abs().max().item() if error.numel() else float("inf"),
        tolerance=TOLERANCE[dtype],
        near=NEAR if dtype == torch.float32 else float(torch.finfo(dtype).eps),
    )


def difference(contender: Contender, layer: Layer, **options) -> str:
    """How a contender's layer differs from the reference; empty if rounding explains it."""
    found = agreement(contender, layer=layer, **options)
    return "" if found.same else f"differs: {found}"


def _membranes(x: Tensor) -> Tensor:
    """The reference's membranes before reset."""
    layer, membranes = Plain(), []
    for x_t in x:
        layer.step(x_t)
        membranes.append(layer.membrane)
    return torch.stack(membranes)
