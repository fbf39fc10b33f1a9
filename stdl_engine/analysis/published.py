"""What the paper reports, for comparison: accuracy in per cent and memory in GB (1e9 bytes)."""

from __future__ import annotations

RULES = {
    "bptt": (95.12, 15.45),
    "sltt": (95.07, 4.88),
    "decolle": (62.05, 2.76),
    "ell": (88.40, 2.76),
    "stdl": (94.99, 3.51),
}
"""ResNet-18 on CIFAR-10, T=4, batch 512, 400 epochs."""

STEPS = {
    "bptt": {1: (94.01, 4.56), 2: (94.98, 8.40), 4: (95.12, 15.45), 6: (95.20, 22.50)},
    "stdl": {1: (93.90, 3.17), 2: (94.94, 3.51), 4: (94.99, 3.51), 6: (95.18, 3.51)},
}
"""The same at other T."""

NEURONS = {
    ("lif", "bptt"): (94.15, 227.36),
    ("lif", "stdl"): (94.40, 10.91),
    ("plif", "bptt"): (94.50, 300.92),
    ("plif", "stdl"): (94.80, 12.47),
    ("alif", "bptt"): (94.97, 308.48),
    ("alif", "stdl"): (95.02, 21.42),
}
"""ResNet-18 on GAIT-DAY-DVS, T=20, batch 100."""

EVEN = {1: (94.01, 4.56), 3: (91.79, 3.36), 5: (90.71, 2.63), 7: (85.88, 2.29), 9: (85.53, 2.29)}
"""K even groups with linear classifiers; ResNet-18 on CIFAR-10, T=1."""

LAYERWISE_LINEAR = 88.4
"""Accuracy of every unit alone with a linear classifier; ResNet-18 on CIFAR-10, T=4."""


def said(figures: tuple[float, float] | None) -> str:
    """For a cell."""
    return "–" if figures is None else f"{figures[0]:.2f} %, {figures[1]:.2f} GB"
