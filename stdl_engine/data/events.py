"""Datasets of event cameras, as T frames of equally many events, or with split_by="time" of equal duration. Counts are
not normalised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from .base import Dataset, FileSource
from .cache import FrameCache
from .files import Files, find_home, list_files, require, require_same_classes
from .frames import check_split
from .jelly import build_frames, prepare_recordings, read_frames
from .prepare import Preparation, check_augment
from .recordings import Events, read_bin, read_text


def n_mnist(
    *, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper", split_by: str = "number"
) -> Dataset:
    """N-MNIST: 60,000 and 10,000 recordings of 34 × 34 of the digits. No augmentation, whatever `augment` says."""
    check_augment(augment)
    home = find_home(root, "n-mnist", "Train")
    page = "https://www.garrickorchard.com/datasets/n-mnist"
    require(home, ["Train", "Test"], "N-MNIST", page, "Train/<digit>/*.bin and Test/<digit>/*.bin")
    cache = _cache(home, read_bin, (steps, 34, 34), split_by, on_bad_sample)
    return _recorded("n-mnist", cache, ("Train", "Test"), 10, ".bin")


def gait_day_dvs(
    *, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper", split_by: str = "number"
) -> Dataset:
    """GAIT-DAY-DVS: 2000 and 2000 recordings of 128 × 128 of 20 people walking. No augmentation, as in the paper."""
    check_augment(augment)
    home = root / "DVS128-Gait-Day"
    page = "https://github.com/zhangxiann/TPAMI_Gait_Identification"
    require(home, ["origin/train", "origin/test"], "GAIT-DAY-DVS", page, "origin/{train,test}/<0 to 19>/*.txt")
    cache = _cache(home, read_text, (steps, 128, 128), split_by, on_bad_sample)
    return _recorded("gait-day-dvs", cache, ("origin/train", "origin/test"), 20, ".txt")


def cifar10_dvs(
    *, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper", split_by: str = "number"
) -> Dataset:
    """CIFAR10-DVS: 10,000 recordings of 128 × 128 in 10 classes; the first nine tenths of each class are for training.
    No augmentation, as in the paper. Read file by file.
    """
    from spikingjelly.datasets import CIFAR10DVS  # imports matplotlib and more, so only when it is needed

    check_augment(augment)
    split_by = check_split(split_by)
    home = find_home(root, "cifar10-dvs", "events_np")
    prepare_recordings(CIFAR10DVS, home, "https://figshare.com/articles/dataset/CIFAR10-DVS_New/4724671")
    bad = build_frames(CIFAR10DVS, home, steps, split_by, on_bad_sample)
    data = CIFAR10DVS(home, data_type="frame", frames_number=steps, split_by=split_by)
    # Recordings that cannot be read are split with the others, so that leaving them out moves no other recording.
    lost = {data.processed_root / path.relative_to(home / "events_np"): path for path in bad}
    files = [(Path(path), label) for path, label in data.samples]
    files += [(path, data.class_to_idx[path.parent.name]) for path in lost]
    train, test = (
        FileSource(
            files=[(path, label) for path, label in part if path not in lost],
            read=read_frames,
            prepare=Preparation(),
            on_bad_sample=on_bad_sample,
            bad_samples=tuple(lost[path] for path, _ in part if path in lost),
        )
        for part in split_by_class(sorted(files, key=lambda file: (file[1], file[0])), 0.9)
    )
    return Dataset(
        name="cifar10-dvs", num_classes=len(data.classes), in_shape=(2, 128, 128), events=True, train=train, test=test
    )


def har_dvs(
    *, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper", split_by: str = "number"
) -> Dataset:
    """HAR-DVS: recordings of 346 × 260 of 300 activities. Cropped to 224 × 224 in the centre or, in training with
    "paper" and "light", at a random place, and flipped at random. Read file by file.
    """
    from spikingjelly.datasets import HARDVS  # imports matplotlib and more, so only when it is needed

    check_augment(augment)
    split_by = check_split(split_by)
    home = find_home(root, "har-dvs", "events_np")
    prepare_recordings(HARDVS, home, "https://github.com/Event-AHU/HARDVS")
    bad = build_frames(HARDVS, home, steps, split_by, on_bad_sample)
    prepare = Preparation(size=(224, 224), centred=augment == "none", flip=augment != "none")
    splits = [
        HARDVS(home, train_test_val=split, data_type="frame", frames_number=steps, split_by=split_by)
        for split in ("train", "test")
    ]
    require_same_classes(home, splits[0].classes, splits[1].classes)
    train, test = (
        FileSource(
            files=[(Path(path), label) for path, label in split.samples],
            read=read_frames,
            prepare=prepare,
            on_bad_sample=on_bad_sample,
            bad_samples=tuple(path for path in bad if path.is_relative_to(home / "events_np" / part)),
        )
        for part, split in zip(("train", "test"), splits, strict=True)
    )
    return Dataset(
        name="har-dvs", num_classes=len(splits[0].classes), in_shape=(2, 224, 224), events=True, train=train, test=test
    )


def split_by_class(files: Files, share: float) -> tuple[Files, Files]:
    """The first `share` of each class, in the order of the files, and the rest."""
    labels = [label for _, label in files]
    quota = {label: math.ceil(labels.count(label) * share) for label in set(labels)}
    first: list[tuple[Path, int]] = []
    rest: list[tuple[Path, int]] = []
    for path, label in files:
        quota[label] -= 1
        (first if quota[label] >= 0 else rest).append((path, label))
    return first, rest


def _cache(
    home: Path, read: Callable[[Path], Events], shape: tuple[int, int, int], split_by: str, on_bad_sample: str
) -> FrameCache:
    return FrameCache(root=home, read=read, shape=shape, split_by=check_split(split_by), on_bad_sample=on_bad_sample)


def _recorded(name: str, cache: FrameCache, splits: tuple[str, str], classes: int, extension: str) -> Dataset:
    """A dataset of <split>/<class number>/* in the folder of the cache."""
    sources = []
    for split in splits:
        files = list_files(cache.root / split, [str(label) for label in range(classes)], (extension,))
        sources.append(cache.source(files, Path(split).name.lower(), Preparation()))
    in_shape = (2, *cache.shape[1:])
    return Dataset(name=name, num_classes=classes, in_shape=in_shape, events=True, train=sources[0], test=sources[1])
