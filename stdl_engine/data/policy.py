"""AutoAugment's policy for CIFAR-10 on a whole batch: samples that drew the same operation go through it together."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

# Each sub-policy is two operations: name, probability in tenths, and strength from 0 to 9, or 0 if it has none (Cubuk
# et al., 2019, CIFAR-10).
POLICY = tuple(
    tuple((name, int(tenths), int(strength)) for name, tenths, strength in (op.split() for op in line.split(",")))
    for line in """
        invert 1 0, contrast 2 6
        rotate 7 2, translate_x 3 9
        sharpness 8 1, sharpness 9 3
        shear_y 5 8, translate_y 7 9
        autocontrast 5 0, equalize 9 0
        shear_y 2 7, posterize 3 7
        color 4 3, brightness 6 7
        sharpness 3 9, brightness 7 9
        equalize 6 0, equalize 5 0
        contrast 6 7, sharpness 6 5
        color 7 7, translate_x 5 8
        equalize 3 0, autocontrast 4 0
        translate_y 4 3, sharpness 2 6
        brightness 9 6, color 2 8
        solarize 5 2, invert 0 0
        equalize 2 0, autocontrast 6 0
        equalize 2 0, equalize 6 0
        color 9 9, equalize 6 0
        autocontrast 8 0, solarize 2 8
        brightness 1 3, color 7 0
        solarize 4 5, autocontrast 9 0
        translate_y 9 9, translate_y 7 9
        autocontrast 9 0, solarize 8 3
        equalize 8 0, invert 1 0
        translate_y 7 9, autocontrast 9 0
    """.strip().splitlines()
)

SIGNED = {"shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast", "sharpness"}


def auto_augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Apply a random sub-policy to each image of a batch [B, 3, H, W] of bytes.

    The operations and the meaning of their strengths are torchvision's. Random numbers come from the generator, never
    from the global one.
    """
    batch = len(x)
    chosen = torch.randint(len(POLICY), (batch,), generator=generator).tolist()
    chance = torch.rand(batch, 2, generator=generator).tolist()
    negative = torch.randint(2, (batch, 2), generator=generator).tolist()
    x = x.clone()
    for place in (0, 1):
        groups: dict[tuple[str, int, int], list[int]] = {}
        for sample in range(batch):
            name, tenths, strength = POLICY[chosen[sample]][place]
            if chance[sample][place] * 10 < tenths:
                sign = -1 if name in SIGNED and negative[sample][place] else 1
                groups.setdefault((name, strength, sign), []).append(sample)
        for (name, strength, sign), samples in groups.items():
            members = torch.tensor(samples)
            x[members] = OPERATIONS[name](x[members], sign * strength / 9)
    return x


def _shear_y(x: Tensor, strength: float) -> Tensor:
    degrees = math.degrees(math.atan(0.3 * strength))
    return functional.affine(x, angle=0.0, translate=[0, 0], scale=1.0, shear=[0.0, degrees], center=[0, 0])


def _translate_x(x: Tensor, strength: float) -> Tensor:
    pixels = int(150 / 331 * x.shape[-1] * strength)
    return functional.affine(x, angle=0.0, translate=[pixels, 0], scale=1.0, shear=[0.0, 0.0])


def _translate_y(x: Tensor, strength: float) -> Tensor:
    pixels = int(150 / 331 * x.shape[-2] * strength)
    return functional.affine(x, angle=0.0, translate=[0, pixels], scale=1.0, shear=[0.0, 0.0])


OPERATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "rotate": lambda x, strength: functional.rotate(x, angle=30 * strength),
    "brightness": lambda x, strength: functional.adjust_brightness(x, 1 + 0.9 * strength),
    "color": lambda x, strength: functional.adjust_saturation(x, 1 + 0.9 * strength),
    "contrast": lambda x, strength: functional.adjust_contrast(x, 1 + 0.9 * strength),
    "sharpness": lambda x, strength: functional.adjust_sharpness(x, 1 + 0.9 * strength),
    "posterize": lambda x, strength: functional.posterize(x, bits=8 - round(4 * strength)),
    "solarize": lambda x, strength: functional.solarize(x, threshold=255 * (1 - strength)),
    "autocontrast": lambda x, strength: functional.autocontrast(x),
    "equalize": lambda x, strength: functional.equalize(x),
    "invert": lambda x, strength: functional.invert(x),
}
