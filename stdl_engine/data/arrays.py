"""Your own arrays: images or sequences of frames, and labels, in one .npz file."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .archives import read_npz, reason_of
from .base import Dataset, MemorySource
from .prepare import Preparation, check_augment, cifar_preparation

KEYS = ("x_train", "y_train", "x_test", "y_test")
SMALLEST = 28
"""Images narrower than this are not augmented: a crop from 4 pixels of padding would leave little of them."""

CHANNELS = (1, 2, 3, 4)
"""The lengths at which an axis is taken for the channels."""


def npz(*, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper") -> Dataset:
    """The arrays x_train, y_train, x_test and y_test of the file `root`: images [N, H, W, C], [N, C, H, W] or
    [N, H, W], or sequences of frames of events [N, T, C, H, W], and labels 0 to n-1. Images are normalised by the mean
    and standard deviation of each channel of the training images; events are not. There must be as many frames as time
    steps.

    Augmentation "paper" is CIFAR's: it needs 3 channels of bytes, and leaves events as they are. "light" crops and
    flips images and sequences of 28 pixels or more.
    """
    check_augment(augment)
    arrays = _read(root)
    events = arrays["x_train"].ndim == 5
    convert = functools.partial(_sequences, steps=steps) if events else _images
    x_train, x_test = (convert(arrays[key], key, root) for key in ("x_train", "x_test"))
    y_train, y_test = (_labels(arrays, key, root) for key in ("y_train", "y_test"))
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise ValueError(
            f"{root}: x_train has images of {_describe(x_train.shape[1:], x_train.dtype)} and x_test of "
            f"{_describe(x_test.shape[1:], x_test.dtype)}: make them alike."
        )
    classes = count_classes(y_train, y_test, root, ("y_train", "y_test"))
    if events:
        prepare = event_preparation(augment, x_train.shape[-1])
    else:
        prepare = preparation_of(augment, x_train.shape[1:], x_train.dtype, *channel_statistics(x_train))
    channels, height, width = x_train.shape[-3:]
    return Dataset(
        name=root.stem,
        num_classes=classes,
        in_shape=(channels, height, width),
        events=events,
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


def event_preparation(augment: str, width: int) -> Preparation:
    """How sequences of this width are prepared: as they are, or with "light" each shifted and mirrored as a whole."""
    return Preparation(pad=4, flip=True) if augment == "light" and width >= SMALLEST else Preparation()


def channel_statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of [N, C, H, W]; of bytes as fractions of 255."""
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
    found: list[str] = []

    def wanted(names: list[str]) -> list[str]:
        found.extend(names)
        return [key for key in KEYS if key in names]

    try:
        arrays = read_npz(path, wanted)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as .npz ({reason_of(error)}): save it again with np.savez.") from error
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
            raise ValueError(f"{path}: {key} has values that are not finite in float32: replace them.")
    return images


def _sequences(array: np.ndarray, key: str, path: Path, steps: int) -> Tensor:
    """[N, T, C, H, W]; bytes stay bytes, other whole numbers become int32 and floats float32."""
    if array.ndim != 5 or array.shape[2] not in CHANNELS or 0 in array.shape:
        raise ValueError(
            f"{path}: {key} has shape {array.shape}: store events as [N, T, C, H, W] with C from 1 to 4, for training "
            "as well as for testing."
        )
    if array.shape[1] != steps:
        raise ValueError(
            f"{path}: {key} has {array.shape[1]} frames per sample and steps is {steps}: set steps to "
            f"{array.shape[1]}, or add up frames before you save them."
        )
    if array.dtype.kind not in "buif":
        raise ValueError(f"{path}: {key} has dtype {array.dtype}: store events as uint8, int32 or float32.")
    if array.dtype.kind == "f":
        frames = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
        if not frames.isfinite().all():
            raise ValueError(f"{path}: {key} has values that are not finite in float32: replace them.")
        return frames
    if array.min() < 0 or array.max() > np.iinfo(np.int32).max:
        raise ValueError(f"{path}: {key} has counts from {array.min()} to {array.max()}: store counts of events.")
    whole = np.uint8 if array.dtype.kind == "b" or array.dtype == np.uint8 else np.int32
    return torch.from_numpy(np.ascontiguousarray(array, dtype=whole))


def _labels(arrays: dict[str, np.ndarray], key: str, path: Path) -> Tensor:
    labels, images = arrays[key], arrays[key.replace("y", "x", 1)]
    if labels.ndim == 2 and labels.shape[1] == 1:  # the shape that Keras saves
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"{path}: {key} has shape {arrays[key].shape} and dtype {labels.dtype}: store one whole number per sample."
        )
    if len(labels) != len(images):
        raise ValueError(f"{path}: {key} has {len(labels)} labels for {len(images)} samples: store one for each.")
    return torch.from_numpy(labels.astype(np.int64))


def count_classes(train: Tensor, test: Tensor, where: str | Path, names: tuple[str, str]) -> int:
    """The number of classes: every class from 0 up must occur in training, and the test set may have no others."""
    found = train.unique()
    if len(found) == 1:
        raise ValueError(
            f"{where}: {names[0]} has the single label {found[0]}: a network needs two or more to tell apart."
        )
    if found[0] < 0 or found[-1] != len(found) - 1:
        raise ValueError(
            f"{where}: {names[0]} has {len(found)} different labels from {found[0]} to {found[-1]}: number the classes "
            "from 0 up without gaps."
        )
    if test.min() < 0 or test.max() >= len(found):
        raise ValueError(
            f"{where}: {names[1]} has labels from {test.min()} to {test.max()} and {names[0]} {len(found)} classes: "
            f"test on labels from 0 to {len(found) - 1}."
        )
    return len(found)


def _describe(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{' × '.join(map(str, shape))} in {str(dtype).removeprefix('torch.')}"
