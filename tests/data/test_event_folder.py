"""Folders of the user's own recordings, in every format, with what may be wrong about them."""

import os
import shutil
import sys

import h5py
import numpy as np
import pytest
import torch

from stdl_engine.data import BadSampleError, Batches, event_folders, fingerprint, load_dataset
from stdl_engine.data.frames import integrate

from .recorded import aedat2, aedat3, aedat4, write
from .samples import all_of, counted, random_events

HEIGHT, WIDTH, STEPS = 20, 30, 3


def recording(number: int) -> dict[str, np.ndarray]:
    """Random events, and one in the far corner, so that the data tells the size of the sensor."""
    events = random_events(40 + number, HEIGHT, WIDTH, seed=number)
    events["x"][-1], events["y"][-1] = WIDTH - 1, HEIGHT - 1
    return events


def write_npz(path, events) -> None:
    np.savez(path, **events)


def write_npy(path, events) -> None:
    np.save(path, np.stack([events[name] for name in "txyp"], axis=1))


def write_structured(path, events) -> None:
    array = np.zeros(len(events["t"]), [("x", np.uint16), ("y", np.uint16), ("t", np.int64), ("p", bool)])
    for name in "txyp":
        array[name] = events[name]
    np.save(path, array)


def write_hdf5(path, events) -> None:
    with h5py.File(path, "w") as file:
        for name in "txyp":
            file.create_dataset(f"events/{name}", data=events[name], compression="gzip")


def write_bin(path, events) -> None:
    t = events["t"]
    rows = [events["x"], events["y"], events["p"] << 7 | t >> 16, t >> 8 & 255, t & 255]
    np.stack(rows, axis=1).astype(np.uint8).tofile(path)


FORMATS = {
    ".npz": write_npz,
    ".npy": write_npy,
    "-fields.npy": write_structured,
    ".h5": write_hdf5,
    ".HDF5": write_hdf5,
    ".bin": write_bin,
    ".aedat4": lambda path, events: write(path, aedat4(events, WIDTH, HEIGHT)),
}


def fill(root, end: str = ".npz"):
    """Three classes, of 4 recordings to train and 2 to test on."""
    for label, name in enumerate(("clap", "nod", "wave")):
        for place in range(6):
            path = root / ("train" if place < 4 else "test") / name / f"{place}{end}"
            path.parent.mkdir(parents=True, exist_ok=True)
            FORMATS[end](path, recording(label * 6 + place))
    return root


@pytest.fixture
def tree(tmp_path):
    return fill(tmp_path / "gestures")


def load(root, steps=STEPS, **options):
    return load_dataset("event-folder", root, steps=steps, **options)


@pytest.mark.parametrize("end", FORMATS)
def test_every_format(tmp_path, end):
    root = fill(tmp_path / "gestures", end)
    data = load(root)
    assert (data.name, data.num_classes, data.in_shape, data.events) == ("gestures", 3, (2, HEIGHT, WIDTH), True)
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    x, y = all_of(data.test)
    assert x.shape == (STEPS, 6, 2, HEIGHT, WIDTH)
    assert y.tolist() == [0, 0, 1, 1, 2, 2]
    for place, number in enumerate((4, 5, 10, 11, 16, 17)):
        assert torch.equal(x[:, place], counted(recording(number), STEPS, HEIGHT, WIDTH))


@pytest.mark.parametrize(("pack", "sensor"), [(aedat2, (128, 128)), (aedat3, (128, 128))])
def test_the_camera_that_files_name_is_the_sensor(tmp_path, pack, sensor):
    for split in ("train", "test"):
        for name in ("a", "b"):
            write(tmp_path / split / name / "1.aedat", pack(recording(1)))
    data = load(tmp_path)
    assert data.in_shape == (2, *sensor)
    assert torch.equal(all_of(data.train)[0][:, 0], counted(recording(1), STEPS, *sensor))


def test_mixed_formats_and_a_sensor_that_is_given(tree):
    write_npy(tree / "train/nod/7.npy", recording(30))
    (tree / "train/nod/notes.txt").write_text("not a recording")
    data = load(tree, sensor="40x25")
    assert data.in_shape == (2, 25, 40)
    assert len(data.train) == 13
    assert not (tree / "frames_sensor.json").exists()
    with pytest.raises(
        BadSampleError, match=r"cannot be read \(events lie from .* to \(29, 19\), outside 20 × 20 pixels\)"
    ):
        load(tree, sensor="20 × 20")


@pytest.mark.parametrize("sensor", ["346", "0x5", "ax5", "-3x5", (346, 260), "1e3x5"])
def test_bad_sensors(tree, sensor):
    with pytest.raises(ValueError, match=r"^sensor is .*: write its width and height in pixels, for example \"346x260"):
        load(tree, sensor=sensor)


