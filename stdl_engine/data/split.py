"""A part of the training set kept back to validate on, so that the test set decides nothing."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from .base import Dataset, Source
from .loader import generator_for


def split_off(data: Dataset, share: float, seed: int = 0) -> tuple[Dataset, Source]:
    """The dataset without this share of its training samples, and a source of that share, which is never augmented.

    Every class contributes its share, to the nearest sample, and keeps at least one sample. The same data, share and
    seed give the same split. Samples are not copied.

    Example:
        >>> from stdl_engine.data import load_dataset
        >>> data, validation = split_off(load_dataset("digits"), 0.1, seed=0)
        >>> len(data.train), len(validation), len(data.test)
        (1350, 150, 297)
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise ValueError(
            f"the share to validate on is {share!r}: it must be a number between 0 and 1, for example 0.1."
        )
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed is {seed!r}: it must be a whole number from 0 up.")
    labels = data.train.labels
    taken = torch.zeros(len(labels), dtype=torch.bool)
    generator = generator_for(seed, 0, 0, 1)  # four numbers, so that no epoch with this seed draws the same
    for label, count in quotas(labels, share).items():
        members = (labels == label).nonzero().squeeze(1)
        taken[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    if not taken.any():
        raise ValueError(
            f"a share of {share:g} of {len(labels)} training samples is less than one sample that its class can spare: "
            "validate on a larger share."
        )
    train, validation = (data.train.only(part.nonzero().squeeze(1)) for part in (~taken, taken))
    validation = replace(validation, prepare=validation.prepare.still(), bad_samples=())
    return replace(data, train=train), validation


def quotas(labels: Tensor, share: float) -> dict[int, int]:
    """How many samples of each class are taken: the share of each class rounded down, then one more from each class
    that lost most by rounding until the total is right. No class gives its last sample.
    """
    found, counts = labels.unique(return_counts=True)
    part = Fraction(str(share))  # 0.1 means a tenth, not the nearest double
    exact = {label: part * count for label, count in zip(found.tolist(), counts.tolist(), strict=True)}
    quota = {label: int(want) for label, want in exact.items()}
    spare = {label: count - 1 for label, count in zip(found.tolist(), counts.tolist(), strict=True)}
    missing = round(part * len(labels)) - sum(quota.values())
    for label in sorted(exact, key=lambda label: quota[label] - exact[label]):
        if missing > 0 and quota[label] < spare[label]:
            quota[label] += 1
            missing -= 1
    return quota
