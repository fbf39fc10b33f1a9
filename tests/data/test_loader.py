"""Batches: their content is a function of seed and epoch, whoever reads them and whatever came before."""

import doctest
from pathlib import Path

import pytest
import torch

from stdl_engine import data
from stdl_engine.data import BadSampleError, Batches, FileSource, MemorySource, loader
from stdl_engine.data.prepare import Preparation

AUGMENTED = Preparation(pad=2, flip=True, cutout=3)


def memory(count: int = 23, frames: int = 0) -> MemorySource:
    shape = (count, frames, 2, 8, 8) if frames else (count, 3, 8, 8)
    samples = torch.randint(1, 256, shape, generator=torch.Generator().manual_seed(9), dtype=torch.uint8)
    return MemorySource(samples=samples, labels=torch.arange(count) % 5, prepare=AUGMENTED)


def read_saved(path: Path) -> torch.Tensor:
    return torch.load(path)


def on_disk(folder: Path, count: int = 23, bad: tuple[int, ...] = (), **options) -> FileSource:
    files = []
    for number, sample in enumerate(memory(count).samples):
        path = folder / f"{number}.pt"
        torch.save(sample, path)
        if number in bad:
            path.write_bytes(path.read_bytes()[:100])
        files.append((path, number % 5))
    return FileSource(files=files, read=read_saved, prepare=AUGMENTED, **options)


def collect(batches: Batches, epoch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(x.clone(), y.clone()) for x, y in batches.epoch(epoch)]


def assert_same(one, other) -> None:
    assert len(one) == len(other)
    for (x, y), (x2, y2) in zip(one, other, strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)


def test_training_batches():
    batches = Batches(memory(), batch_size=5, seed=1, training=True)
    assert len(batches) == 4
    epoch = collect(batches, 0)
    assert [(x.shape, x.dtype, y.shape, y.dtype) for x, y in epoch] == [
        ((5, 3, 8, 8), torch.float32, (5,), torch.int64)
    ] * 4
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x, _ in epoch)


def test_each_sample_comes_once_an_epoch_in_another_order():
    source = MemorySource(
        samples=torch.arange(23, dtype=torch.float32)[:, None, None, None],
        labels=torch.arange(23),
        prepare=Preparation(),
    )
    batches = Batches(source, batch_size=23, training=True)
    orders = [next(batches.epoch(number)) for number in range(3)]
    for x, y in orders:
        assert y.sort().values.tolist() == list(range(23))
        assert torch.equal(x.flatten(), y.float())
    assert len({tuple(y.tolist()) for _, y in orders}) == 3


def test_evaluation_is_in_order_whole_and_as_it_is():
    source = memory()
    batches = Batches(source, batch_size=5, training=False)
    epoch = collect(batches, 3)
    assert len(batches) == len(epoch) == 5
    assert len(epoch[-1][1]) == 3
    assert torch.equal(torch.cat([x for x, _ in epoch]), source.samples.float())
    assert torch.equal(torch.cat([y for _, y in epoch]), source.labels)


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_an_epoch_depends_on_seed_and_number_alone(kind, tmp_path):
    source = memory() if kind == "memory" else on_disk(tmp_path)
    run = Batches(source, batch_size=5, seed=4, training=True)
    epochs = [collect(run, number) for number in range(3)]
    torch.rand(5, generator=torch.Generator().manual_seed(1))
    assert_same(collect(Batches(source, batch_size=5, seed=4, training=True), 2), epochs[2])
    assert_same(collect(run, 0), epochs[0])
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])
    other = collect(Batches(source, batch_size=5, seed=5, training=True), 2)
    assert not torch.equal(other[0][0], epochs[2][0][0])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["memory", "files"])
def test_an_epoch_can_be_joined_in_the_middle(kind, training, tmp_path):
    source = memory() if kind == "memory" else on_disk(tmp_path)
    batches = Batches(source, batch_size=5, seed=4, training=training)
    whole = collect(batches, 1)
    for skip in (0, 2, len(batches), len(batches) + 3):
        assert_same(list(batches.epoch(1, skip=skip)), whole[skip:])


def test_the_same_sample_is_augmented_anew_each_epoch(tmp_path):
    for source in (memory(1), on_disk(tmp_path, 1)):
        batches = Batches(source, batch_size=1, training=True)
        assert len({next(batches.epoch(number))[0].numpy().tobytes() for number in range(6)}) > 1