def test_frames_of_equal_duration(tree):
    by_time, by_number = load(tree, split_by="time"), load(tree, split_by="count")
    events = recording(0)
    expected = integrate(events["x"], events["y"], events["p"], STEPS, HEIGHT, WIDTH, events["t"])
    assert np.array_equal(by_time.train.samples[0], expected)
    assert not torch.equal(by_time.train.samples, by_number.train.samples)
    assert torch.equal(load(tree, split_by="number").train.samples, by_number.train.samples)
    assert fingerprint(by_time) != fingerprint(by_number)
    with pytest.raises(ValueError, match=r"^split_by is 'size': choose"):
        load(tree, split_by="size")


def test_other_orders_of_columns(tmp_path):
    root = fill(tmp_path / "own", ".npy")
    expected = load(root).train.samples.clone()
    for path in root.rglob("*.npy"):
        np.save(path, np.load(path)[:, [1, 2, 0, 3]])
    with pytest.raises(BadSampleError, match=r"cannot be read \(its times go backwards|cannot be read \(its x is"):
        load(root)
    assert torch.equal(load(root, columns="xytp").train.samples, expected)
    with pytest.raises(ValueError, match=r"^columns is 'xyt': write t, x, y and p in the order of the columns"):
        load(root, columns="xyt")


def test_made_once(tree, monkeypatch):
    (tree / ".frames_sensor.json.abc").write_text("of a writer that was killed")
    first = load(tree)
    for name in event_folders.READERS:
        monkeypatch.setitem(event_folders.READERS, name, None)
    again = load(tree)
    assert torch.equal(first.train.samples, again.train.samples)
    assert sorted(path.name for path in tree.iterdir()) == ["frames_T3", "frames_sensor.json", "test", "train"]


def test_augmentation(tmp_path):
    for split in ("train", "test"):
        for name in ("a", "b"):
            write(tmp_path / split / name / "1.aedat", aedat3(recording(3)))
    still, light = (load(tmp_path, augment=augment).train.prepare for augment in ("paper", "light"))
    assert (still.pad, still.flip, light.pad, light.flip) == (0, False, 4, True)


def test_light_shifts_all_frames_of_a_recording_alike(tmp_path):
    one = {name: np.array([value] * 3) for name, value in (("t", 5), ("x", 64), ("y", 64), ("p", 1))}
    for split in ("train", "test"):
        for name in ("a", "b"):
            write(tmp_path / split / name / "1.aedat", aedat3(one))
    x, _ = next(Batches(load(tmp_path, augment="light").train, batch_size=2, training=True).epoch(0))
    assert torch.equal(x, x[:1].expand_as(x))
    assert not torch.equal(x[:, 0], x[:, 1])
    assert x.sum() == 6


BAD = {
    "lengths": {**recording(1), "x": recording(1)["x"][:-1]},
    "fraction": {**recording(1), "x": recording(1)["x"] + 0.5},
    "nan": {**recording(1), "y": recording(1)["y"] * np.nan},
    "backwards": {**recording(1), "t": recording(1)["t"][::-1]},
    "polarity": {**recording(1), "p": recording(1)["p"] + 1},
    "empty": {name: values[:0] for name, values in recording(1).items()},
    "negative": {**recording(1), "x": recording(1)["x"] - 5},
}


@pytest.mark.parametrize("events", BAD.values(), ids=BAD)
@pytest.mark.parametrize("sensor", [None, "30x20"])
def test_recordings_that_lie(tree, events, sensor):
    path = tree / "train/nod/1.npz"
    write_npz(path, events)
    with pytest.raises(BadSampleError, match=r"^the sample \S+nod.1\.npz cannot be read \(.+\): replace the file, or"):
        load(tree, sensor=sensor)
    data = load(tree, sensor=sensor, on_bad_sample="skip")
    assert data.train.bad_samples == (path,)
    assert data.train.labels.tolist() == [0] * 4 + [1] * 3 + [2] * 4
    assert torch.equal(all_of(data.train)[0][:, 5], counted(recording(6 + 2), STEPS, HEIGHT, WIDTH))
    with pytest.raises(BadSampleError, match=r"nod.1\.npz cannot be read"):
        load(tree, sensor=sensor)  # although frames of the others are there


def zero_bytes(path):
    path.write_bytes(b"")


def cut_short(path):
    path.write_bytes(path.read_bytes()[:203])


