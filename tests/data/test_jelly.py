"""CIFAR10-DVS and HAR-DVS through SpikingJelly, from small recordings in its format."""

import shutil

import numpy as np
import pytest
import torch

from stdl_engine.data import BadSampleError, Batches, FileSource, jelly, load_dataset

from .samples import all_of, counted, random_events

NAMES = ("airplane", "automobile", "bird")


def write_npz(path, events) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **events)


def recording(label: int, number: int) -> dict[str, np.ndarray]:
    return random_events(64, 128, 128, seed=label * 10 + number)


@pytest.fixture
def cifar(tmp_path):
    """Three of the ten classes, ten recordings each."""
    for label, name in enumerate(NAMES):
        for number in range(10):
            write_npz(
                tmp_path / "cifar10-dvs/events_np" / name / f"cifar10_{name}_{number}.npz", recording(label, number)
            )
    return tmp_path


def home(root):
    return root / "cifar10-dvs"


def frames_of(root):
    return home(root) / "frames_number_3_split_by_number"


def load(root, **options):
    return load_dataset("cifar10-dvs", root, steps=3, **options)


def test_cifar10_dvs(cifar):
    data = load(cifar)
    assert (data.name, data.num_classes, data.in_shape, data.events) == ("cifar10-dvs", 3, (2, 128, 128), True)
    assert isinstance(data.train, FileSource)
    assert (len(data.train), len(data.test)) == (27, 3)
    x, y = all_of(data.test)
    assert x.shape == (3, 3, 2, 128, 128)
    assert x.dtype == torch.float32
    assert y.tolist() == [0, 1, 2]
    for label in range(3):
        assert torch.equal(x[:, label], counted(recording(label, 9), 3, 128, 128))
    drawn, labels = next(Batches(data.train, batch_size=27, training=True).epoch(0))
    assert labels.bincount().tolist() == [9, 9, 9]
    place = (drawn == counted(recording(1, 4), 3, 128, 128)[:, None]).all(0).flatten(1).all(1).nonzero()
    assert labels[place].tolist() == [[1]]  # as recorded: not augmented


def test_frames_of_equal_duration(cifar):
    from spikingjelly.datasets.utils import integrate_events_by_fixed_frames_number

    x, _ = all_of(load(cifar, split_by="time").test)
    expected = integrate_events_by_fixed_frames_number(recording(1, 9), "time", 3, 128, 128)
    assert np.array_equal(x[:, 1], expected)
    assert not torch.equal(x, all_of(load(cifar).test)[0])
    assert (home(cifar) / "frames_number_3_split_by_time").is_dir()


def edited_marker(root):
    path = home(root) / "frames_number_3_split_by_number.complete.json"
    path.write_text(path.read_text().replace('"bad": []', '"bad": [["events_np/bird/cifar10_bird_9.npz", "no"]]'))


def changed(root) -> dict:
    return {path: path.stat().st_mtime_ns for path in sorted(frames_of(root).rglob("*.npz"))}


def test_frames_are_made_once(cifar):
    load(cifar)
    before = changed(cifar)
    assert len(before) == 30
    load(cifar)
    assert changed(cifar) == before


def no_marker(root):
    (home(root) / "frames_number_3_split_by_number.complete.json").unlink()


def file_missing(root):
    (frames_of(root) / "bird" / "cifar10_bird_3.npz").unlink()


def file_cut_short(root):
    path = frames_of(root) / "bird" / "cifar10_bird_3.npz"
    path.write_bytes(path.read_bytes()[:-20])


def cut_short_by_spikingjelly(root):
    """What it leaves behind when it is stopped on its way."""
    no_marker(root)
    file_missing(root)
    (home(root) / "frames_number_3_split_by_number.building").touch()


def folder_missing(root):
    shutil.rmtree(frames_of(root))


def recordings_changed(root):
    path = home(root) / "events_np" / "bird" / "cifar10_bird_3.npz"
    write_npz(path, {**recording(2, 3), "extra": np.zeros(3)})


@pytest.mark.parametrize(
    "damage",
    [
        no_marker,
        file_missing,
        file_cut_short,
        cut_short_by_spikingjelly,
        folder_missing,
        recordings_changed,
        edited_marker,
    ],
)
def test_frames_that_are_not_whole_are_made_again(cifar, damage):
    load(cifar)
    before = changed(cifar)
    damage(cifar)
    data = load(cifar)
    after = changed(cifar)
    assert after.keys() == before.keys()
    assert all(after[path] != before[path] for path in before)
    x, _ = all_of(data.train)
    assert torch.equal(x[:, 18 + 3], counted(recording(2, 3), 3, 128, 128))
    assert sorted(path.name for path in home(cifar).iterdir()) == [
        "events_np",
        "frames_number_3_split_by_number",
        "frames_number_3_split_by_number.complete.json",
    ]


