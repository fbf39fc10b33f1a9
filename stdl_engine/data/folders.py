"""Your own image files: a folder with train/<class>/ and test/<class>/."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS

from .arrays import preparation_of
from .base import IN_MEMORY, BadSampleError, Dataset, FileSource, MemorySource, read_checked
from .files import Files, list_files, own_splits
from .images import read_image
from .prepare import Preparation, centre_crop, check_augment
from .progress import progress
from .static import IMAGENET

LARGEST = 8192
"""The largest side in pixels that images are resized to: more is surely a mistake, and would fill the memory."""


def folder(
    *, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper", size: int | None = None
) -> Dataset:
    """The images root/train/<class>/* and root/test/<class>/* (or val), as RGB, normalised like ImageNet.

    `size` resizes the shorter side and cuts the centre out; without it all images must have the size of the first.
    Splits below 2 GB are held in memory, larger ones are read file by file. Augmentation is that of `npz`.
    """
    check_augment(augment)
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ValueError(f"size is {size!r}: it must be a whole number of pixels from 1 up.")
    if size is not None and size > LARGEST:
        raise ValueError(f"size is {size}: images are at most {LARGEST} pixels wide.")
    train_folder, test_folder, classes = own_splits(root, "images")
    train, test = (list_files(split, classes, IMG_EXTENSIONS) for split in (train_folder, test_folder))
    height, width = (size, size) if size else _first_size(train, on_bad_sample)
    read = functools.partial(read_sized, height=height, width=width, resize=size is not None)
    prepare = preparation_of(augment, torch.Size((3, height, width)), torch.uint8, **IMAGENET)
    sources = [_source(files, read, (height, width), prepare, on_bad_sample) for files in (train, test)]
    return Dataset(
        name=root.name,
        num_classes=len(classes),
        in_shape=(3, height, width),
        train=sources[0],
        test=sources[1],
    )


def read_sized(path: Path, height: int, width: int, resize: bool) -> Tensor:
    """An image file as bytes [3, height, width]."""
    image = read_image(path, shorter_side=height if resize else None)
    if resize:
        return centre_crop(image, (height, width))
    if tuple(image.shape[1:]) != (height, width):
        raise ValueError(
            f"it has {image.shape[2]} × {image.shape[1]} pixels and the first image {width} × {height}; the option "
            "size makes them alike"
        )
    return image


def _first_size(files: Files, on_bad_sample: str) -> tuple[int, int]:
    for path, _ in files:
        try:
            _, height, width = read_checked(read_image, path).shape
            return height, width
        except BadSampleError:
            if on_bad_sample == "stop":
                raise
    raise ValueError(f"none of the {len(files)} images in {files[0][0].parent.parent} can be read: replace them.")


def _source(
    files: Files, read: functools.partial, size: tuple[int, int], prepare: Preparation, on_bad_sample: str
) -> MemorySource | FileSource:
    if len(files) * 3 * size[0] * size[1] >= IN_MEMORY:
        return FileSource(files=files, read=read, prepare=prepare, on_bad_sample=on_bad_sample)
    pixels = torch.empty(len(files), *size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    labels: list[int] = []
    bad: list[Path | str] = []
    for path, label in progress(files, "reading images"):
        try:
            pixels[len(labels)] = read_checked(read, path)
        except BadSampleError as error:
            if on_bad_sample == "stop":
                raise
            bad.append(error.path)
        else:
            labels.append(label)
    return MemorySource(
        samples=pixels[: len(labels)],
        labels=torch.tensor(labels, dtype=torch.int64),
        prepare=prepare,
        bad_samples=tuple(bad),
    )