def dangling(path):
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def looping(path):
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize("end", [".npz", ".npy", ".h5", ".bin", ".aedat4"])
@pytest.mark.parametrize("damage", [zero_bytes, cut_short, dangling, looping])
def test_broken_files(tmp_path, end, damage):
    root = fill(tmp_path / "gestures", end)
    path = root / f"train/clap/2{end}"
    damage(path)
    with pytest.raises(BadSampleError, match=rf"^the sample \S+clap.2\{end} cannot be read \(.+\): replace the file"):
        load(root)
    data = load(root, on_bad_sample="skip")
    assert data.train.bad_samples == (path,)
    assert len(data.train) == 11


def test_nothing_but_broken_files(tree):
    for path in tree.rglob("*.npz"):
        path.write_bytes(b"")
    for options in ({}, {"sensor": "30x20"}):
        with pytest.raises(ValueError, match=r"^none of the \d+ recordings in \S+ can be read"):
            load(tree, on_bad_sample="skip", **options)


def test_an_event_on_the_moon(tree):
    write_npz(tree / "test/wave/4.npz", {**recording(0), "x": np.full(40, 2**40)})
    with pytest.raises(
        ValueError, match=r"wave.4\.npz has events as far as 1099511627777 × 20 pixels, too large .*: pass the camera"
    ):
        load(tree)
    assert len(load(tree, sensor="30x20", on_bad_sample="skip").test) == 5


def test_more_steps_than_memory(tree):
    with pytest.raises(ValueError, match=r"^one recording in 1000000000 frames of 30 × 20 pixels has .*: lower steps"):
        load(tree, steps=10**9, sensor="30x20")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a/t": np.zeros(3)}, r"it has a and no t, x, y and p at the top or in events"),
        ({"x": np.zeros(3), "y": np.zeros(3), "t": np.zeros(3)}, r"it has no p; its arrays must be t, x, y and p"),
        ({"x/deeper": np.zeros(3)}, r"its x is not an array"),
    ],
)
def test_other_layouts_of_hdf5(tree, arrays, message):
    with h5py.File(tree / "train/nod/9.h5", "w") as file:
        for name, value in arrays.items():
            file[name] = value
    with pytest.raises(BadSampleError, match=message):
        load(tree)


@pytest.mark.parametrize(
    "names", [("t", "x", "y", "p"), ("events/ts", "events/xs", "events/ys", "events/ps"), ("CD/events",), ("events",)]
)
def test_layouts_of_hdf5(tree, names):
    events = recording(3)
    with h5py.File(tree / "train/nod/9.h5", "w") as file:
        if len(names) == 1:
            array = np.zeros(len(events["t"]), [("x", "u2"), ("y", "u2"), ("p", "i2"), ("t", "i8")])
            for name in "txyp":
                array[name] = events[name]
            file[names[0]] = array
        else:
            for name, own in zip(names, "txyp", strict=True):
                file[name] = events[own]
    assert torch.equal(all_of(load(tree).train)[0][:, 8], counted(events, STEPS, HEIGHT, WIDTH))


def test_hdf5_that_promises_terabytes(tree):
    with h5py.File(tree / "train/nod/9.h5", "w") as file:
        for name in "txyp":
            file.create_dataset(name, shape=(10**13,), chunks=(1000,), dtype=np.int64)
    with pytest.raises(BadSampleError, match=r"9\.h5 cannot be read \(t has 80000\.00 GB, and this machine's memory"):
        load(tree)


def test_a_library_that_is_missing_is_never_skipped(tree, monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    write(tree / "train/nod/9.aedat4", aedat4(recording(1), WIDTH, HEIGHT, packing=1))
    with pytest.raises(ValueError, match=r"9\.aedat4 needs is missing; lz4 is not installed: pip install 'stdl-engine"):
        load(tree, on_bad_sample="skip")


def test_names_that_are_not_text(tree):
    path = tree / "train/nod" / os.fsdecode(b"\xff\xfe.npz")
    shutil.copy(tree / "train/nod/1.npz", path)
    assert len(load(tree).train) == 13
    path.write_bytes(b"")
    with pytest.raises(BadSampleError) as caught:
        load(tree)
    assert str(caught.value).isprintable()
    str(caught.value).encode()
    for _ in range(2):
        assert load(tree, on_bad_sample="skip").train.bad_samples == (path,)


def test_missing_parts(tree, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^there is no folder \S+else.train: put recordings in \S+/train/<cla"):
        load(tmp_path / "else")
    for path in (tree / "train/nod").iterdir():
        path.rename(path.with_suffix(".raw"))
    with pytest.raises(
        ValueError, match=r"^the folder \S+nod has no samples: put files in it that end in \.npy, \.npz"
    ):
        load(tree)
    shutil.rmtree(tree / "train/nod")
    shutil.rmtree(tree / "train/wave")
    with pytest.raises(ValueError, match=r"^the folder \S+train has the single class 'clap': a network needs two"):
        load(tree)
