"""Your own arrays: images and labels in one .npz file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .base import Dataset, MemorySource
from .prepare import Preparation, check_augment, cifar_preparation

KEYS = ("x_train", "y_train", "x_test", "y_test")
SMALLEST = 28
"""Images narrower than this are not augmented: a crop from 4 pixels of padding would leave little of them."""

CHANNELS = (1, 2, 3, 4)
"""What the length of an axis must be to be taken for the channels."""


def npz(*, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper") -> Dataset:
    """The arrays x_train, y_train, x_test and y_test of the file `root`: images [N, H, W, C], [N, C, H, W] or
    [N, H, W], labels 0 to n-1. Normalised by the training images' mean and deviation per channel.

    Augmentation "paper" is CIFAR's and wants 3 channels of bytes; "light" crops and flips images of 28 pixels or more.
    """
    check_augment(augment)
    arrays = _read(root)
    x_train, x_test = (_images(arrays[key], key, root) for key in ("x_train", "x_test"))
    y_train, y_test = (_labels(arrays, key, root) for key in ("y_train", "y_test"))
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise ValueError(
            f"{root}: x_train has images of {_describe(x_train.shape[1:], x_train.dtype)} and x_test of "
            f"{_describe(x_test.shape[1:], x_test.dtype)}: make them alike."
        )
    classes = _classes(y_train, y_test, root)
    mean, std = channel_statistics(x_train)
    prepare = preparation_of(augment, x_train.shape[1:], x_train.dtype, mean, std)
    return Dataset(
        name=root.stem,
        num_classes=classes,
        in_shape=tuple(x_train.shape[1:]),
        train=MemorySource(samples=x_train, labels=y_train, prepare=prepare),
        test=MemorySource(samples=x_test, labels=y_test, prepare=prepare),
    )


def preparation_of(
    augment: str, shape: torch.Size, dtype: torch.dtype, mean: tuple[float, ...], std: tuple[float, ...]
) -> Preparation:
    """How images of this shape [C, H, W] are prepared."""
    augmentable = shape[2] >= SMALLEST
    if augment == "paper" and not (augmentable and shape[0] == 3 and dtype == torch.uint8):
        raise ValueError(
            f'augment="paper" is for images of 3 channels in bytes, {SMALLEST} pixels wide or more, and these are '
            f'{_describe(shape, dtype)}: choose "light" or "none".'
        )
    return cifar_preparation(augment if augmentable else "none", mean, std)


def channel_statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel of [N, C, H, W], of bytes as fractions of 255."""
    scale = 255 if x.dtype == torch.uint8 else 1
    mean, std = [], []
    for channel in range(x.shape[1]):
        total = square = 0.0
        for part in x[:, channel].split(1024):  # a whole channel in float64 would take eight times its bytes
            values = part.double() / scale
            total += values.sum().item()
            square += (values * values).sum().item()
        count = x[:, channel].numel()
        average = total / count
        mean.append(average)
        std.append(max(square / count - average * average, 0.0) ** 0.5 or 1.0)  # a constant channel stays finite
    return tuple(mean), tuple(std)


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path}: pass an .npz file with the arrays {', '.join(KEYS)} as the root."
        )
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("it is a single array")
        with file:
            found = list(file.files)
            arrays = {key: file[key] for key in KEYS if key in found}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read as .npz ({error}): save it again with np.savez.") from error
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise ValueError(
            f"{path} lacks {', '.join(missing)} and has {', '.join(found) or 'nothing'}: save it with np.savez and all "
            f"of {', '.join(KEYS)}."
        )
    return arrays


def _images(array: np.ndarray, key: str, path: Path) -> Tensor:
    """[N, C, H, W], in memory as channels_last; bytes stay bytes, floats become float32."""
    if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"{path}: {key} has dtype {array.dtype}: store images as uint8 or float32.")
    if array.ndim == 3:
        array = array[..., None]
    last, first = (array.ndim == 4 and array.shape[axis] in CHANNELS for axis in (-1, 1))
    if last == first or 0 in array.shape:
        raise ValueError(
            f"{path}: {key} has shape {array.shape}: store images as [N, H, W, C] or [N, C, H, W] with C from 1 to 4."
        )
    images = torch.from_numpy(np.ascontiguousarray(array if last else array.transpose(0, 2, 3, 1))).permute(0, 3, 1, 2)
    if images.is_floating_point():
        images = images.float()
        if not images.isfinite().all():
            raise ValueError(f"{path}: {key} has values that are not finite: replace them.")
    return images


def _labels(arrays: dict[str, np.ndarray], key: str, path: Path) -> Tensor:
    labels, images = arrays[key], arrays[key.replace("y", "x", 1)]
    if labels.ndim == 2 and labels.shape[1] == 1:  # the shape Keras saves
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"{path}: {key} has shape {arrays[key].shape} and dtype {labels.dtype}: store one whole number a sample."
        )
    if len(labels) != len(images):
        raise ValueError(f"{path}: {key} has {len(labels)} labels for {len(images)} images: store one for each.")
    return torch.from_numpy(labels.astype(np.int64))


def _classes(train: Tensor, test: Tensor, path: Path) -> int:
    """How many there are: every class from 0 up must occur in training, and only those in the test set."""
    found = train.unique()
    if found[0] < 0 or found[-1] != len(found) - 1:
        raise ValueError(
            f"{path}: y_train has {len(found)} different labels from {found[0]} to {found[-1]}: number the classes "
            "from 0 up without gaps."
        )
    if test.min() < 0 or test.max() >= len(found):
        raise ValueError(
            f"{path}: y_test has labels from {test.min()} to {test.max()} and y_train {len(found)} classes: test on "
            f"labels from 0 to {len(found) - 1}."
        )
    return len(found)


def _describe(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{' × '.join(map(str, shape))} in {str(dtype).removeprefix('torch.')}"
