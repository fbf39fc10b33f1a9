"""Several time steps of a layer in one call: a chunk, the samples of one time step after those of another in one batch.

Layers that treat every sample by itself need not know. Neurons carry a state from step to step and are told how many
samples a step has (`Neuron.samples`). Batch norm takes its statistics per time step: for the time of a training step
its layers take the class of one that does so, and are given back afterwards.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .spikes import Kept, Repeated


def in_chunks(frames: Sequence[Tensor], size: int) -> list[Kept]:
    """The network's input in chunks of so many time steps; the last one has what is left."""
    if size == 1:
        return list(frames)
    return [_chunk(frames[first : first + size]) for first in range(0, len(frames), size)]


def _chunk(frames: Sequence[Tensor]) -> Kept:
    if len(frames) == 1:
        return frames[0]
    if all(frame is frames[0] for frame in frames):
        return Repeated(frames[0], len(frames))
    return torch.cat(tuple(frames))


class _NormalisedSteps(torch.autograd.Function):
    """Batch norm with the statistics of each time step, by PyTorch's own kernels on each step's part of the batch."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: _BatchNorm, samples: int
    ) -> Tensor:
        y = torch.empty_like(x)
        running = (layer.running_mean, layer.running_var) if layer.track_running_stats else (None, None)
        dtype = next((t.dtype for t in (weight, *running) if t is not None), x.dtype)
        kept = []
        for x_t, y_t in zip(x.split(samples), y.split(samples), strict=True):
            mean, inverse = (torch.empty(x.shape[1], dtype=dtype, device=x.device) for _ in range(2))
            settings = True, _share(layer), layer.eps
            torch.ops.aten.native_batch_norm.out(
                x_t, weight, bias, *running, *settings, out=y_t, save_mean=mean, save_invstd=inverse
            )
            kept += [mean, inverse]
        ctx.save_for_backward(x, weight, *kept)
        ctx.eps, ctx.samples = layer.eps, samples
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *kept = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        grad_x = torch.empty_like(x) if wanted[0] else None
        of_layer: list[Tensor | None] = [None, None]
        maps = (x.split(ctx.samples), grad.split(ctx.samples), kept[::2], kept[1::2])
        for t, (x_t, grad_t, mean, inverse) in enumerate(zip(*maps, strict=True)):
            grad_x_t, *own = torch.ops.aten.native_batch_norm_backward(
                grad_t, x_t, weight, None, None, mean, inverse, True, ctx.eps, wanted
            )
            if grad_x is not None:
                grad_x[t * ctx.samples : (t + 1) * ctx.samples] = grad_x_t
            of_layer = [new if total is None else total.add_(new) for total, new in zip(of_layer, own, strict=True)]
        grad_weight, grad_bias = (total if needed else None for total, needed in zip(of_layer, wanted[1:], strict=True))
        return grad_x, grad_weight, grad_bias, None, None


def _share(layer: _BatchNorm) -> float:
    """The weight of another time step in the running statistics, which is counted as `nn.BatchNorm2d` does."""
    if not layer.track_running_stats or layer.num_batches_tracked is None:
        return 0.0 if layer.momentum is None else layer.momentum
    layer.num_batches_tracked.add_(1)
    return 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum


@functools.cache
def _per_step(kind: Any) -> type[_BatchNorm]:
    """The class of batch norm layers of a kind that are given chunks of `samples` for each time step."""

    class PerStep(kind):
        samples: int

        def forward(self, x: Tensor) -> Tensor:
            if len(x) == self.samples or not self.training:
                return super().forward(x)
            if kind not in (nn.BatchNorm1d, nn.BatchNorm2d):  # one with a way of its own, such as over all ranks
                return torch.cat([super(PerStep, self).forward(x_t) for x_t in x.split(self.samples)])
            self._check_input_dim(x)
            return _NormalisedSteps.apply(x, self.weight, self.bias, self, self.samples)

    PerStep.__name__ = PerStep.__qualname__ = kind.__name__
    return PerStep


@contextlib.contextmanager
def norms_by_step(modules: Iterable[nn.Module], samples: int | None) -> Iterator[None]:
    """Inside, batch norm layers take so many samples for one time step and have statistics of each; all samples, if no
    number is given."""
    norms = [] if samples is None else [m for m in dict.fromkeys(modules) if isinstance(m, _BatchNorm)]
    kinds: list[Any] = [type(norm) for norm in norms]
    try:
        for norm, kind in zip(norms, kinds, strict=True):
            norm.__class__ = _per_step(kind)
            norm.samples = samples  # type: ignore[assignment]  # no module, and PerStep has it
        yield
    finally:
        for norm, kind in zip(norms, kinds, strict=True):
            norm.__class__ = kind
            vars(norm).pop("samples", None)
