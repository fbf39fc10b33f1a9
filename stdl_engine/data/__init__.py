"""The datasets, by name. A new one is one function and one line in `DATASETS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..extras import extra

with extra("train"):
    from .arrays import npz
    from .base import BadSampleError, Dataset, FileSource, MemorySource, check_on_bad_sample, printable
    from .embedded import digits, digits_events
    from .event_folders import event_folder
    from .events import cifar10_dvs, gait_day_dvs, har_dvs, n_mnist
    from .folders import folder
    from .identity import fingerprint
    from .items import ItemSource
    from .loader import Batches
    from .own import own_dataset
    from .split import split_off
    from .static import cifar10, cifar100, imagenet, svhn

__all__ = [
    "DATASETS",
    "BadSampleError",
    "Batches",
    "Dataset",
    "FileSource",
    "ItemSource",
    "MemorySource",
    "fingerprint",
    "load_dataset",
    "printable",
    "split_off",
]

DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "digits-events": digits_events,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "imagenet": imagenet,
    "cifar10-dvs": cifar10_dvs,
    "gait-day-dvs": gait_day_dvs,
    "har-dvs": har_dvs,
    "n-mnist": n_mnist,
    "npz": npz,
    "folder": folder,
    "event-folder": event_folder,
}

COMMON = ("root", "steps", "on_bad_sample")
"""Arguments that every loader takes; any others are its own options."""


def load_dataset(
    name: str, root: str | Path = "data", steps: int = 4, on_bad_sample: str = "stop", **options: Any
) -> Dataset:
    """A dataset by name, or by a function of your own, "package.module:function" (see docs/data.md).

    `root` is the folder that datasets live in; for "npz" the file itself and for "folder" the folder itself. `steps` is
    T, the number of frames that events are collected in; images do not use it. `on_bad_sample` says what happens to a
    file that cannot be read: "stop" with an error that names it, or "skip" it and name it in `bad_samples`. Options are
    the dataset's own, `augment` ("paper", "light" or "none") among them.

    Example:
        >>> data = load_dataset("digits", augment="none")
        >>> data.in_shape, len(data.train)
        ((1, 16, 16), 1500)
    """
    if name not in DATASETS and ":" not in name:
        raise ValueError(
            f"unknown dataset {name!r}: choose from {', '.join(DATASETS)}, or name a function of your own, "
            '"package.module:function".'
        )
    check_on_bad_sample(on_bad_sample)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"steps is {steps!r}: the number of time steps must be a whole number from 1 up.")
    if ":" in name:
        return own_dataset(name, root=Path(root).expanduser(), steps=steps, on_bad_sample=on_bad_sample, **options)
    known = [option for option in inspect.signature(DATASETS[name]).parameters if option not in COMMON]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}: its options are {', '.join(known)}.")
    with extra("train"):  # some loaders import a library only when they are called
        return DATASETS[name](root=Path(root).expanduser(), steps=steps, on_bad_sample=on_bad_sample, **options)
