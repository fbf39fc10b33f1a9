"""Reading image files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def read_image(path: Path, shorter_side: int | None = None) -> Tensor:
    """An image file as RGB bytes [3, H, W], resized to that shorter side if one is given."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    if shorter_side is not None and min(image.size) != shorter_side:
        scale = shorter_side / min(image.size)
        # the longer side rounded down, as torchvision's Resize does
        width, height = (shorter_side if side == min(image.size) else int(side * scale) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
