"""Data from a user's own function, "package.module:function", and checks that it is what it claims to be."""

from __future__ import annotations

from typing import Any

import torch

from ..own_functions import call_own, parameters_of, takes
from .base import BadSampleError, Dataset, MemorySource, Source
from .items import from_pair

ALWAYS = ("root", "steps", "on_bad_sample", "augment")
"""Arguments that commands offer to every function; a function gets those that it has as parameters."""


def own_dataset(reference: str, **options: Any) -> Dataset:
    """What the function returns, called with the options that it takes: a `Dataset`, or a pair of datasets to train and
    to test on, each with a length and (sample, label) by index.
    """
    parameters = parameters_of(reference)
    for option in options:
        if option not in ALWAYS and not takes(parameters, option):
            names = ", ".join(parameter.name for parameter in parameters or ())
            raise ValueError(f"{reference} has no option {option!r}: its options are {names or 'none'}.")
    found = call_own(reference, **options)
    if isinstance(found, tuple | list) and len(found) == 2:
        train, test = found
        found = from_pair(train, test, reference, options["steps"], options["on_bad_sample"])
    if not isinstance(found, Dataset):
        raise ValueError(
            f"{reference} returned a {type(found).__name__}: return a stdl_engine.data.Dataset, or a pair of "
            "torch.utils.data.Dataset to train and to test on."
        )
    _check_samples(found, reference, options["steps"])
    return found


def _check_samples(data: Dataset, reference: str, steps: int) -> None:
    expected = (steps, *data.in_shape) if data.events else tuple(data.in_shape)
    for split, source in (("training", data.train), ("test", data.test)):
        x = _first(source)
        if tuple(x.shape) != expected:
            raise ValueError(
                f"{reference} promises samples of shape {expected}, and the first of the {split} set has "
                f"{tuple(x.shape)}: make in_shape, events and steps those of the samples."
            )
        if not x.isfinite().all():
            raise ValueError(f"the first sample of the {split} set of {reference} has values that are not finite.")


def _first(source: Source) -> torch.Tensor:
    if isinstance(source, MemorySource):
        return source.batch(torch.zeros(1, dtype=torch.int64), None)[0][0]
    for index in range(len(source)):
        try:
            return source.sample(index, None)[0]
        except BadSampleError:
            if source.on_bad_sample == "stop":
                raise
    raise ValueError(f"none of the {len(source)} samples can be read: replace them.")
