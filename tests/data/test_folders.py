"""Image files of the user's own."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

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


def save(image: Image.Image, path, **options) -> torch.Tensor:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return read_image(path)


def test_pixels_of_16_bits_are_not_all_white(tmp_path):
    pixels = np.array([[0, 128, 129, 257], [25700, 32768, 65407, 65535]], np.uint16)
    expected = np.round(pixels / 257).astype(np.uint8)
    for name in ("a.png", "a.tif"):
        assert np.array_equal(save(Image.fromarray(pixels), tmp_path / name), np.stack([expected] * 3))
    assert np.array_equal(save(Image.fromarray(pixels.astype(np.int32)), tmp_path / "b.tif")[1], expected)
    for wrong in (pixels.astype(np.float32), pixels.astype(np.int32) * 2, -pixels.astype(np.int32)):
        with pytest.raises(ValueError, match="its pixels are of more than 16 bits; save it with 8 or 16 bits"):
            save(Image.fromarray(wrong), tmp_path / "c.tif")


def test_images_of_every_kind(tmp_path):
    rgba = random_images(1, 5, 6, 4)[0]
    assert np.array_equal(save(Image.fromarray(rgba), tmp_path / "a.png"), rgba[..., :3].transpose(2, 0, 1))
    first, second = (Image.fromarray(frame) for frame in random_images(2, 5, 6, 3))
    found = save(first, tmp_path / "a.webp", save_all=True, append_images=[second], lossless=True)
    assert np.array_equal(found, np.array(first).transpose(2, 0, 1))
    two = Image.fromarray(np.array([[0, 1], [1, 0]], bool))
    assert save(two, tmp_path / "b.png")[0].tolist() == [[0, 255], [255, 0]]
    palette = first.convert("P")
    assert np.array_equal(save(palette, tmp_path / "c.png"), np.array(palette.convert("RGB")).transpose(2, 0, 1))
    assert save(first.convert("CMYK"), tmp_path / "a.jpg").shape == (3, 5, 6)


def test_a_single_pixel(tmp_path):
    for number, name in enumerate(("cat", "dog")):
        for split in ("train", "test"):
            write_image(tmp_path / split / name / "1.png", np.full((1, 1, 3), number, np.uint8))
    data = load_dataset("folder", tmp_path, augment="none")
    assert (data.in_shape, all_of(data.test)[0].shape) == ((3, 1, 1), (2, 3, 1, 1))
    assert load_dataset("folder", tmp_path, augment="none", size=7).train.samples.unique().tolist() == [0, 1]


def test_a_strip_of_one_pixel(tree):
    write_image(tree / "train/cat/strip.png", np.zeros((1, 3000, 3), np.uint8))
    with pytest.raises(
        BadSampleError, match=r"strip\.png cannot be read \(its 3000 × 1 pixels would become 96000 × 32\)"
    ):
        load_dataset("folder", tree, size=32)


def test_a_single_class(tree):
    for name in ("dog", "eel"):
        for split in ("train", "test"):
            shutil.rmtree(tree / split / name)
    with pytest.raises(
        ValueError, match=r"^the folder \S+train has the single class 'cat': a network needs two or more"
    ):
        load_dataset("folder", tree)


def test_links(tree):
    (tree / "train/cat/far.png").symlink_to(tree / "train/dog/0.png")
    assert len(load_dataset("folder", tree).train) == 13
    loop = tree / "train/cat/loop.png"
    loop.symlink_to(loop)
    with pytest.raises(BadSampleError, match=r"loop\.png cannot be read \(Too many levels of symbolic links\)"):
        load_dataset("folder", tree)
    assert load_dataset("folder", tree, on_bad_sample="skip").train.bad_samples == (loop,)
    os.mkfifo(tree / "train/cat/pipe.png")  # reading it would wait for ever
    assert len(load_dataset("folder", tree, on_bad_sample="skip").train) == 13
    (tree / "train/fox").symlink_to(tree / "train/fox")
    with pytest.raises(ValueError, match=r"^the link \S+fox leads nowhere: repair it or remove it\.$"):
        load_dataset("folder", tree)


def test_names_that_are_not_text(tree):
    folder = tree / "train" / os.fsdecode(b"\xe9")
    shutil.copytree(tree / "train/cat", folder)
    shutil.copytree(tree / "test/cat", tree / "test" / folder.name)
    assert load_dataset("folder", tree).num_classes == 4
    (folder / "0.png").write_bytes(b"")
    with pytest.raises(BadSampleError) as caught:
        load_dataset("folder", tree)
    str(caught.value).encode()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody for a moment")
@pytest.mark.parametrize("closed", ["train", "train/dog", "test/eel"])
def test_folders_without_permission(tree, closed):
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to nobody
        os.chmod(place, 0o755)
        root = Path(shutil.copytree(tree, Path(place) / "pets"))
        (root / closed).chmod(0)
        os.seteuid(65534)
        try:
            with pytest.raises(
                OSError, match=rf"^the folder \S+{closed} cannot be read \(Permission denied\): let this"
            ):
                load_dataset("folder", root)
        finally:
            os.seteuid(0)


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
    with pytest.raises(ValueError, match=r"^size is 1000000: images are at most 8192 pixels wide\.$"):
        load_dataset("folder", tree, size=10**6)


@pytest.mark.parametrize(("height", "width", "expected"), [(30, 61, (20, 40)), (61, 30, (40, 20)), (20, 33, (20, 33))])
def test_shorter_side(tmp_path, height, width, expected):
    write_image(tmp_path / "a.png", random_images(1, height, width, 3)[0])
    image = read_image(tmp_path / "a.png", shorter_side=20)
    assert image.shape == (3, *expected)
    assert image.dtype == torch.uint8
    assert np.array_equal(read_image(tmp_path / "a.png").permute(1, 2, 0), random_images(1, height, width, 3)[0])
