"""Functions of tensors as PyTorch operators: autograd, fake tensors, torch.compile and torch.func can follow them.

An `Operator` declares one in a few lines: what it computes, the shapes of its results, and its gradient. The schema is
read from the type hints, in which a NamedTuple stands for its fields. `torch.library.custom_op` would do as well, but a
call through PyTorch's dispatcher takes longer than all the rest of a step on a few thousand neurons: `python -m bench
call_overhead` prints both. So ordinary tensors go straight to the function. Only calls that something else has to see
go through the dispatcher: those on fake and meta tensors, those under a dispatch mode, and those that are compiled or
traced.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

LIBRARY = torch.library.Library("stdl_engine", "FRAGMENT")


transformed = torch._C._are_functorch_transforms_active
"""Whether a transform of torch.func (grad, vmap, jvp and so on) is active."""
_dispatch_modes, _tracing = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state
_grad_enabled, _any_requires_grad = torch.is_grad_enabled, torch._C._any_requires_grad


def watched(tensors: Sequence[Tensor | None]) -> bool:
    """Whether these must go through the dispatcher: a compiler, a dispatch mode or a tensor subclass has to see them,
    or they have no data."""
    if torch.compiler.is_dynamo_compiling() or _dispatch_modes() or _tracing():
        return True
    for tensor in tensors:
        if tensor is not None:
            kind = type(tensor)
            if (kind is not Tensor and kind is not torch.nn.Parameter) or tensor.is_meta:
                return True
    return False


def followed(arguments: Sequence[Any]) -> bool:
    """Whether autograd tracks any of these arguments, in reverse or forward mode."""
    return forward_ad._current_level >= 0 or (_grad_enabled() and _any_requires_grad(*arguments))


class Differentiable(torch.autograd.Function):
    """An autograd function written with `setup_context`, as torch.func requires, and called by `call`.

    That form binds its arguments to their names in every call, which takes longer than a kernel on a few thousand
    neurons. If no transform is active, the same functions run in the older form, which does not do that. Code that is
    compiled calls `compiled`, which has no forward mode, because compilers refuse a function that has its own.
    """

    plain: ClassVar[type[torch.autograd.Function]]
    compiled: ClassVar[type[torch.autograd.Function]]

    def __init_subclass__(cls) -> None:
        def forward(ctx: Any, *arguments: Any) -> Any:
            output = cls.forward(*arguments)
            cls.setup_context(ctx, arguments, output)
            return output

        ways = {"forward": forward, "backward": cls.backward, "jvp": cls.jvp}
        ways = {name: staticmethod(function) for name, function in ways.items()}
        cls.plain = type(cls.__name__, (torch.autograd.Function,), ways)
        ways = {"forward": cls.forward, "setup_context": cls.setup_context, "backward": cls.backward}
        ways = {name: staticmethod(function) for name, function in ways.items()}
        cls.compiled = type(cls.__name__, (torch.autograd.Function,), ways)

    @classmethod
    def call(cls, *arguments: Any) -> Any:
        """Apply the function to these arguments, with its gradient."""
        if transformed() or torch.compiler.is_compiling():
            return cls.apply(*arguments)
        return cls.plain.apply(*arguments)


def saved_tensors(ctx: Any, what: str) -> tuple[Any, ...]:
    """What a time step of `what` saved for its backward, tensors or None; raises, with advice, if an earlier backward
    has freed it."""
    try:
        return ctx.saved_tensors
    except RuntimeError as error:
        if "a second time" not in str(error):  # PyTorch's errors differ only in their text
            raise
        raise RuntimeError(
            f"backward reached a time step of {what} that an earlier backward has gone through and freed: run backward "
            "once over all steps of a sequence and call reset_states(model) before the next one, or take the past as a "
            "constant with online=True or detach_state()."
        ) from error


class Operator:
    """The function `compute` of tensors, numbers and NamedTuples of numbers, as the operator `stdl_engine::name`.

    Args:
        name: what it is called in graphs, profiles and tracebacks.
        compute: returns the results, one or a tuple, for real tensors. A result may be None; the dispatcher does not
            know None, and returns an empty tensor instead.
        fake: returns uninitialised results for the same arguments, with the right shapes, strides and dtypes.
        mutates: names of the arguments that are overwritten, and are constants to autograd.
        overwrites: names of the arguments that are overwritten and then have a gradient of their own.
        keep: `keep(ctx, inputs, output)` stores what `backward` needs; the output starts with what is overwritten.
        backward: `backward(ctx, *gradients)` returns the gradient of each input from those of that output.
        no_gradient: the error message of an operator without `backward` when a gradient is requested.
        types: type hints of `compute` that its signature leaves open, by name.
    """

    def __init__(
        self,
        name: str,
        compute: Callable[..., Any],
        fake: Callable[..., Any],
        *,
        mutates: Sequence[str] = (),
        overwrites: Sequence[str] = (),
        keep: Callable[..., None] = lambda ctx, inputs, output: None,
        backward: Callable[..., Any] | None = None,
        no_gradient: str = "",
        types: dict[str, Any] | None = None,
    ) -> None:
        hints = typing.get_type_hints(compute) | (types or {})
        parameters = [*inspect.signature(compute).parameters]
        self.name, self._compute, self._fake, self._keep = name, compute, fake, keep
        self._no_gradient = no_gradient or f"{name} has no gradient."
        self._records = [hints[p] if hasattr(hints[p], "_fields") else None for p in parameters]
        self._changed = [parameters.index(p) for p in (*mutates, *overwrites)]
        self._overwritten = [parameters.index(p) for p in overwrites]
        self._tensors = sum(hints[p] in (Tensor, Tensor | None) for p in parameters)  # tensors come first
        back = {"backward": backward or self._refuse_backward, "jvp": self._refuse_forward_mode}
        self._plain = _function(name, forward=self._for_autograd(self._run), **back)
        self._dispatched = _function(name, forward=self._for_autograd(self._below_autograd), **back)
        transformed = {"forward": self.__call__, "setup_context": keep, "vmap": self._sample_by_sample}
        self._transformed = _function(name, **transformed, **back)
        LIBRARY.define(name + _schema(parameters, hints, (*mutates, *overwrites)))
        LIBRARY.impl(name, self._from_dispatcher, "CompositeExplicitAutograd")
        LIBRARY.impl(name, self._autograd_from_dispatcher, "Autograd")
        torch.library.register_fake(f"stdl_engine::{name}", self._fake_from_dispatcher, lib=LIBRARY)
        self.overload = getattr(torch.ops.stdl_engine, name).default

    def __call__(self, *arguments: Any) -> Any:
        if transformed():
            return self._under_transform(arguments)
        if watched(arguments[: self._tensors]):
            return self.overload(*self.spread(arguments))
        if not followed(arguments):
            return self._run(*arguments)
        results = self._plain.apply(*arguments)
        return self._without_overwritten(results) if self._overwritten else results

    def spread(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments in the order of the schema, with the fields of records in their place."""
        flat: list[Any] = []
        for argument, record in zip(arguments, self._records, strict=True):
            if record is None:
                flat.append(argument)
            else:
                flat.extend(argument)
        return flat

    def _gather(self, flat: Sequence[Any]) -> list[Any]:
        left = iter(flat)
        return [next(left) if r is None else r(*(next(left) for _ in r._fields)) for r in self._records]

    def _run(self, *arguments: Any) -> Any:
        """The results of real tensors."""
        results = self._compute(*arguments)
        if self._changed:
            self._count_changes(arguments)
        return results

    def _below_autograd(self, *arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            results = self.overload(*self.spread(arguments))
        self._count_changes(arguments)  # of fake tensors, too
        return results

    def _count_changes(self, arguments: Sequence[Any]) -> None:
        """Let a pending backward that saved a tensor notice that it was overwritten."""
        for place in self._changed:
            changed = arguments[place]
            if changed is not None and not changed.is_inference():
                torch.autograd.graph.increment_version(changed)

    def _for_autograd(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The forward of an autograd function, whose results must include what is overwritten."""
        keep = self._keep

        def forward(ctx: Any, *arguments: Any) -> Any:
            results = run(*arguments)
            keep(ctx, arguments, results)
            return results

        def forward_over(ctx: Any, *arguments: Any) -> Any:
            results = run(*arguments)
            overwritten = [arguments[place] for place in self._overwritten]
            results = *overwritten, *(results if isinstance(results, tuple) else (results,))
            ctx.mark_dirty(*overwritten)
            keep(ctx, arguments, results)
            return results

        return forward_over if self._overwritten else forward

    def _without_overwritten(self, results: Any) -> Any:
        results = results[len(self._overwritten) :]
        return results if len(results) > 1 else results[0]

    def _under_transform(self, arguments: Sequence[Any]) -> Any:
        if self._changed:
            raise RuntimeError(
                f"{self.name} writes over its state, which the transforms of torch.func cannot follow: make the layer "
                "with online=False, or call the step that returns a new state (its name has no underscore at the end)."
            )
        return self._transformed.apply(*arguments)

    def _from_dispatcher(self, *flat: Any) -> Any:
        return _without_none(self._run(*self._gather(flat)), flat)

    def _fake_from_dispatcher(self, *flat: Any) -> Any:
        return _without_none(self._fake(*self._gather(flat)), flat)

    def _autograd_from_dispatcher(self, *flat: Any) -> Any:
        if not followed(flat):
            with torch._C._AutoDispatchBelowAutograd():
                return self.overload(*flat)
        results = self._dispatched.apply(*self._gather(flat))
        return self._without_overwritten(results) if self._overwritten else results

    def _refuse_backward(self, ctx: Any, *gradients: Any) -> None:
        raise RuntimeError(self._no_gradient)

    def _refuse_forward_mode(self, ctx: Any, *tangents: Any) -> None:
        raise NotImplementedError(
            f'{self.name} has no forward-mode derivative: pass backend="reference", which has one, or use backward.'
        )

    def _sample_by_sample(self, info: Any, in_dims: Sequence[Any], *arguments: Any) -> Any:
        """The rule for torch.func.vmap: one call per sample, as some operators sum over all neurons."""
        results = []
        for index in range(info.batch_size):
            pairs = zip(arguments, in_dims, strict=True)
            results.append(
                self(*(a.select(d, index) if isinstance(a, Tensor) and d is not None else a for a, d in pairs))
            )
        if not isinstance(results[0], tuple):
            return torch.stack(results), 0
        stacked = tuple(None if of_all[0] is None else torch.stack(of_all) for of_all in zip(*results, strict=True))
        return stacked, tuple(None if t is None else 0 for t in stacked)


def _function(name: str, **ways: Callable[..., Any]) -> type[torch.autograd.Function]:
    """An autograd function with this name."""
    return type(name, (torch.autograd.Function,), {way: staticmethod(function) for way, function in ways.items()})


def _without_none(results: Any, flat: Sequence[Any]) -> Any:
    if not isinstance(results, tuple):
        return results
    pattern = next(argument for argument in flat if isinstance(argument, Tensor))
    return tuple(pattern.new_empty(0) if result is None else result for result in results)


def _schema(parameters: Sequence[str], hints: dict[str, Any], changed: Sequence[str]) -> str:
    """The schema of a function, with a parameter for each field of a NamedTuple."""
    fields: dict[str, Any] = {}
    for name in parameters:
        own = typing.get_type_hints(hints[name]) if hasattr(hints[name], "_fields") else {name: hints[name]}
        if twice := fields.keys() & own.keys():
            raise ValueError(f"an operator cannot have two parameters {', '.join(twice)}: rename one of them.")
        fields |= own
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    flat = [inspect.Parameter(name, kind, annotation=hint) for name, hint in fields.items()]

    def prototype() -> None: ...

    returned = hints["return"]
    signature = inspect.Signature(flat, return_annotation=None if returned is type(None) else returned)
    prototype.__signature__ = signature  # type: ignore[attr-defined]  # where `inspect` looks for it
    return torch.library.infer_schema(prototype, mutates_args=changed)
