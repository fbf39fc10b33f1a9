"""Arrays of the user's own, and one sentence for each thing that may be wrong with them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from stdl_engine.data import Batches, load_dataset

from .samples import all_of, random_images


def arrays(shape=(32, 32, 3), train: int = 20, test: int = 7, classes: int = 4) -> dict[str, np.ndarray]:
    return {
        "x_train": random_images(train, *shape),
        "y_train": np.arange(train) % classes,
        "x_test": random_images(test, *shape, seed=1),
        "y_test": np.arange(test) % classes,
    }


@pytest.fixture
def save(tmp_path):
    def save(**changes):
        content = {**arrays(), **changes}
        np.savez(tmp_path / "own.npz", **{key: value for key, value in content.items() if value is not None})
        return tmp_path / "own.npz"

    return save


def test_images_and_labels(save):
    content = arrays()
    data = load_dataset("npz", save())
    assert (data.name, data.num_classes, data.in_shape, data.events) == ("own", 4, (3, 32, 32), False)
    x, y = all_of(data.test)
    pixels = content["x_train"].astype(np.float64) / 255
    expected = (content["x_test"] / 255 - pixels.mean((0, 1, 2))) / pixels.std((0, 1, 2))
    np.testing.assert_allclose(x.permute(0, 2, 3, 1).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert y.tolist() == content["y_test"].tolist()
    assert len(data.train) == 20


def test_channels_first_last_or_none(save):
    content = arrays()
    last = all_of(load_dataset("npz", save()).train)[0]
    first = {key: content[key].transpose(0, 3, 1, 2) for key in ("x_train", "x_test")}
    assert torch.equal(all_of(load_dataset("npz", save(**first)).train)[0], last)
    grey = {key: content[key][..., 0] for key in ("x_train", "x_test")}
    data = load_dataset("npz", save(**grey), augment="none")
    assert data.in_shape == (1, 32, 32)
    one = {key: content[key][..., :1] for key in ("x_train", "x_test")}
    assert torch.equal(all_of(data.train)[0], all_of(load_dataset("npz", save(**one), augment="none").train)[0])


def test_floats_and_bytes_come_out_alike(save):
    content = arrays()
    floats = {key: (content[key] / 255).astype(np.float32) for key in ("x_train", "x_test")}
    x = all_of(load_dataset("npz", save(**floats), augment="light").test)[0]
    torch.testing.assert_close(x, all_of(load_dataset("npz", save()).test)[0], rtol=1e-5, atol=1e-5)


def test_a_constant_channel_stays_finite(save):
    x = arrays()["x_train"]
    x[..., 1] = 77
    assert all_of(load_dataset("npz", save(x_train=x)).train)[0].isfinite().all()


def test_labels_as_keras_saves_them(save):
    assert load_dataset("npz", save(y_train=arrays()["y_train"][:, None].astype(np.uint8))).num_classes == 4


def sequences(count: int, steps: int = 5, seed: int = 0, channels: int = 2, side: int = 30) -> np.ndarray:
    return np.random.default_rng(seed).poisson(0.3, (count, steps, channels, side, side)).astype(np.uint8)


def events(**changes) -> dict[str, np.ndarray]:
    return {"x_train": sequences(20), "x_test": sequences(7, seed=1), **changes}


def test_events(save):
    data = load_dataset("npz", save(**events()), steps=5)
    assert (data.num_classes, data.in_shape, data.events) == (4, (2, 30, 30), True)
    assert data.train.samples.dtype == torch.uint8
    x, y = all_of(data.test)
    assert np.array_equal(x.transpose(0, 1), sequences(7, seed=1))  # counts as they are
    assert y.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert data.train.prepare.pad == 0


@pytest.mark.parametrize("dtype", [bool, np.uint16, np.int64, np.uint64, np.float16, np.float64])
def test_events_of_any_dtype(save, dtype):
    given = {key: value.astype(dtype) for key, value in events().items()}
    x, _ = all_of(load_dataset("npz", save(**given), steps=5).train)
    assert x.dtype == torch.float32
    assert np.array_equal(x.transpose(0, 1), given["x_train"])


def test_events_are_shifted_and_mirrored_only_by_light(save):
    path = save(**events())
    light = load_dataset("npz", path, steps=5, augment="light").train
    assert (light.prepare.pad, light.prepare.flip, light.prepare.policy) == (4, True, False)
    x, _ = next(Batches(light, batch_size=20, training=True).epoch(0))
    assert x.shape == (5, 20, 2, 30, 30)
    still, _ = next(Batches(load_dataset("npz", path, steps=5).train, batch_size=20, training=True).epoch(0))
    assert not torch.equal(x, still)
    small = {"x_train": sequences(20, side=12), "x_test": sequences(7, side=12)}
    assert load_dataset("npz", save(**small), steps=5, augment="light").train.prepare.pad == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"x_train has 5 frames per sample and steps is 4: set steps to 5, or add up frames before you save them"),
        ({"x_test": sequences(7, steps=3)}, r"x_train has 5 frames per sample and steps is 4"),
        ({"x_train": sequences(20, 4), "x_test": sequences(7)}, r"x_test has 5 frames per sample and steps is 4"),
        ({"x_train": sequences(20, 4), "x_test": sequences(7, 4, side=31)}, r"x_train has images of 4 × 2 × 30 × 30"),
        ({"x_train": sequences(20, 4), "x_test": sequences(7, 4)[:, 0]}, r"x_test has shape \(7, 2, 30, 30\): store"),
        ({"x_train": sequences(20, 4).transpose(0, 1, 3, 4, 2)}, r"x_train has shape \(20, 4, 30, 30, 2\): store"),
        ({"x_train": sequences(20, 4)[:, :, :, :0]}, r"x_train has shape \(20, 4, 2, 0, 30\): store events as"),
        ({"x_train": sequences(20, 4) * np.float32(np.nan)}, r"x_train has values that are not finite in float32"),
        ({"x_train": sequences(20, 4).astype(int) - 1}, r"x_train has counts from -1 to \d+: store counts of events"),
        ({"x_train": sequences(20, 4).astype(int) << 40}, r"x_train has counts from 0 to \d{13}: store counts"),
        ({"x_train": sequences(20, 4).astype(complex)}, r"x_train has dtype complex128: store events as uint8"),
        ({"x_train": sequences(20, 4).astype(str)}, r"x_train has dtype <U\d+: store events as uint8"),
    ],
)  # fmt: skip
def test_bad_events(save, changes, message):
    with pytest.raises(ValueError, match=message):
        load_dataset("npz", save(**events(**changes)), steps=4)


def test_a_single_class(save):
    with pytest.raises(ValueError, match=r"y_train has the single label 0: a network needs two or more to tell apart"):
        load_dataset("npz", save(y_train=np.zeros(20, int)))


def test_a_file_that_cannot_be_opened(save, monkeypatch):
    def refuse(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    path = save()
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ValueError, match=r"^\S+own\.npz cannot be read as \.npz \(Permission denied\): save it again"):
        load_dataset("npz", path)


def test_objects_are_never_loaded(save):
    with pytest.raises(
        ValueError, match=r"own\.npz cannot be read as \.npz \(x_train holds Python objects, which are ne"
    ):
        load_dataset("npz", save(x_train=np.array([{}] * 20)))


def trained(path, augment):
    data = load_dataset("npz", path, augment=augment)
    return data.train.prepare, next(Batches(data.train, batch_size=20, training=True).epoch(0))[0]


def test_augmentation(save):
    path = save()
    (paper, x_paper), (light, x_light), (none, x_none) = (trained(path, name) for name in ("paper", "light", "none"))
    assert (paper.pad, paper.flip, paper.policy, paper.cutout) == (4, True, True, 16)
    assert (light.pad, light.flip, light.policy, light.cutout) == (4, True, False, 0)
    assert (none.pad, none.flip, none.policy, none.cutout) == (0, False, False, 0)
    # the holes of cutout are exactly zero, and random pixels are not
    assert (x_paper == 0).flatten(1).any(1).all()
    assert not (x_light == 0).any()
    assert not torch.equal(x_light, x_none)


def test_small_images_are_not_augmented(save):
    small = arrays((12, 12, 3))
    prepare, _ = trained(save(x_train=small["x_train"], x_test=small["x_test"]), "light")
    assert (prepare.pad, prepare.flip) == (0, False)


@pytest.mark.parametrize(
    ("shape", "dtype", "found"),
    [
        ((32, 32, 1), np.uint8, "1 × 32 × 32 in uint8"),
        ((32, 32, 3), np.float32, "3 × 32 × 32 in float32"),
        ((12, 12, 3), np.uint8, "3 × 12 × 12 in uint8"),
    ],
)
def test_the_papers_augmentation_is_for_colour_images_in_bytes(save, shape, dtype, found):
    content = arrays(shape)
    path = save(x_train=content["x_train"].astype(dtype), x_test=content["x_test"].astype(dtype))
    with pytest.raises(
        ValueError, match=rf'^augment="paper" is for .* and these are {found}: choose "light" or "none"'
    ):
        load_dataset("npz", path, augment="paper")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None, "x_test": None}, r"own\.npz lacks x_test, y_test and has x_train, y_train: save it with"),
        ({"x_train": np.zeros((20, 32, 32, 5), np.uint8)}, r"x_train has shape \(20, 32, 32, 5\): store images as \[N"),
        ({"x_train": np.zeros((20, 3, 9, 3), np.uint8)}, r"x_train has shape \(20, 3, 9, 3\): store images as"),
        ({"x_train": np.zeros((20, 32), np.uint8)}, r"x_train has shape \(20, 32\): store images as"),
        ({"x_train": np.zeros((0, 32, 32, 3), np.uint8)}, r"x_train has shape \(0, 32, 32, 3\): store images as"),
        (
            {"x_train": np.zeros((20, 32, 32, 3), np.int64)},
            r"x_train has dtype int64: store images as uint8 or float32",
        ),
        (
            {"x_train": np.full((20, 32, 32, 3), np.nan)},
            r"x_train has values that are not finite in float32: replace them\.",
        ),
        (
            {"x_test": np.zeros((7, 28, 28, 3), np.uint8)},
            r"images of 3 × 32 × 32 in uint8 and x_test of 3 × 28 × 28 in",
        ),
        ({"y_train": np.arange(19) % 4}, r"y_train has 19 labels for 20 samples: store one for each\."),
        (
            {"y_train": np.arange(20) / 4},
            r"y_train has shape \(20,\) and dtype float64: store one whole number per sample",
        ),
        ({"y_train": np.eye(20, dtype=np.int64)}, r"y_train has shape \(20, 20\) and dtype int64: store one whole"),
        ({"y_train": np.arange(20) % 4 + 1}, r"y_train has 4 different labels from 1 to 4: number the classes from 0"),
        ({"y_train": np.arange(20) % 4 * 2}, r"y_train has 4 different labels from 0 to 6: number the classes"),
        ({"y_train": np.arange(20) % 4 - 1}, r"y_train has 4 different labels from -1 to 2: number the classes"),
        (
            {"y_test": np.arange(7)},
            r"y_test has labels from 0 to 6 and y_train 4 classes: test on labels from 0 to 3\.",
        ),
    ],
)
def test_bad_arrays(save, changes, message):
    with pytest.raises(ValueError, match=message):
        load_dataset("npz", save(**changes), augment="none")


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^there is no file \S+none\.npz: pass an \.npz file with the arrays"):
        load_dataset("npz", tmp_path / "none.npz")


@pytest.mark.parametrize("content", [b"", b"not a zip", b"cut short"])
def test_damaged_file(save, content):
    path = save()
    path.write_bytes(content if content != b"cut short" else path.read_bytes()[:-3000])
    with pytest.raises(ValueError, match=r"^\S+own\.npz cannot be read as \.npz \(.+\): save it again with np\.savez"):
        load_dataset("npz", path)


def test_a_single_array_is_not_an_npz(tmp_path):
    np.save(tmp_path / "own.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"own\.npy cannot be read as \.npz \(it is a single array\): save it"):
        load_dataset("npz", tmp_path / "own.npy")