def test_an_interrupted_conversion_leaves_nothing(cifar, monkeypatch):
    integrated = []

    def interrupted(conversion, path):
        if len(integrated) == 10:
            raise KeyboardInterrupt
        integrated.append(path)
        return np.zeros((3, 2, 128, 128))

    with monkeypatch.context() as patch:
        patch.setattr(jelly._Conversion, "_integrate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load(cifar)
    assert [path.name for path in home(cifar).iterdir()] == ["events_np"]
    x, _ = all_of(load(cifar).test)
    assert torch.equal(x[:, 0], counted(recording(0, 9), 3, 128, 128))


LIES = {
    "outside": {"x": np.full(64, 128)},
    "lengths": {"y": np.zeros(63, int)},
    "fractions": {"x": np.full(64, 0.5)},
    "polarities": {"p": np.full(64, 7)},
    "objects": {"x": np.array([None] * 64)},
}


@pytest.mark.parametrize("content", [b"", b"no archive", *LIES])
def test_a_corrupt_recording(cifar, content):
    path = home(cifar) / "events_np" / "bird" / "cifar10_bird_3.npz"
    if content in LIES:
        write_npz(path, {**recording(2, 3), **LIES[content]})
    else:
        path.write_bytes(content)
    with pytest.raises(BadSampleError, match=r"^the sample \S+cifar10_bird_3\.npz cannot be read \(.+\): replace the"):
        load(cifar)
    assert [path.name for path in home(cifar).iterdir()] == ["events_np"]
    data = load(cifar, on_bad_sample="skip")
    assert data.train.bad_samples == (path,)
    assert (len(data.train), len(data.test)) == (26, 3)
    assert torch.equal(all_of(data.test)[0][:, 2], counted(recording(2, 9), 3, 128, 128))
    with pytest.raises(BadSampleError, match="cifar10_bird_3"):
        load(cifar)  # although the frames of the others are there


def test_frames_damaged_after_loading(cifar):
    data = load(cifar)
    path, _ = data.test.files[1]
    path.write_bytes(b"")
    with pytest.raises(BadSampleError, match=r"^the sample \S+frames_number_3_split_by_number\S+ cannot be read"):
        all_of(data.test)


def test_an_unfinished_set_of_recordings(cifar):
    (home(cifar) / "events_np.building").touch()
    with pytest.raises(
        ValueError,
        match=r"^SpikingJelly's conversion to \S+events_np was cut short or is under way: wait for it, or delete",
    ):
        load(cifar)


def test_linked_folders_of_recordings(cifar):
    recordings = home(cifar) / "events_np"
    (recordings / "bird").rename(cifar / "elsewhere")
    (recordings / "bird").symlink_to(cifar / "elsewhere")
    assert load(cifar).num_classes == 3
    (cifar / "elsewhere" / "back").symlink_to(recordings)
    with pytest.raises(ValueError, match=r"^the link \S+bird.back leads back to a folder that it is in: remove it\.$"):
        load(cifar)


def test_no_recordings(cifar):
    shutil.rmtree(home(cifar) / "events_np")
    (home(cifar) / "events_np").mkdir()
    with pytest.raises(
        ValueError, match=r"^the folder \S+events_np has no recordings: it must hold <class>/\*\.npz\.$"
    ):
        load(cifar)


def test_a_damaged_archive_is_kept_and_named(tmp_path):
    from spikingjelly.datasets import CIFAR10DVS

    for name, _, _ in CIFAR10DVS.resource_url_md5():
        path = tmp_path / "cifar10-dvs/download" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"damaged")
    with pytest.raises(
        ValueError, match=r"^the archive \S+airplane\.zip is damaged: get it again from https://figshare"
    ):
        load(tmp_path)
    assert len(list((tmp_path / "cifar10-dvs/download").iterdir())) == 10


@pytest.fixture
def har(tmp_path):
    """Two of 300 activities."""
    for split, count in (("train", 2), ("val", 1), ("test", 1)):
        for label in range(2):
            for number in range(count):
                path = tmp_path / "har-dvs/events_np" / split / f"action_{label + 1:03}" / f"dvSave-{number}.npz"
                write_npz(path, random_events(3000, 260, 346, seed=label * 10 + number))
    return tmp_path


def test_har_dvs(har):
    data = load_dataset("har-dvs", har, steps=2)
    assert (data.num_classes, data.in_shape, len(data.train), len(data.test)) == (2, (2, 224, 224), 4, 2)
    x, y = all_of(data.test)
    assert x.shape == (2, 2, 2, 224, 224)
    assert y.tolist() == [0, 1]
    whole = counted(random_events(3000, 260, 346, seed=10), 2, 260, 346)
    assert torch.equal(x[:, 1], whole[:, :, 18:242, 61:285])
    drawn, labels = next(Batches(data.train, batch_size=4, training=True).epoch(0))
    assert drawn.shape == (2, 4, 2, 224, 224)
    assert labels.bincount().tolist() == [2, 2]
    centred = load_dataset("har-dvs", har, steps=2, augment="none").train
    still = {sample.numpy().tobytes() for sample in all_of(centred)[0].unbind(1)}
    x, _ = next(Batches(centred, batch_size=4, training=True).epoch(0))
    assert {sample.numpy().tobytes() for sample in x.unbind(1)} == still
    assert not {sample.numpy().tobytes() for sample in drawn.unbind(1)} & still
    (har / "har-dvs/events_np/test/action_002").rename(har / "har-dvs/events_np/test/action_003")
    with pytest.raises(
        ValueError, match=r"has the class 'action_002' in only one of its two splits: both need the same"
    ):
        load_dataset("har-dvs", har, steps=2)
