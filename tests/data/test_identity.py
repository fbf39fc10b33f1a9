"""The fingerprint of a dataset: another one for other data, the same wherever and whenever the data was written."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stdl_engine.data import Dataset, FileSource, MemorySource, fingerprint, identity, load_dataset, split_off
from stdl_engine.data.prepare import Preparation

from .samples import random_images, write_image


def memory(count: int = 12, seed: int = 0, **changes) -> MemorySource:
    samples = torch.from_numpy(random_images(count, 3, 6, 5, seed=seed))
    return MemorySource(**{"samples": samples, "labels": torch.arange(count) % 3, "prepare": Preparation(), **changes})


def dataset(**changes) -> Dataset:
    values = {"name": "some", "num_classes": 3, "in_shape": (3, 6, 5), "train": memory(), "test": memory(6, seed=1)}
    return Dataset(**{**values, **changes})


def test_the_same_data_again():
    assert fingerprint(dataset()) == fingerprint(dataset(name="other"))
    assert len(fingerprint(dataset())) == 32
    channels_last = memory().samples.contiguous(memory_format=torch.channels_last)
    augmented = memory(samples=channels_last, prepare=Preparation(pad=3))
    assert fingerprint(dataset(train=augmented)) == fingerprint(dataset())


def one_value(samples: torch.Tensor, place: int) -> torch.Tensor:
    samples = samples.clone()
    samples.view(-1)[place] ^= 1
    return samples


CHANGES = {
    "first value": {"train": memory(samples=one_value(memory().samples, 0))},
    "last value": {"train": memory(samples=one_value(memory().samples, -1))},
    "a test value": {"test": memory(6, seed=1, samples=one_value(memory(6, seed=1).samples, 100))},
    "a label": {"train": memory(labels=torch.tensor([0, 1, 2] * 3 + [0, 1, 1]))},
    "order": {"train": memory(samples=memory().samples.flip(0), labels=memory().labels.flip(0))},
    "one sample less": {"train": memory().only(torch.arange(11))},
    "other classes": {"num_classes": 4},
    "another dtype": {"train": memory(samples=memory().samples.to(torch.int16))},
    "another shape": {"train": memory(samples=memory().samples.reshape(12, 3, 5, 6))},
    "events": {"events": True},
    "swapped": {"train": memory(6, seed=1), "test": memory()},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_other_data(changes):
    assert fingerprint(dataset(**changes)) != fingerprint(dataset())


def test_a_part_is_what_is_in_it():
    rows = torch.tensor([7, 2, 3])
    part = memory().only(rows)
    copied = memory(samples=memory().samples[rows], labels=memory().labels[rows])
    assert fingerprint(dataset(train=part)) == fingerprint(dataset(train=copied))
    assert fingerprint(dataset(train=part)) != fingerprint(dataset(train=memory().only(torch.tensor([7, 2, 6]))))
    assert len({fingerprint(split_off(dataset(), 0.25, seed)[0]) for seed in range(3)}) == 3


def test_of_large_data_an_even_part_is_read(monkeypatch):
    monkeypatch.setattr(identity, "READ_BYTES", 5 * 90)
    assert identity._evenly(12, 5).tolist() == [0, 2, 5, 8, 11]
    whole = memory().samples
    seen = [fingerprint(dataset(train=memory(samples=one_value(whole, row * 90)))) != fingerprint(dataset())
            for row in range(12)]  # fmt: skip
    assert [row for row in range(12) if seen[row]] == [0, 2, 5, 8, 11]


def test_it_reads_no_more_than_it_says():
    """A source of half a terabyte, in an address space that was never written to, answers at once."""
    sample = torch.zeros(1, dtype=torch.uint8)
    samples = sample.as_strided((10**5, 5 * 10**6), (0, 0)).view(10**5, 1, 5000, 1000)
    source = MemorySource(samples=samples, labels=torch.zeros(10**5, dtype=torch.int64), prepare=Preparation())
    assert fingerprint(dataset(train=source)) != fingerprint(dataset())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_any_dtype(dtype):
    samples = torch.from_numpy(random_images(12, 3, 6, 5)).to(dtype)
    other = samples.clone()
    other[5, 1, 2, 3] = not samples[5, 1, 2, 3]
    found = [fingerprint(dataset(train=memory(samples=x))) for x in (samples, samples.clone(), other)]
    assert found[0] == found[1] != found[2]


@pytest.fixture
def tree(tmp_path):
    for place, pixels in enumerate(random_images(12, 8, 8, 3)):
        write_image(
            tmp_path / "pets" / ("test" if place % 3 == 0 else "train") / "ab"[place % 2] / f"{place}.bmp", pixels
        )
    return tmp_path / "pets"


def on_disk(tree: Path) -> Dataset:
    train, test = (
        FileSource(
            files=[(path, "ab".index(path.parent.name)) for path in sorted((tree / split).rglob("*.bmp"))],
            read=np.load,
            prepare=Preparation(),
        )
        for split in ("train", "test")
    )
    return dataset(num_classes=2, train=train, test=test)


def test_files_anywhere_at_any_time(tree, tmp_path, monkeypatch):
    first = fingerprint(on_disk(tree))
    shutil.copytree(tree, tmp_path / "elsewhere")
    for path in (tmp_path / "elsewhere").rglob("*"):
        os.utime(path, (1, 1))
    assert fingerprint(on_disk(tmp_path / "elsewhere")) == first
    monkeypatch.chdir(tmp_path)
    assert fingerprint(on_disk(Path("elsewhere"))) == first
    assert fingerprint(load_dataset("folder", tree, augment="none")) == fingerprint(
        load_dataset("folder", tmp_path / "elsewhere", augment="none")
    )


def renamed(tree: Path) -> None:
    (tree / "train/a/2.bmp").rename(tree / "train/a/20.bmp")


def removed(tree: Path) -> None:
    (tree / "train/a/2.bmp").unlink()


def longer(tree: Path) -> None:
    with (tree / "test/b/3.bmp").open("ab") as file:
        file.write(b"\0")


def written_over(tree: Path) -> None:
    write_image(tree / "train/a/2.bmp", random_images(1, 8, 8, 3, seed=9)[0])


def moved(tree: Path) -> None:
    (tree / "train/a/2.bmp").rename(tree / "train/b/2.bmp")


@pytest.mark.parametrize("change", [renamed, removed, longer, written_over, moved])
def test_other_files(tree, change):
    before = fingerprint(on_disk(tree))
    change(tree)
    assert fingerprint(on_disk(tree)) != before


def test_a_file_that_cannot_be_read_is_not_the_fingerprints_business(tree):
    data = on_disk(tree)
    before = fingerprint(data)
    removed(tree)
    assert fingerprint(data) != before


def test_names_that_are_not_text(tree):
    name = os.fsdecode(b"\xff\xfe.bmp")
    shutil.copy(tree / "train/a/2.bmp", tree / "train/a" / name)
    data = on_disk(tree)
    assert any(path.name == name for path, _ in data.train.files)
    assert fingerprint(data) == fingerprint(replace(data))


def test_known_fingerprint():
    """Stored runs carry it: it must not change from one version to the next."""
    assert fingerprint(dataset()) == "0d5309646fa1b6dd68095e22743a468d"