def test_samples_of_a_batch_are_augmented_differently(tmp_path):
    one = memory(1).samples
    torch.save(one[0], tmp_path / "one.pt")
    many = MemorySource(samples=one.expand(16, 3, 8, 8), labels=torch.zeros(16, dtype=torch.int64), prepare=AUGMENTED)
    files = FileSource(files=[(tmp_path / "one.pt", 0)] * 16, read=read_saved, prepare=AUGMENTED)
    for source in (many, files):
        x, _ = next(Batches(source, batch_size=16, training=True).epoch(0))
        assert len({sample.numpy().tobytes() for sample in x}) > 8


def test_workers_change_nothing(tmp_path):
    source = on_disk(tmp_path)
    alone, shared = (
        collect(Batches(source, batch_size=5, seed=2, training=True, workers=workers), 1) for workers in (0, 2)
    )
    assert_same(alone, shared)
    assert alone[0][0].is_contiguous(memory_format=torch.channels_last)


def test_files_and_memory_hold_the_same(tmp_path):
    for (x, y), (x2, y2) in zip(
        Batches(memory(), batch_size=4, training=False).epoch(0),
        Batches(on_disk(tmp_path), batch_size=4, training=False).epoch(0),
        strict=True,
    ):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)


def test_events_come_time_first():
    source = memory(frames=3)
    ((x, y),) = Batches(source, batch_size=23, training=False).epoch(0)
    assert x.shape == (3, 23, 2, 8, 8)
    assert x.is_contiguous()
    assert torch.equal(x, source.samples.transpose(0, 1).float())
    assert torch.equal(y, source.labels)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("training", [True, False])
def test_a_bad_file_stops(training, workers, tmp_path):
    source = on_disk(tmp_path, 4, bad=(2,))
    with pytest.raises(BadSampleError, match=r"^the sample \S+2\.pt cannot be read \(.+\): replace the file, or leave"):
        collect(Batches(source, batch_size=2, training=training, workers=workers), 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_file_is_replaced_in_training_and_named(workers, tmp_path):
    source = on_disk(tmp_path, 12, bad=(2, 7), on_bad_sample="skip")
    batches = Batches(source, batch_size=4, seed=3, training=True, workers=workers)
    epoch = collect(batches, 0)
    assert [len(y) for _, y in epoch] == [4, 4, 4]
    assert sorted(path.name for path in batches.bad_samples) == ["2.pt", "7.pt"]
    assert_same(epoch, collect(Batches(source, batch_size=4, seed=3, training=True), 0))
    collect(batches, 1)
    assert len(batches.bad_samples) == 2


def test_a_bad_file_is_left_out_of_evaluation(tmp_path):
    source = on_disk(tmp_path, 6, bad=(0, 1, 3), on_bad_sample="skip")
    batches = Batches(source, batch_size=2, training=False)
    epoch = collect(batches, 0)
    assert [y.tolist() for _, y in epoch] == [[2], [4, 0]]
    assert torch.equal(torch.cat([x for x, _ in epoch]), memory(6).samples[[2, 4, 5]].float())
    assert [path.name for path in batches.bad_samples] == ["0.pt", "1.pt", "3.pt"]


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_but_bad_files(workers, tmp_path):
    source = on_disk(tmp_path, 3, bad=(0, 1, 2), on_bad_sample="skip")
    with pytest.raises(ValueError, match=r"^none of the 3 training samples can be read: replace their files\.$"):
        collect(Batches(source, batch_size=2, training=True, workers=workers), 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 24}, r"^batch_size is 24 and the training set has 23 samples: make it 23 or less\.$"),
        ({"batch_size": 0}, r"^batch_size is 0: it must be a whole number from 1 up\.$"),
        ({"batch_size": 2.0}, r"^batch_size is 2\.0: it must be a whole number from 1 up\.$"),
        ({"batch_size": True}, r"^batch_size is True"),
        ({"batch_size": 2, "seed": -1}, r"^seed is -1: it must be a whole number from 0 up\.$"),
        ({"batch_size": 2, "workers": -1}, r"^workers is -1: it must be a whole number from 0 up\.$"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Batches(memory(), training=True, **settings)


def test_bad_epoch():
    with pytest.raises(ValueError, match=r"^the epoch is -1: it must be a whole number from 0 up\.$"):
        Batches(memory(), batch_size=2, training=True).epoch(-1)
    with pytest.raises(
        ValueError, match=r"^the number of batches to skip is 1\.5: it must be a whole number from 0 up"
    ):
        Batches(memory(), batch_size=2, training=True).epoch(0, skip=1.5)


def test_a_batch_may_be_larger_than_a_test_set():
    ((x, _),) = Batches(memory(3), batch_size=100, training=False).epoch(0)
    assert len(x) == 3


@pytest.mark.parametrize("module", [data, loader], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
