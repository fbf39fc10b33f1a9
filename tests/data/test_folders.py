"""Image files of the user's own."""

import numpy as np
import pytest
import torch

from stdl_engine.data import BadSampleError, FileSource, MemorySource, folders, load_dataset
from stdl_engine.data.images import read_image

from .samples import all_of, random_images, write_image


@pytest.fixture
def tree(tmp_path):
    """Three classes of 4 and 2 images of 32 × 32, losslessly."""
    root = tmp_path / "pets"
    images = random_images(18, 32, 32, 3)
    for number, name in enumerate(("cat", "dog", "eel")):
        for place in range(6):
            split = "train" if place < 4 else "test"
            write_image(root / split / name / f"{place}.png", images[number * 6 + place])
    return root


def pixels(root, path) -> torch.Tensor:
    mean, std = (torch.tensor(value)[:, None, None] for value in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return (read_image(root / path).float() / 255 - mean) / std


def test_images_and_labels(tree):
    data = load_dataset("folder", tree)
    assert (data.name, data.num_classes, data.in_shape) == ("pets", 3, (3, 32, 32))
    assert isinstance(data.train, MemorySource)
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    x, y = all_of(data.test)
    assert y.tolist() == [0, 0, 1, 1, 2, 2]
    torch.testing.assert_close(x[3], pixels(tree, "test/dog/5.png"))


def test_val_is_as_good_a_name_as_test(tree):
    (tree / "test").rename(tree / "val")
    assert len(load_dataset("folder", tree).test) == 6


def test_large_folders_are_read_file_by_file(tree, monkeypatch):
    small = load_dataset("folder", tree)
    monkeypatch.setattr(folders, "IN_MEMORY", 10_000)
    large = load_dataset("folder", tree)
    assert isinstance(large.train, FileSource)
    for one, other in ((small.train, large.train), (small.test, large.test)):
        for left, right in zip(all_of(one), all_of(other, workers=1), strict=True):
            assert torch.equal(left, right)


def test_size_makes_all_alike(tree):
    write_image(tree / "train/cat/wide.png", random_images(1, 30, 61, 3)[0])
    data = load_dataset("folder", tree, size=40)
    assert data.in_shape == (3, 40, 40)
    assert all_of(data.train)[0].shape == (13, 3, 40, 40)


def test_without_size_another_size_is_an_error(tree):
    write_image(tree / "train/eel/wide.png", random_images(1, 30, 61, 3)[0])
    with pytest.raises(
        BadSampleError, match=r"eel.wide\.png cannot be read \(it has 61 × 30 pixels and the first image"
    ):
        load_dataset("folder", tree)


def test_grey_images_become_rgb(tree):
    grey = random_images(1, 32, 32)[0]
    write_image(tree / "train/eel/grey.png", grey)
    assert torch.equal(load_dataset("folder", tree).train.samples[-1], torch.from_numpy(grey).expand(3, 32, 32))


@pytest.mark.parametrize("name", ["train/cat/0.png", "train/dog/2.png", "test/eel/4.png"])
def test_a_corrupt_image(tree, name):
    path = tree / name
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(
        BadSampleError, match=rf"^the sample \S+{name} cannot be read \(.+\): replace the file, or leave"
    ):
        load_dataset("folder", tree)
    data = load_dataset("folder", tree, on_bad_sample="skip")
    assert data.train.bad_samples + data.test.bad_samples == (path,)
    assert (len(data.train), len(data.test)) == ((11, 6) if "train" in name else (12, 5))
    x, y = all_of(data.train)
    assert len(x) == len(y) == len(data.train)
    torch.testing.assert_close(x[-1], pixels(tree, "train/eel/3.png"))


def test_nothing_but_corrupt_images(tree):
    for path in (tree / "train").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"^none of the 12 images in \S+train can be read: replace them\.$"):
        load_dataset("folder", tree, on_bad_sample="skip")


def test_missing_parts(tree):
    with pytest.raises(FileNotFoundError, match=r"^there is no folder \S+else.train: put images in \S+/train/<class>/"):
        load_dataset("folder", tree.parent / "else")
    for path in (tree / "train/dog").iterdir():
        path.rename(path.with_suffix(".txt"))
    with pytest.raises(ValueError, match=r"^the folder \S+train.dog has no samples: put files in it that end in \.jpg"):
        load_dataset("folder", tree)
    (tree / "train/dog").rename(tree / "dog")
    with pytest.raises(ValueError, match=r"^the folder \S+test has a folder 'dog', which is none of the 2 classes"):
        load_dataset("folder", tree)
    (tree / "test").rename(tree / "tests")
    with pytest.raises(FileNotFoundError, match=r"^there is no folder \S+test or \S+val: put images to test on there"):
        load_dataset("folder", tree)
    (tree / "train").rename(tree / "old")
    (tree / "train").mkdir()
    (tree / "test").mkdir()
    with pytest.raises(ValueError, match=r"^the folder \S+train has no class folders: put samples in"):
        load_dataset("folder", tree)


def test_bad_size(tree):
    with pytest.raises(ValueError, match=r"^size is 0: it must be a whole number of pixels from 1 up\.$"):
        load_dataset("folder", tree, size=0)


@pytest.mark.parametrize(("height", "width", "expected"), [(30, 61, (20, 40)), (61, 30, (40, 20)), (20, 33, (20, 33))])
def test_shorter_side(tmp_path, height, width, expected):
    write_image(tmp_path / "a.png", random_images(1, height, width, 3)[0])
    image = read_image(tmp_path / "a.png", shorter_side=20)
    assert image.shape == (3, *expected)
    assert image.dtype == torch.uint8
    assert np.array_equal(read_image(tmp_path / "a.png").permute(1, 2, 0), random_images(1, height, width, 3)[0])
