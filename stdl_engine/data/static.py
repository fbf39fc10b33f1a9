"""The paper's image datasets, in torchvision's own layouts on disk; nothing is downloaded."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
import torchvision
from torch import Tensor

from .archives import reason_of
from .base import Dataset, FileSource, MemorySource
from .files import find_home, require, require_same_classes
from .images import read_image
from .prepare import Preparation, check_augment, cifar_preparation


class Statistics(TypedDict):
    """Mean and standard deviation of a dataset's images, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


CIFAR10: Statistics = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}
CIFAR100: Statistics = {"mean": (0.5071, 0.4867, 0.4408), "std": (0.2675, 0.2565, 0.2761)}
SVHN: Statistics = {"mean": (0.4377, 0.4438, 0.4728), "std": (0.1980, 0.2010, 0.1970)}
IMAGENET: Statistics = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def cifar10(*, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper") -> Dataset:
    """50,000 and 10,000 images of 32 × 32 in 10 classes. "paper": crop from 4 pixels of padding, flip, AutoAugment,
    cutout of 16; "light": crop and flip.
    """
    folder = torchvision.datasets.CIFAR10.base_folder
    require(root, [folder], "CIFAR-10", "https://www.cs.toronto.edu/~kriz/cifar.html", "cifar-10-python.tar.gz")
    return _cifar(torchvision.datasets.CIFAR10, root, augment, CIFAR10, name="cifar10", num_classes=10)


def cifar100(*, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper") -> Dataset:
    """50,000 and 10,000 images of 32 × 32 in 100 classes, augmented as CIFAR-10."""
    folder = torchvision.datasets.CIFAR100.base_folder
    require(root, [folder], "CIFAR-100", "https://www.cs.toronto.edu/~kriz/cifar.html", "cifar-100-python.tar.gz")
    return _cifar(torchvision.datasets.CIFAR100, root, augment, CIFAR100, name="cifar100", num_classes=100)


def svhn(*, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper") -> Dataset:
    """73,257 and 26,032 house numbers of 32 × 32. "paper" and "light": crop from 2 pixels of padding."""
    check_augment(augment)
    root = find_home(root, "svhn", "train_32x32.mat")
    page = "http://ufldl.stanford.edu/housenumbers/"
    require(root, ["train_32x32.mat", "test_32x32.mat"], "SVHN", page, "train_32x32.mat and test_32x32.mat")
    prepare = Preparation(pad=0 if augment == "none" else 2, **SVHN)
    sources = []
    for split in ("train", "test"):
        data = _open(torchvision.datasets.SVHN, root, split=split)
        pixels = torch.from_numpy(np.ascontiguousarray(data.data.transpose(0, 2, 3, 1))).permute(0, 3, 1, 2)
        sources.append(MemorySource(samples=pixels, labels=torch.from_numpy(data.labels), prepare=prepare))
    return Dataset(name="svhn", num_classes=10, in_shape=(3, 32, 32), train=sources[0], test=sources[1])


def imagenet(*, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper") -> Dataset:
    """1.28 million and 50,000 photographs in 1000 classes. The shorter side becomes 256, then 224 × 224 are cropped in
    the centre or, in training with "paper" and "light", at a random place, and flipped at random. Read file by file.
    """
    check_augment(augment)
    root = find_home(root, "imagenet", "train")
    page = "https://image-net.org/challenges/LSVRC/2012/2012-downloads.php"
    contents = "meta.bin, train/<wnid>/*.JPEG and val/<wnid>/*.JPEG, which torchvision.datasets.ImageNet makes"
    require(root, ["meta.bin", "train", "val"], "ImageNet", page, contents)
    crop = Preparation(size=(224, 224), centred=augment == "none", flip=augment != "none", **IMAGENET)
    read = functools.partial(read_image, shorter_side=256)
    splits = [_open(torchvision.datasets.ImageNet, root, split=split) for split in ("train", "val")]
    require_same_classes(root, splits[0].wnids, splits[1].wnids)
    train, test = (
        FileSource(
            files=[(Path(path), label) for path, label in split.samples],
            read=read,
            prepare=crop,
            on_bad_sample=on_bad_sample,
        )
        for split in splits
    )
    return Dataset(name="imagenet", num_classes=len(splits[0].wnids), in_shape=(3, 224, 224), train=train, test=test)


def _cifar(kind: type, root: Path, augment: str, statistics: Statistics, *, name: str, num_classes: int) -> Dataset:
    check_augment(augment)
    prepare = cifar_preparation(augment, **statistics)
    train, test = (_in_memory(_open(kind, root, train=training), prepare) for training in (True, False))
    return Dataset(name=name, num_classes=num_classes, in_shape=(3, 32, 32), train=train, test=test)


def _in_memory(data: torchvision.datasets.CIFAR10, prepare: Preparation) -> MemorySource:
    pixels: Tensor = torch.from_numpy(np.ascontiguousarray(data.data)).permute(0, 3, 1, 2)
    return MemorySource(samples=pixels, labels=torch.tensor(data.targets), prepare=prepare)


def _open(kind: type, root: Path, **split: str | bool) -> Any:
    try:
        return kind(root, **split)
    except MemoryError:
        raise
    except Exception as error:  # readers of pickles and .mat files raise all kinds of errors for a broken file
        reason = reason_of(error).partition(". You can use download=True")[0]  # advice that does not apply to our users
        raise ValueError(
            f"the files of {kind.__name__} in {root} are incomplete or damaged ({reason}): unpack them again."
        ) from error
