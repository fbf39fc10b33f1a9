"""Small files in the formats of real datasets, with known content."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from stdl_engine.data import Dataset


def random_images(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def write_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def random_events(count: int, height: int, width: int, seed: int = 0) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(seed)
    return {
        "t": np.sort(numbers.integers(0, 100_000, count)),
        "x": numbers.integers(0, width, count),
        "y": numbers.integers(0, height, count),
        "p": numbers.integers(0, 2, count),
    }


def counted(events: dict[str, np.ndarray], steps: int, height: int, width: int) -> torch.Tensor:
    """Frames of events, counted one by one."""
    frames = torch.zeros(steps, 2, height, width)
    share = len(events["x"]) // steps
    for number, (x, y, p) in enumerate(zip(events["x"], events["y"], events["p"], strict=True)):
        frame = min(number // share, steps - 1) if share else steps - 1
        frames[frame, p, y, x] += 1
    return frames


def all_of(source, batch_size: int = 7, workers: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Every sample of a source in order, not augmented; events as [T, N, ...]."""
    from stdl_engine.data import Batches

    batches = list(Batches(source, batch_size=batch_size, training=False, workers=workers).epoch(0))
    return torch.cat([x for x, _ in batches], dim=batches[0][0].ndim - 4), torch.cat([y for _, y in batches])


def assert_same_dataset(a: Dataset, b: Dataset) -> None:
    for one, other in ((a.train, b.train), (a.test, b.test)):
        for left, right in zip(all_of(one), all_of(other), strict=True):
            assert torch.equal(left, right)
