"""Operators for PyTorch, registered with as little as there can be between a call and its kernel.

What `torch.library.custom_op` does for a function of ours, at about half its time a call: the schema is read off the
type hints, and autograd, fake tensors and torch.compile know the operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("stdl_engine", "FRAGMENT")


class Operator:
    """A function of tensors as the operator `stdl_engine::name`; `register_fake` and, if it has a gradient,
    `register_autograd` follow.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__name__.strip("_")
        LIBRARY.define(self.name + torch.library.infer_schema(function, mutates_args=()))
        LIBRARY.impl(self.name, function, "CompositeExplicitAutograd")
        self.call = getattr(torch.ops.stdl_engine, self.name).default

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments)

    def register_fake(self, function: Callable[..., Any]) -> None:
        """What the operator gives without computing it."""
        torch.library.register_fake(f"stdl_engine::{self.name}", function, lib=LIBRARY)

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., None] | None = None
    ) -> None:
        """The gradient: `setup_context(ctx, inputs, output)` keeps what `backward(ctx, *gradients)` needs."""
        call = self.call

        class Differentiable(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *arguments):
                with torch._C._AutoDispatchBelowAutograd():
                    output = call(*arguments)
                if setup_context is not None:
                    setup_context(ctx, arguments, output)
                return output

        Differentiable.backward = staticmethod(backward)

        def differentiate(*arguments):
            if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments):
                return Differentiable.apply(*arguments)
            with torch._C._AutoDispatchBelowAutograd():
                return call(*arguments)

        LIBRARY.impl(self.name, differentiate, "Autograd")

    def refuse_gradient(self, what: str) -> None:
        """For an operator that is a gradient itself: differentiating it is an error, `what` has no second one."""

        def refuse(ctx, *_):
            raise RuntimeError(f'{what} no second derivative: pass backend="reference" to differentiate twice.')

        self.register_autograd(refuse)
