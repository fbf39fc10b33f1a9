"""The event datasets, from small files in their real formats and from a real sample."""

import os
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from stdl_engine.data import BadSampleError, Batches, load_dataset
from stdl_engine.data.events import split_by_class
from stdl_engine.data.frames import integrate
from stdl_engine.data.recordings import read_bin

from .samples import all_of, counted, random_events
from .test_cache import write_events

ROOT = Path(__file__).parents[2]
SAMPLE = Path(os.environ.get("STDL_NMNIST_SAMPLE", ROOT.parent / "shared" / "data" / "nmnist_small.tar.gz"))


def test_n_mnist(tmp_path):
    for split, count in (("Train", 2), ("Test", 1)):
        for digit in range(10):
            for number in range(count):
                path = tmp_path / "n-mnist" / split / str(digit) / f"{number:05}.bin"
                write_events(path, random_events(60, 34, 34, seed=digit * 2 + number))
    data = load_dataset("n-mnist", tmp_path, steps=4)
    assert (data.name, data.num_classes, data.in_shape, data.events) == ("n-mnist", 10, (2, 34, 34), True)
    x, y = all_of(data.train)
    assert x.shape == (4, 20, 2, 34, 34)
    assert y.tolist() == [digit for digit in range(10) for _ in range(2)]
    for place in (0, 7, 19):
        assert torch.equal(x[:, place], counted(random_events(60, 34, 34, seed=place), 4, 34, 34))
    assert all_of(data.test)[1].tolist() == list(range(10))
    events = random_events(60, 34, 34, seed=7)
    by_time = load_dataset("n-mnist", tmp_path, steps=4, split_by="time").train.samples[7]
    expected = integrate(events["x"], events["y"], events["p"], 4, 34, 34, events["t"])
    assert np.array_equal(by_time, expected)
    shutil.rmtree(tmp_path / "n-mnist" / "Test" / "3")
    with pytest.raises(ValueError, match=r"^the folder \S+Test.3 has no samples: put files in it that end in \.bin\.$"):
        load_dataset("n-mnist", tmp_path, steps=4)


def test_gait_day_dvs(tmp_path):
    origin = tmp_path / "DVS128-Gait-Day" / "origin"
    for split in ("train", "test"):
        for person in range(20):
            events = random_events(50, 128, 128, seed=person + (100 if split == "test" else 0))
            path = origin / split / str(person) / "walk.txt"
            path.parent.mkdir(parents=True)
            np.savetxt(path, np.stack([events[key] for key in "txyp"], axis=1), fmt="%d")
    data = load_dataset("gait-day-dvs", tmp_path, steps=3)
    assert (data.num_classes, data.in_shape, len(data.train), len(data.test)) == (20, (2, 128, 128), 20, 20)
    for source, start in ((data.train, 0), (data.test, 100)):
        x, y = all_of(source)
        assert y.tolist() == list(range(20))  # by number: 10 does not come before 2
        for person in (2, 10):
            assert torch.equal(x[:, person], counted(random_events(50, 128, 128, seed=person + start), 3, 128, 128))
    assert data.train.prepare.pad == 0
    (origin / "test/7/walk.txt").write_text("100 128 5 1\n")
    with pytest.raises(
        BadSampleError, match=r"7.walk\.txt cannot be read \(events lie from \(128, 5\) to \(128, 5\), out"
    ):
        load_dataset("gait-day-dvs", tmp_path, steps=3)
    data = load_dataset("gait-day-dvs", tmp_path, steps=3, on_bad_sample="skip")
    assert Batches(data.test, batch_size=5, training=False).bad_samples == [origin / "test/7/walk.txt"]
    assert len(data.test) == 19


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("n-mnist", r"^N-MNIST is not in \S+n-mnist, which lacks Train and Test: get it from https://www\.garrick"),
        ("gait-day-dvs", r"^GAIT-DAY-DVS is not in \S+DVS128-Gait-Day, which lacks origin/train and origin/test: get"),
        (
            "cifar10-dvs",
            r"^CIFAR10DVS is not in \S+cifar10-dvs, which lacks events_np \(.+\) and download/airplane\.zip",
        ),
        ("har-dvs", r"^HARDVS is not in \S+har-dvs, which lacks events_np \(.+\) and download/MINI_HARDVS_files\.zip"),
    ],
)
def test_missing(tmp_path, name, message):
    with pytest.raises(FileNotFoundError, match=message):
        load_dataset(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_split_by_class():
    files = [
        (Path(f"{label}/{number}"), label) for label, count in ((0, 10), (1, 20), (2, 11)) for number in range(count)
    ]
    train, test = split_by_class(files, 0.9)
    assert [path.as_posix() for path, _ in test] == ["0/9", "1/18", "1/19", "2/10"]
    assert sorted(train + test) == sorted(files)


def members(tar: tarfile.TarFile, split: str, count: int) -> list[tarfile.TarInfo]:
    """Some recordings of each digit, in the order of the archive: going back in it means unpacking it anew."""
    taken = Counter()
    found = []
    for member in tar.getmembers():
        folder = os.path.dirname(member.name)
        if member.isfile() and folder.startswith(split) and taken[folder] < count:
            taken[folder] += 1
            found.append(member)
    return found


@pytest.mark.skipif(not SAMPLE.is_file(), reason=f"the N-MNIST sample {SAMPLE} is not there")
def test_real_recordings(tmp_path):
    """Real N-MNIST: every event of every file is counted once, under its own digit."""
    from spikingjelly.datasets import load_ATIS_bin

    home = tmp_path / "n-mnist"
    with tarfile.open(SAMPLE) as tar:
        train, test = members(tar, "Train", 8), members(tar, "Test", 4)
        chosen = sorted(train + test, key=lambda member: member.offset)
        tar.extractall(home, members=chosen, filter="data")
    data = load_dataset("n-mnist", tmp_path, steps=6)
    assert (len(data.train), len(data.test)) == (80, len(test))
    x, y = all_of(data.train, 80)
    assert x.shape == (6, 80, 2, 34, 34)
    counts = x.sum((2, 3, 4))
    assert (counts[:-1] == counts[0]).all()
    paths = sorted((home / "Train").glob("*/*.bin"))
    assert counts.sum(0).tolist() == [path.stat().st_size / 5 for path in paths]
    assert y.tolist() == [int(path.parent.name) for path in paths]
    events = load_ATIS_bin(paths[32])  # SpikingJelly's reader of the format
    for name in "txyp":
        assert np.array_equal(getattr(read_bin(paths[32]), name), events[name])
    assert torch.equal(x[:, 32], counted(events, 6, 34, 34))
