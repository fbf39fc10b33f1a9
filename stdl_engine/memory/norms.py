"""Batch norm in lean memory: in one pass with the neuron after it, by our own kernels where those can, and with the
statistics of each time step where several run in one call.

For the time of a training step, batch norm layers take the class of one that does so, and are given back afterwards.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format
from torch.nn.modules.batchnorm import _BatchNorm

from ..kernels.norm_lif import Across, Pending, norm_statistics, table_of, takes
from ..kernels.operators import transformed
from ..neurons import in_class


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
            settings = True, share_of_step(layer), layer.eps
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


def share_of_step(layer: _BatchNorm) -> float:
    """The weight of another time step in the running statistics, which is counted as `nn.BatchNorm2d` does."""
    if not layer.track_running_stats or layer.num_batches_tracked is None:
        return 0.0 if layer.momentum is None else layer.momentum
    layer.num_batches_tracked.add_(1)
    return 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum


class Tables:
    """What batch norm layers normalise by in one run of a piece, in the order in which they ask. They are the same when
    the piece runs again, so that the statistics need not be computed a second time."""

    def __init__(self, known: Sequence[Tensor] | None = None) -> None:
        """`known` are those of the run before; without them this is the first run."""
        self.noted: list[Tensor] = []
        self._known = None if known is None else iter(known)

    def of(self, layer: _BatchNorm, x: Tensor, groups: int) -> Tensor:
        """The table of a batch; the running statistics are updated in the first run."""
        if self._known is not None:
            return next(self._known)
        self.noted.append(_of_batch(layer, x, groups))
        return self.noted[-1]


@dataclass(frozen=True)
class LeanRun:
    """What all batch norm layers inside `lean_norms` share.

    Attributes:
        samples: of one time step, of which a layer is given one or several; None if it takes all samples for one.
        fitting: answers of `fits_kernels`, which is asked at every time step.
        constant: the tables of running statistics in evaluation, when nobody changes them.
    """

    samples: int | None
    fitting: dict[Any, bool] = field(default_factory=dict)
    constant: dict[nn.Module, Tensor] = field(default_factory=dict)


class LeanNorm(_BatchNorm):
    """What batch norm layers are inside `lean_norms`."""

    lean_run: LeanRun
    tables: Tables | None = None
    """Set while a piece runs that will run again, or does."""

    def pending(self, x: Tensor) -> Pending | None:
        """The output, not yet computed; None where that cannot be left to the neuron."""
        raise NotImplementedError

    @property
    def of_running(self) -> Tensor:
        """The table of the running statistics."""
        known = self.lean_run.constant
        if self not in known:
            known[self] = _of_running(self)
        return known[self]


class SharedNorm(_BatchNorm):
    """A layer with the statistics of more samples than it is given."""

    def table_of_all(self, x: Tensor, groups: int) -> tuple[Tensor, Across]:
        """The table of each of `groups` parts of all samples, and what `Pending.after` asks of the sums of a gradient;
        the running statistics are updated."""
        raise NotImplementedError


@functools.cache
def _lean(kind: Any) -> type[LeanNorm]:
    """The class of batch norm layers of a kind that are given `samples` for each time step."""
    before = getattr(kind, "kind", kind)  # that of a layer that `optimize` gave another class
    has_own_way = not is_plain(before)
    can_wait = not has_own_way or issubclass(kind, SharedNorm)

    class Lean(LeanNorm, kind):
        def pending(self, x: Tensor) -> Pending | None:
            if not can_wait or torch.compiler.is_compiling() or transformed():
                return None
            samples, fitting = self.lean_run.samples, self.lean_run.fitting
            question = self, x.shape, x.stride(), x.dtype
            fits = fitting.get(question)
            if fits is None:
                fits = fitting[question] = fits_kernels(self, x)
            if not fits:
                return None
            return _pending(self, x, 1 if samples is None else len(x) // samples)

        def forward(self, x: Tensor) -> Tensor:
            pending = self.pending(x)
            if pending is not None:
                return pending.dense()
            samples = self.lean_run.samples
            is_constant = not self.training and self.running_mean is not None and not has_own_way
            if samples is None or len(x) == samples or is_constant:
                return super().forward(x)
            if has_own_way or not self.training:
                return torch.cat([super(Lean, self).forward(x_t) for x_t in x.split(samples)])
            self._check_input_dim(x)
            x = x.contiguous(memory_format=suggest_memory_format(x))  # the operator reads other strides wrongly
            return _NormalisedSteps.apply(x, self.weight, self.bias, self, samples)

    Lean.__name__ = Lean.__qualname__ = kind.__name__
    return Lean


def is_plain(kind: type) -> bool:
    """Whether a class of batch norm layers is PyTorch's, or SpikingJelly's, which is the same for one time step."""
    owner = next(base for base in kind.__mro__ if "forward" in vars(base))
    jelly = owner.__name__.startswith("BatchNorm") and owner.__module__.startswith(
        "spikingjelly.activation_based.layer"
    )
    return owner is _BatchNorm or jelly


def fits_kernels(layer: _BatchNorm, x: Tensor) -> bool:
    """Whether our kernels can compute this layer."""
    of_layer = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    there = [t for t in of_layer if t is not None]
    return takes(x) and all(t.dtype == torch.float32 and t.shape == x.shape[1:2] and t.is_contiguous() for t in there)


def _pending(layer: _BatchNorm, x: Tensor, groups: int) -> Pending:
    if isinstance(layer, SharedNorm) and layer.training:
        table, across = layer.table_of_all(x.detach(), groups)
        return Pending.after(x, table, layer.weight, layer.bias, constant=False, across=across)
    table, constant = table_for(layer, x, groups)
    return Pending.after(x, table, layer.weight, layer.bias, constant=constant)


@torch.no_grad()
def table_for(layer: _BatchNorm, x: Tensor, groups: int) -> tuple[Tensor, bool]:
    """The table that a layer normalises a batch by, and whether it is a constant. If it is not, the running statistics
    are updated."""
    lean = layer if isinstance(layer, LeanNorm) else None
    if not layer.training and layer.running_mean is not None:
        return _of_running(layer) if lean is None else lean.of_running, True
    tables = None if lean is None else lean.tables
    return _of_batch(layer, x, groups) if tables is None else tables.of(layer, x, groups), False


def _of_batch(layer: _BatchNorm, x: Tensor, groups: int) -> Tensor:
    """The table of a batch; the running statistics are updated."""
    if not (layer.training and layer.track_running_stats):
        return norm_statistics(x, layer.weight, layer.bias, None, None, groups, [], layer.eps, "auto")
    shares = [share_of_step(layer) for _ in range(groups)]
    running = layer.running_mean, layer.running_var
    return norm_statistics(x, layer.weight, layer.bias, *running, groups, shares, layer.eps, "auto")


def _of_running(layer: _BatchNorm) -> Tensor:
    """The table of the running statistics."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return table_of(layer.running_mean[None], layer.running_var[None], layer.weight, layer.bias, layer.eps)


def lean_norms(modules: Iterable[nn.Module], samples: int | None) -> contextlib.AbstractContextManager[None]:
    """Inside, batch norm layers are `LeanNorm`: they take so many samples for one time step and have statistics of
    each; all samples, if no number is given."""
    norms = (module for module in dict.fromkeys(modules) if isinstance(module, _BatchNorm))
    return in_class(norms, _lean, lean_run=LeanRun(samples))


@contextlib.contextmanager
def noting(modules: Iterable[nn.Module], tables: Tables) -> Iterator[None]:
    """Inside, batch norm layers that are `LeanNorm` ask these tables."""
    norms = [module for module in modules if isinstance(module, LeanNorm)]
    for norm in norms:
        norm.tables = tables
    try:
        yield
    finally:
        for norm in norms:
            norm.tables = None
