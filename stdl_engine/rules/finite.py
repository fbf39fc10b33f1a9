"""Gradients must be finite before an optimizer applies them: spikes hide a NaN in a weight from every loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.optim import Optimizer


class NotFinite(ArithmeticError):
    """A gradient is no longer finite. `what` names it; the weights are unchanged unless the message says otherwise."""

    def __init__(self, what: str, then: str) -> None:
        super().__init__(f"{what} is not a finite number{then}: {REMEDY}")
        self.what = what


class GuardedSteps:
    """Steps optimizers only where every gradient is a finite number.

    On CPU a bad gradient raises at once. On a GPU nothing waits for the device: an optimizer with `fused=True` skips a
    bad step there, and the first call that finds the flag already on the host raises the error. Any other optimizer has
    applied the step by then, and the error says so.
    """

    def __init__(self) -> None:
        self._flags: list[tuple[Tensor, torch.cuda.Event, str, bool]] = []

    def step(self, optimizer: Optimizer, subnetwork: str, parameters: dict[str, nn.Parameter]) -> None:
        """Step an optimizer over these named parameters of a subnetwork, or raise `NotFinite`."""
        self.check()
        names = [name for name, parameter in parameters.items() if parameter.grad is not None]
        if not names:
            return optimizer.step()
        gradients = [grad for name in names if (grad := parameters[name].grad) is not None]
        if gradients[0].device.type == "cuda":
            return self._step_unseen(optimizer, subnetwork, _largest(gradients))
        if not _squares_are_finite(gradients) and not (largest := _largest(gradients)).isfinite().all():
            raise NotFinite(f"the gradient of {_bad(names, largest)} in {subnetwork}", "; the weights are as they were")
        return optimizer.step()

    def check(self) -> None:
        """Raise for a bad step on a GPU, if its flag has arrived by now."""
        while self._flags and self._flags[0][1].query():
            bad, _, subnetwork, skipped = self._flags.pop(0)
            if bad.item():
                kept = "the step was skipped" if skipped else "it was applied, load the last good checkpoint"
                raise NotFinite(f"a gradient of {subnetwork}", f" ({kept})")

    def _step_unseen(self, optimizer: Any, subnetwork: str, largest: Tensor) -> None:
        bad = (~largest.isfinite().all()).float()
        skips = bool(optimizer.defaults.get("fused"))
        if skips:  # the interface through which a gradient scaler tells a fused optimizer what it found
            optimizer.grad_scale, optimizer.found_inf = None, bad
        try:
            optimizer.step()
        finally:
            if skips:
                del optimizer.grad_scale, optimizer.found_inf
        seen = torch.cuda.Event()
        host = bad.to("cpu", non_blocking=True)
        seen.record()
        self._flags.append((host, seen, subnetwork, skips))


REMEDY = "look for NaN or very large values in the input, or lower the learning rate."


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor holds numbers, not only a shape."""
    return not (isinstance(tensor, FakeTensor) or tensor.is_meta)


def _largest(gradients: list[Tensor]) -> Tensor:
    """The largest magnitude in each."""
    return torch.stack(torch._foreach_norm(gradients, ord=float("inf")))


def _squares_are_finite(gradients: list[Tensor]) -> bool:
    """Whether the sum of squares of each is finite, because then all its elements are. On CPU this takes a tenth of the
    time of the largest magnitude. The square of a large number may overflow, so a "no" is not conclusive."""
    norms = torch.stack(torch._foreach_norm(gradients))
    return not has_values(norms) or bool(norms.isfinite().all())


def _bad(names: Sequence[str], largest: Tensor) -> str:
    bad = [name for name, value in zip(names, largest.tolist(), strict=True) if not value < float("inf")]
    return bad[0] + (f" and of {len(bad) - 1} other parameters" if len(bad) > 1 else "")
