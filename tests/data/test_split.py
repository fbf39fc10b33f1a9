"""A validation part of the training set: every class in proportion, nothing twice, copied or augmented."""

import doctest
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stdl_engine.data import Batches, Dataset, MemorySource, load_dataset, split, split_off
from stdl_engine.data.prepare import Preparation

from .test_loader import on_disk


def dataset(labels: list[int], source=None) -> Dataset:
    """Samples that tell their place in the source."""
    samples = torch.arange(len(labels), dtype=torch.int32)[:, None, None, None].expand(-1, 1, 2, 2).contiguous()
    train = source or MemorySource(samples=samples, labels=torch.tensor(labels), prepare=Preparation(pad=1, flip=True))
    classes = max(labels) + 1
    return Dataset(name="some", num_classes=classes, in_shape=(1, 2, 2), train=train, test=train.only(torch.arange(1)))


def places(source) -> list[int]:
    batches = Batches(source, batch_size=1000, training=False)
    return torch.cat([x[:, 0, 0, 0] for x, _ in batches.epoch(0)]).int().tolist()


def test_every_class_gives_its_share():
    labels = [0] * 100 + [1] * 50 + [2] * 10 + [0] * 40
    data, validation = split_off(dataset(labels), 0.1, seed=3)
    assert validation.labels.bincount().tolist() == [14, 5, 1]
    assert data.train.labels.bincount().tolist() == [126, 45, 9]
    both = places(data.train) + places(validation)
    assert sorted(both) == list(range(200))
    assert places(data.train) == sorted(places(data.train))
    assert [labels[place] for place in places(validation)] == validation.labels.tolist()
    assert len(data.test) == 1
    assert (data.name, data.num_classes, data.in_shape) == ("some", 3, (1, 2, 2))


@pytest.mark.parametrize(
    ("counts", "share", "taken"),
    [
        ([10, 10, 10], 0.3, [3, 3, 3]),
        ([7, 7, 7], 0.1, [1, 1, 0]),  # 2 of 21 in all
        ([9, 6, 5], 0.1, [1, 1, 0]),
        ([1, 1, 18], 0.5, [0, 0, 10]),  # a class keeps its last sample, and another one gives for it
        ([2, 2, 2], 0.99, [1, 1, 1]),
        ([1, 1, 3], 0.34, [0, 0, 2]),
    ],
)
def test_quotas(counts, share, taken):
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    assert list(split.quotas(labels, share).values()) == taken


def test_the_seed_decides():
    data = dataset([0, 1] * 50)
    first, again, other = (places(split_off(data, 0.2, seed)[1]) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    assert len(first) == 20


def test_validation_is_never_augmented():
    augmented = Preparation(size=(2, 2), pad=2, flip=True, policy=False, mean=(3.0,), std=(2.0,), cutout=1)
    data = dataset([0, 1] * 20)
    data, validation = split_off(replace(data, train=replace(data.train, prepare=augmented)), 0.5)
    still = next(Batches(validation, batch_size=20, training=False).epoch(0))[0]
    drawn = next(Batches(validation, batch_size=20, training=True).epoch(0))[0]
    assert sorted(drawn[:, 0].flatten(1).tolist()) == sorted(still[:, 0].flatten(1).tolist())
    assert data.train.prepare == augmented
    trained = next(Batches(data.train, batch_size=20, training=True).epoch(0))[0]
    assert (trained == 0).any()  # the holes of cutout


def test_samples_are_not_copied():
    whole = dataset([0, 1] * 50)
    data, validation = split_off(whole, 0.1)
    again, second = split_off(data, 0.1)
    assert validation.samples is second.samples is again.train.samples is whole.train.samples
    assert sorted(places(again.train) + places(second) + places(validation)) == list(range(100))


def test_files(tmp_path):
    source = on_disk(tmp_path, 20, bad_samples=(Path("gone"),))
    data = Dataset(name="some", num_classes=5, in_shape=(3, 8, 8), train=source, test=source)
    data, validation = split_off(data, 0.25)
    assert validation.labels.bincount().tolist() == [1] * 5
    assert sorted([*data.train.files, *validation.files]) == sorted(source.files)
    assert (data.train.bad_samples, validation.bad_samples) == ((Path("gone"),), ())
    assert not validation.prepare.pad
    for x, y in Batches(validation, batch_size=5, training=False).epoch(0):
        expected = torch.stack([torch.load(path) for path, _ in validation.files]).float()
        assert torch.equal(x, expected)
        assert y.tolist() == [label for _, label in validation.files]


def test_events_and_real_digits():
    data, validation = split_off(load_dataset("digits-events", steps=3), 0.1)
    x, y = next(Batches(validation, batch_size=150, training=False).epoch(0))
    assert x.shape == (3, 150, 2, 16, 16)
    assert set(y.bincount().tolist()) <= {14, 15, 16}
    assert len(data.train) == 1350


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0, r"^the share to validate on is 0: it must be a number between 0 and 1, for example 0\.1\.$"),
        (1.0, r"^the share to validate on is 1\.0: it must"),
        (-0.1, r"^the share to validate on is -0\.1: it must"),
        (float("nan"), r"^the share to validate on is nan: it must"),
        (True, r"^the share to validate on is True: it must"),
        ("0.1", r"^the share to validate on is '0\.1': it must"),
        (0.01, r"^a share of 0\.01 of 4 training samples is less than one sample .*: validate on a larger share\.$"),
    ],
)
def test_bad_shares(share, message):
    with pytest.raises(ValueError, match=message):
        split_off(dataset([0, 1, 0, 1]), share)


def test_bad_seed():
    with pytest.raises(ValueError, match=r"^seed is -1: it must be a whole number from 0 up\.$"):
        split_off(dataset([0, 1]), 0.5, seed=-1)


def test_a_class_of_one_sample_stays_in_training():
    with pytest.raises(ValueError, match=r"^a share of 0\.5 of 3 training samples is less than one sample that its"):
        split_off(dataset([0, 1, 2]), 0.5)


def test_examples_in_docstrings():
    outcome = doctest.testmod(split)
    assert outcome.attempted > 0
    assert outcome.failed == 0
