"""The cache of frames: used only when it is whole and made from the files that are there."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from stdl_engine.data import BadSampleError
from stdl_engine.data.cache import VERSION, FrameCache
from stdl_engine.data.files import write_sealed
from stdl_engine.data.prepare import Preparation
from stdl_engine.data.recordings import read_bin

from .samples import counted, random_events

SHAPE = (3, 8, 10)


class Reader:
    """Reads .bin files and counts how many."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, path: Path):
        self.calls += 1
        return read_bin(path)


def write_events(path: Path, events: dict[str, np.ndarray]) -> None:
    columns = [
        events["x"],
        events["y"],
        events["p"] << 7 | events["t"] >> 16,
        events["t"] >> 8 & 255,
        events["t"] & 255,
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.stack(columns, axis=1).astype(np.uint8).tofile(path)


@pytest.fixture
def files(tmp_path):
    found = []
    for number in range(5):
        path = tmp_path / "Train" / f"{number}.bin"
        write_events(path, random_events(40 + number, 8, 10, seed=number))
        found.append((path, number % 2))
    return found


def load(files, read=None, shape=SHAPE, **options):
    root = files[0][0].parent.parent
    return FrameCache(root=root, read=read or Reader(), shape=shape, **options).source(files, "train", Preparation())


def expected(numbers=range(5)) -> torch.Tensor:
    return torch.stack([counted(random_events(40 + number, 8, 10, seed=number), *SHAPE) for number in numbers])


def test_made_once_and_read_back(files):
    first, again = Reader(), Reader()
    made, found = load(files, first), load(files, again)
    assert (first.calls, again.calls) == (5, 0)
    for cache in (made, found):
        assert torch.equal(cache.samples.float(), expected())
        assert cache.samples.dtype == torch.uint8
        assert cache.labels.tolist() == [0, 1, 0, 1, 0]
        assert cache.bad_samples == ()


def test_other_sensors_and_readings_are_other_frames(files):
    load(files)
    for options in ({"shape": (3, 12, 10)}, {"reading": "xytp"}, {"ordered": True}):
        read = Reader()
        load(files, read, **options)
        assert read.calls == 5, options
    by_time = Reader()
    assert not torch.equal(load(files, by_time, split_by="time").samples, load(files).samples)
    assert by_time.calls == 5


def test_a_link_that_leads_nowhere(files):
    files[1][0].unlink()
    files[1][0].symlink_to(files[1][0].with_name("gone"))
    with pytest.raises(BadSampleError, match=r"1\.bin cannot be read \(No such file or directory\)"):
        load(files)
    assert load(files, on_bad_sample="skip").bad_samples == (files[1][0],)


def test_a_folder_for_each_number_of_frames(files):
    load(files)
    read = Reader()
    other = load(files, read, (5, 8, 10))
    assert read.calls == 5
    assert other.samples.shape == (5, 5, 2, 8, 10)
    assert torch.equal(load(files).samples.float(), expected())


def parts(files):
    folder = files[0][0].parent.parent / "frames_T3"
    return folder / "train.bin", folder / "train.json"


def cut_short(data, manifest):
    data.write_bytes(data.read_bytes()[:-1])


def longer(data, manifest):
    data.write_bytes(data.read_bytes() + b"\0")


def one_bit(data, manifest):
    content = bytearray(data.read_bytes())
    content[777] ^= 4
    data.write_bytes(content)


def no_data(data, manifest):
    data.unlink()


def no_manifest(data, manifest):
    manifest.unlink()


def half_a_manifest(data, manifest):
    manifest.write_text(manifest.read_text()[:50])


def not_a_manifest(data, manifest):
    manifest.write_text("[]")


def edited(name, value):
    """A manifest that somebody changed with an editor."""

    def edit(data, manifest):
        entry = json.loads(manifest.read_text())
        entry[name] = value
        manifest.write_text(json.dumps(entry))

    edit.__name__ = f"edited {name}"
    return edit


def another_version(data, manifest):
    """What a cache of another version looks like: whole, sealed, and of other content."""
    entry = json.loads(manifest.read_text())
    entry.pop("seal")
    write_sealed(manifest, {**entry, "version": VERSION + 1})


def of_the_first_version(data, manifest):
    """Without shape and seal, and with labels."""
    entry = json.loads(manifest.read_text())
    kept = {name: entry[name] for name in ("source", "dtype", "bytes", "crc32", "bad")}
    manifest.write_text(json.dumps({**kept, "labels": [1, 1, 1, 1, 1]}))


DAMAGES = [
    cut_short, longer, one_bit, no_data, no_manifest, half_a_manifest, not_a_manifest, edited("dtype", "int32"),
    edited("dtype", "lies"), edited("shape", [3, 10, 8]), edited("bad", [["Train/0.bin", "no"]]), edited("bad", 5),
    edited("bytes", -1), another_version, of_the_first_version,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_cache_is_made_again(files, damage):
    load(files)
    damage(*parts(files))
    read = Reader()
    assert torch.equal(load(files, read).samples.float(), expected())
    assert read.calls == 5
    assert load(files, read).samples.shape[0] == 5
    assert read.calls == 5


def test_a_conversion_that_dies_leaves_nothing_to_be_used(files):
    class Dies(Reader):
        def __call__(self, path):
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().__call__(path)

    with pytest.raises(KeyboardInterrupt):
        load(files, Dies())
    data, manifest = parts(files)
    assert list(data.parent.iterdir()) == []
    read = Reader()
    assert torch.equal(load(files, read).samples.float(), expected())
    assert read.calls == 5
    assert sorted(data.parent.iterdir()) == [data, manifest]


def test_changed_recordings_are_converted_again(files):
    load(files)
    write_events(files[2][0], random_events(42, 8, 10, seed=99))
    os.utime(files[2][0], (1, 1))
    frames = load(files).samples.float()
    assert torch.equal(frames[2], counted(random_events(42, 8, 10, seed=99), *SHAPE))
    assert torch.equal(frames[[0, 1, 3, 4]], expected([0, 1, 3, 4]))
    assert len(load(files[:3]).samples) == 3


@pytest.mark.parametrize(("events", "dtype"), [(255, torch.uint8), (256, torch.int16), (40_000, torch.int32)])
def test_counts_that_need_more_than_a_byte(files, events, dtype):
    at_one_pixel = {key: np.full(3 * events, value) for key, value in (("t", 5), ("x", 9), ("y", 7), ("p", 1))}
    write_events(files[3][0], at_one_pixel)
    for _ in range(2):
        frames = load(files).samples
        assert frames.dtype == dtype
        assert frames[3, :, 1, 7, 9].tolist() == [events] * 3
        assert torch.equal(frames[[0, 1, 2, 4]].float(), expected([0, 1, 2, 4]))


def test_bad_recordings(files):
    files[1][0].write_bytes(bytes(7))
    with pytest.raises(BadSampleError, match=r"^the sample \S+1\.bin cannot be read \(its 7 bytes are not a multiple"):
        load(files)
    for _ in range(2):
        found = load(files, on_bad_sample="skip")
        assert found.bad_samples == (files[1][0],)
        assert torch.equal(found.samples.float(), expected([0, 2, 3, 4]))
        assert found.labels.tolist() == [0, 0, 1, 0]
    with pytest.raises(BadSampleError, match=r"^the sample \S+1\.bin cannot be read \(its 7 bytes"):
        load(files)  # although the cache is whole


def test_nothing_but_bad_recordings(files):
    for path, _ in files:
        path.write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"^none of the 5 recordings in \S+ can be read, Train/0\.bin for one: there are"
    ):
        load(files, on_bad_sample="skip")


def test_what_the_manifest_says(files):
    load(files)
    data, manifest = parts(files)
    entry = json.loads(manifest.read_text())
    assert entry["bytes"] == data.stat().st_size == 5 * 3 * 2 * 8 * 10
    assert entry["shape"] == [3, 8, 10]


def test_writing_to_the_frames_leaves_the_cache_alone(files):
    load(files).samples.fill_(3)
    assert torch.equal(load(files).samples.float(), expected())
