"""Reading image files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

LONGEST = 65536
"""The most pixels on the longer side of a resized image: a thin strip would otherwise fill the memory."""


def read_image(path: Path, shorter_side: int | None = None) -> Tensor:
    """An image file as RGB bytes [3, H, W], with its shorter side resized to `size` if that is given.

    Of several pictures in one file the first is used; transparency is dropped.
    """
    with Image.open(path) as file:
        image = _in_bytes(file).convert("RGB")
    if shorter_side is not None and min(image.size) != shorter_side:
        scale = shorter_side / min(image.size)
        # the longer side is rounded down, as torchvision's Resize does
        width, height = (shorter_side if side == min(image.size) else int(side * scale) for side in image.size)
        if max(width, height) > LONGEST:
            raise ValueError(f"its {image.width} × {image.height} pixels would become {width} × {height}")
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _in_bytes(image: Image.Image) -> Image.Image:
    """Pixels of 16 bits rounded to 8: Pillow would turn every pixel brighter than 255 white."""
    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    pixels = np.asarray(image)
    if image.mode == "F" or pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError("its pixels are of more than 16 bits; save it with 8 or 16 bits per pixel")
    return Image.fromarray(((pixels.astype(np.int64) + 128) // 257).astype(np.uint8))
