"""Batch norm over the samples of all ranks that share a batch, per time step.

PyTorch's own `SyncBatchNorm` does not run on a CPU. Here a network keeps its layers: during a training step they take a
synchronised class, and afterwards their own class again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from ..kernels.norm_lif import Across, table_of
from ..memory.norms import SharedNorm, share_of_step
from ..neurons import in_class
from .faults import exchanging
from .peers import Peers


class _Normalise(torch.autograd.Function):
    """y = weight · (x - mean) / √(var + eps) + bias with the mean and variance of all ranks' samples.

    With g the gradient of y, x̂ = (x - mean) / √(var + eps), N all samples and pixels, and sums over those:
    grad_x = weight / √(var + eps) · (g - Σg / N - x̂ · Σ(g · x̂) / N). The gradients of weight and bias are for this
    rank's samples only, as for every other parameter before the exchange.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, count: Tensor,
        layer: _Synchronised,
    ) -> Tensor:  # fmt: skip
        ctx.layer, ctx.peers = layer, layer.peers
        ctx.save_for_backward(x, weight, mean, var, count)
        return batch_norm(x, mean, var, weight, bias, False, 0.0, layer.eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var, count = ctx.saved_tensors
        eps = ctx.layer.eps
        scale = torch.ones_like(mean) if weight is None else weight.to(mean.dtype)
        grad_x, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, scale, mean, var, None, None, False, eps, [True, True, True]
        )
        sums = torch.stack([grad_weight, grad_bias])
        with exchanging():
            ctx.peers.begin_sum(sums).wait()
        with_x, alone = sums / count
        inverse = (var + eps).rsqrt()
        slope = scale * inverse * inverse * with_x
        offset = scale * inverse * alone - mean * slope
        grad_x = grad_x - _by_channel(slope, x).to(x.dtype) * x - _by_channel(offset, x).to(x.dtype)
        no_affine = weight is None
        return grad_x, None if no_affine else grad_weight, None if no_affine else grad_bias, None, None, None, None


class _Synchronised(SharedNorm):
    """The class of a batch norm layer during a training step on several ranks. In evaluation mode nothing changes."""

    peers: Peers

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)
        mean, var, count = (of_all[0] for of_all in self._statistics(x.detach(), groups=1))
        return _Normalise.apply(x, self.weight, self.bias, mean, var, count, self)

    def table_of_all(self, x: Tensor, groups: int) -> tuple[Tensor, Across]:
        mean, var, count = self._statistics(x, groups)
        share = x.numel() / (groups * x.shape[1] * count[:, None])

        def across(sums: Tensor) -> Tensor:
            sums = sums.clone()
            with exchanging():
                self.peers.begin_sum(sums).wait()
            return sums.mul_(share)

        return table_of(mean, var, self.weight, self.bias, self.eps), across

    @torch.no_grad()
    def _statistics(self, x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance and number of elements of each channel of each of `groups` parts, over all ranks; the running
        statistics are updated."""
        full = (x if x.dtype == torch.float64 else x.float()).unflatten(0, (groups, -1))
        own_var, own_mean = torch.var_mean(full, [1, *range(3, full.ndim)], correction=0)
        own = torch.stack([own_mean, own_var, torch.full_like(own_mean, full[0].numel() / x.shape[1])])
        means, variances, counts = torch.stack(self.peers.gathered(own), 1)
        count = counts.sum(0)
        mean = (means * counts).sum(0) / count
        var = ((variances + (means - mean) ** 2) * counts).sum(0) / count
        if self.track_running_stats and self.running_mean is not None:
            for of_group in zip(mean, var, count, strict=True):
                self._update(*of_group)
        return mean, var, count

    def _update(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        assert self.running_mean is not None, "the caller has looked"
        assert self.running_var is not None, "it is there where the mean is"
        share = share_of_step(self)
        self.running_mean.mul_(1 - share).add_(mean.to(self.running_mean.dtype), alpha=share)
        unbiased = (var * (count / (count - 1))).to(self.running_var.dtype)
        self.running_var.mul_(1 - share).add_(unbiased, alpha=share)


class _Synchronised1d(_Synchronised, nn.BatchNorm1d):
    pass


class _Synchronised2d(_Synchronised, nn.BatchNorm2d):
    pass


KINDS: dict[type[nn.Module], type[_Synchronised]] = {nn.BatchNorm1d: _Synchronised1d, nn.BatchNorm2d: _Synchronised2d}


def check_norms(modules: Iterable[nn.Module]) -> None:
    """Reject batch norm layers that cannot be synchronised."""
    for module in modules:
        if isinstance(module, _BatchNorm) and type(module) not in KINDS:
            raise ValueError(
                f"a batch norm layer of the class {type(module).__name__} cannot be computed over all ranks: use "
                "nn.BatchNorm2d or nn.BatchNorm1d, or leave sync_norm out."
            )


def synchronised(modules: Iterable[nn.Module], peers: Peers) -> contextlib.AbstractContextManager[None]:
    """Inside, the batch norm layers among these modules compute over all ranks that share a batch."""
    norms = (module for module in modules if type(module) in KINDS)
    return in_class(norms, KINDS.__getitem__, peers=peers)


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *(1 for _ in range(like.ndim - 2)))
