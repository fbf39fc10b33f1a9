"""The parametric leaky integrate-and-fire layer, which learns its decay."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..kernels.lif.ops import Options
from ..kernels.plif import plif_sequence, plif_sequence_, plif_step
from ..kernels.surrogate import Surrogate, Triangle
from .lif import LeakyNeuron


class FusedPLIF(LeakyNeuron):
    """Leaky integrate-and-fire layer with one trainable decay λ = sigmoid(w): current in, spikes out.

        m[t] = λ · reset(m[t-1]) + c · x[t]        s[t] = 1 if m[t] >= threshold else 0

    where c is `scale`, or `scale · (1 - λ)` with `scale_by_decay`.

    Args:
        decay: the initial λ, strictly between 0 and 1; `w` starts at its logit.
        threshold, reset, surrogate, step_mode, backend, reset_value, detach_reset, scale: as for `FusedLIF`.
        online: False gives exact gradients through time. True takes the past as a constant. Backward needs the membrane
            of the previous step for the decay's gradient, so two maps are kept from a step's forward to its backward.
        scale_by_decay: the input's factor follows the decay. SpikingJelly's `ParametricLIFNode(init_tau,
            decay_input=True)` is `decay=1 - 1/init_tau, scale_by_decay=True`; its `w` is minus ours.

    `w` is the one parameter, a tensor of shape [1], as fully_shard requires. `membrane` is the state m, before reset,
    in float32; None before the first step and after `reset()`.

    Example:
        >>> plif = FusedPLIF(decay=0.5)
        >>> plif(torch.tensor([0.8])), plif(torch.tensor([0.8]))
        (tensor([0.], grad_fn=<...>), tensor([1.], grad_fn=<...>))
    """

    extra_maps: ClassVar[int] = 1  # the membrane of the previous step, which the decay's gradient reads

    def __init__(
        self,
        decay: float = 0.1,
        threshold: float = 1.0,
        reset: str = "soft",
        surrogate: Surrogate | str = Triangle(1.0),  # noqa: B008 - immutable
        online: bool = False,
        step_mode: str = "s",
        backend: str = "auto",
        *,
        reset_value: float = 0.0,
        detach_reset: bool = False,
        scale: float = 1.0,
        scale_by_decay: bool = False,
    ) -> None:
        super().__init__(
            decay, threshold, reset, surrogate, online, step_mode, backend, reset_value, detach_reset, scale
        )
        if not 0 < decay < 1:
            raise ValueError(f"decay is {decay}: sigmoid(w) is strictly between 0 and 1, pass for example 0.1.")
        self.initial_decay, self.scale_by_decay = decay, scale_by_decay
        self.w = nn.Parameter(torch.tensor([math.log(decay / (1 - decay))]))

    @property
    def logit(self) -> Tensor:
        """The number w, whose sigmoid is the decay."""
        return self.w

    @property
    def decay(self) -> float:
        """The current λ, as a number, so on a GPU this waits for the device."""
        return torch.sigmoid(self.logit.detach()).item()

    def kernel_options(self) -> tuple[Options, Tensor]:
        options = self.options | {"scale_by_decay": self.scale_by_decay, "detach_reset": self.detach_reset}
        any_decay = 0.5  # the learned one counts in its place
        return Options.checked(any_decay, self.threshold, **options), self.logit.reshape(()).float()

    def step(self, x: Tensor, in_place: bool) -> Tensor:
        assert self.membrane is not None, "prepare() comes first"
        options = self.options | {"scale_by_decay": self.scale_by_decay, "online": self.online}
        if self.memory_form == "paper":
            spikes, m = plif_step(x, self.membrane, self.logit, self.threshold, **options | {"reset": "none"})
            self.membrane = self.after_reset(m)
            return spikes
        options |= {"detach_reset": self.detach_reset, "pack": self.lean or (self.online and in_place)}
        overwrite = self.overwrites and in_place
        spikes, self.membrane = plif_step(x, self.membrane, self.logit, self.threshold, overwrite=overwrite, **options)
        return spikes

    def sequence(self, x: Tensor) -> Tensor:
        if self.memory_form == "paper":
            return super().sequence(x)
        self.prepare(self.first_of(x))
        assert self.membrane is not None
        given = x, self.membrane, self.logit, self.threshold
        options = self.options | {"scale_by_decay": self.scale_by_decay}
        if self.advances_in_place(x):
            return plif_sequence_(*given, overwrite=self.overwrites, **options)
        options |= {"detach_reset": self.detach_reset, "pack": self.lean, "online": self.online}
        spikes, self.membrane = plif_sequence(*given, **options)
        return spikes

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Also accepts a checkpoint in which `w` has no dimension."""
        w = state_dict.get(prefix + "w")
        if isinstance(w, Tensor) and self.w is not None and w.numel() == self.w.numel() and w.shape != self.w.shape:
            state_dict = state_dict | {prefix + "w": w.reshape(self.w.shape)}
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        more = ["scale_by_decay=True"] if self.scale_by_decay else []
        return self.describe(f"initial_decay={self.initial_decay}", *more)
