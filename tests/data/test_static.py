"""The image datasets, from small files in their real formats."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
import torchvision
from PIL import Image

from stdl_engine.data import BadSampleError, Batches, FileSource, load_dataset

from .samples import all_of, random_images, write_image


def dump(path: Path, content: dict) -> list[str]:
    """A pickle as the CIFAR archives hold them, and its entry in torchvision's list of checksums."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content))
    return [path.name, hashlib.md5(path.read_bytes()).hexdigest()]


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Both CIFARs, 5 × 4 and 6 images each; rows of 3072 bytes, channel by channel."""

    def write(kind, train_files, labels, meta):
        folder = tmp_path / kind.base_folder
        images = random_images(26, 3072)
        numbers = [(7 * place) % kind_classes[kind] for place in range(26)]
        lists = []
        for names, start in ((train_files, 0), ([kind.test_list[0][0]], 20)):
            per_file = (20 if start == 0 else 6) // len(names)
            entries = []
            for place, name in enumerate(names):
                rows = slice(start + place * per_file, start + (place + 1) * per_file)
                entries.append(dump(folder / name, {"data": images[rows], labels: numbers[rows]}))
            lists.append(entries)
        monkeypatch.setattr(kind, "train_list", lists[0])
        monkeypatch.setattr(kind, "test_list", lists[1])
        entry = dump(folder / kind.meta["filename"], {meta: [str(number) for number in range(kind_classes[kind])]})
        monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": entry[1]})
        return images.reshape(26, 3, 32, 32), numbers

    kind_classes = {torchvision.datasets.CIFAR10: 10, torchvision.datasets.CIFAR100: 100}
    written = {
        "cifar10": write(
            torchvision.datasets.CIFAR10, [f"data_batch_{n}" for n in range(1, 6)], "labels", "label_names"
        ),
        "cifar100": write(torchvision.datasets.CIFAR100, ["train"], "fine_labels", "fine_label_names"),
    }
    return tmp_path, written


NORMALISED = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar(cifar, name, classes):
    root, written = cifar
    images, labels = written[name]
    data = load_dataset(name, root)
    assert (data.name, data.num_classes, data.in_shape, data.events) == (name, classes, (3, 32, 32), False)
    mean, std = (np.array(value)[:, None, None] for value in NORMALISED[name])
    for source, rows in ((data.train, slice(0, 20)), (data.test, slice(20, 26))):
        x, y = all_of(source)
        np.testing.assert_allclose(x.numpy(), (images[rows] / 255 - mean) / std, rtol=1e-5, atol=1e-5)
        assert y.tolist() == labels[rows]
    augmented = data.train.prepare
    assert (augmented.pad, augmented.flip, augmented.policy, augmented.cutout) == (4, True, True, 16)
    light = load_dataset(name, root, augment="light").train.prepare
    assert (light.pad, light.flip, light.policy, light.cutout) == (4, True, False, 0)
    x, _ = next(Batches(data.train, batch_size=20, training=True).epoch(0))
    assert x.shape == (20, 3, 32, 32)


def test_a_damaged_cifar(cifar):
    root, _ = cifar
    path = root / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"^the files of CIFAR10 in \S+ are incomplete or damaged \(.+\): unpack them"):
        load_dataset("cifar10", root)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"images": 1, "labels": [1]}, "there is no 'data'"),
        ({"data": np.zeros((4, 3072), np.uint8)}, "there is no 'fine_labels'"),
        ({"data": np.zeros((4, 5), np.uint8), "labels": [1] * 4}, "must match exactly"),
        (
            {"data": np.zeros((3, 3072), np.uint8), "labels": [1] * 4},
            "4 labels for 19 samples|20 labels for 19 samples",
        ),
        ({"data": np.zeros((4, 3072), np.uint8), "labels": [10] * 4}, "has labels from 0 to 10, and there are 10 cl"),
        (5, "."),
    ],
)
def test_cifar_pickles_of_another_content(cifar, monkeypatch, content, reason):
    root, _ = cifar
    kind = torchvision.datasets.CIFAR10
    entries = list(kind.train_list)
    entries[2] = dump(root / kind.base_folder / "data_batch_3", content)
    monkeypatch.setattr(kind, "train_list", entries)
    with pytest.raises(ValueError, match=reason):
        load_dataset("cifar10", root)


def test_cifar_without_permission(cifar, monkeypatch):
    root, _ = cifar

    def refuse(path, *_):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", refuse)
    with pytest.raises(
        ValueError, match=r"^the files of CIFAR10 in \S+ are incomplete or damaged \(Permission denied\)"
    ):
        load_dataset("cifar10", root)


@pytest.fixture
def svhn(tmp_path, monkeypatch):
    """X is [32, 32, 3, N] and the digit 0 has the label 10."""
    images = {"train": random_images(12, 32, 32, 3), "test": random_images(11, 32, 32, 3, seed=1)}
    lists = {}
    for split, content in images.items():
        path = tmp_path / "svhn" / f"{split}_32x32.mat"
        path.parent.mkdir(exist_ok=True)
        labels = (np.arange(len(content)) % 10 + 1)[:, None].astype(np.uint8)
        scipy.io.savemat(path, {"X": content.transpose(1, 2, 3, 0), "y": labels})
        lists[split] = ["", path.name, hashlib.md5(path.read_bytes()).hexdigest()]
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", lists)
    return tmp_path, images


@pytest.mark.parametrize("inside", [False, True])
def test_svhn(svhn, inside):
    root, images = svhn
    data = load_dataset("svhn", root / "svhn" if inside else root)
    assert (data.num_classes, data.in_shape, len(data.train), len(data.test)) == (10, (3, 32, 32), 12, 11)
    x, y = all_of(data.test)
    assert y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    mean, std = np.array((0.4377, 0.4438, 0.4728)), np.array((0.1980, 0.2010, 0.1970))
    expected = (images["test"] / 255 - mean) / std
    np.testing.assert_allclose(x.permute(0, 2, 3, 1).numpy(), expected, rtol=1e-5, atol=1e-5)
    prepare = data.train.prepare
    assert (prepare.pad, prepare.flip, prepare.policy, prepare.cutout) == (2, False, False, 0)
    assert load_dataset("svhn", root, augment="none").train.prepare.pad == 0


@pytest.mark.parametrize("content", [b"", b"MATLAB 7.3 MAT-file, which is HDF5" + bytes(94) + b"\x00\x02IM", b"text"])
def test_mat_files_of_another_version(svhn, monkeypatch, content):
    root, _ = svhn
    path = root / "svhn/train_32x32.mat"
    path.write_bytes(content)
    lists = {**torchvision.datasets.SVHN.split_list, "train": ["", path.name, hashlib.md5(content).hexdigest()]}
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", lists)
    with pytest.raises(
        ValueError, match=r"^the files of SVHN in \S+ are incomplete or damaged \(.+\): unpack them again"
    ):
        load_dataset("svhn", root)


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps(print)])
def test_imagenet_with_another_meta_file(imagenet, content):
    (imagenet / "imagenet/meta.bin").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"^the files of ImageNet in \S+ are incomplete or damaged \(.+\): unpack them"
    ):
        load_dataset("imagenet", imagenet)


@pytest.fixture
def imagenet(tmp_path):
    """Two classes of wide and tall photographs, in the tree that torchvision unpacks the archives to."""
    root = tmp_path / "imagenet"
    wnids = ("n01440764", "n01443537")
    for number, wnid in enumerate(wnids):
        for place, shape in enumerate(((300, 400, 3), (400, 280, 3), (230, 500, 3))):
            pixels = random_images(1, *shape, seed=number * 3 + place)[0]
            split, suffix = ("val", "JPEG") if place == 2 else ("train", "JPEG")
            write_image(root / split / wnid / f"{wnid}_{place}.{suffix}", pixels)
    torch.save(({wnid: (wnid,) for wnid in wnids}, list(wnids)), root / "meta.bin")
    return tmp_path


def test_imagenet(imagenet):
    data = load_dataset("imagenet", imagenet)
    assert (data.num_classes, data.in_shape, len(data.train), len(data.test)) == (2, (3, 224, 224), 4, 2)
    assert isinstance(data.train, FileSource)
    x, y = all_of(data.test)
    assert y.tolist() == [0, 1]
    transform = torchvision.transforms.Compose(
        [
            torchvision.transforms.Resize(256),
            torchvision.transforms.CenterCrop(224),
            torchvision.transforms.ToTensor(),
            torchvision.transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    path, _ = data.test.files[1]
    torch.testing.assert_close(x[1], transform(Image.open(path)), rtol=1e-5, atol=1e-5)
    x, y = next(Batches(data.train, batch_size=4, training=True).epoch(0))
    assert x.shape == (4, 3, 224, 224)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert y.sort().values.tolist() == [0, 0, 1, 1]


def test_imagenet_is_cropped_at_random_only_if_asked(imagenet):
    drawn = {}
    for augment in ("paper", "none"):
        batches = Batches(load_dataset("imagenet", imagenet, augment=augment).train, batch_size=4, training=True)
        drawn[augment] = {
            (label.item(), image.numpy().tobytes())
            for n in range(2)
            for x, y in batches.epoch(n)
            for image, label in zip(x, y, strict=True)
        }
    assert len(drawn["none"]) == 4
    assert len(drawn["paper"]) == 8


def test_a_corrupt_photograph(imagenet):
    (path,) = (imagenet / "imagenet/val/n01443537").iterdir()
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(
        BadSampleError, match=r"^the sample \S+n01443537_2\.JPEG cannot be read \(.+\): replace the file"
    ):
        all_of(load_dataset("imagenet", imagenet).test)
    source = load_dataset("imagenet", imagenet, on_bad_sample="skip").test
    batches = Batches(source, batch_size=2, training=False)
    assert [y.tolist() for _, y in batches.epoch(0)] == [[0]]
    assert batches.bad_samples == [path]


def test_imagenet_with_an_empty_class(imagenet):
    for path in (imagenet / "imagenet/train/n01443537").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"^the files of ImageNet in \S+ are incomplete or damaged \(.*n01443537"):
        load_dataset("imagenet", imagenet)


def test_imagenet_with_other_classes_to_test_on(imagenet):
    (imagenet / "imagenet/train/n01443537").rename(imagenet / "n01443537")
    with pytest.raises(
        ValueError, match=r"has the class 'n01443537' in only one of its two splits: both need the same"
    ):
        load_dataset("imagenet", imagenet)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar10", r"^CIFAR-10 is not in \S+, which lacks cifar-10-batches-py: get it from https://www\.cs\.toronto"),
        ("cifar100", r"^CIFAR-100 is not in \S+, which lacks cifar-100-python: get it from https://www\.cs\.toronto"),
        ("svhn", r"^SVHN is not in \S+svhn, which lacks train_32x32\.mat and test_32x32\.mat: get it from http\S+ and"),
        ("imagenet", r"^ImageNet is not in \S+imagenet, which lacks meta\.bin and train and val: get it from https"),
    ],
)
def test_missing(tmp_path, name, message):
    with pytest.raises(FileNotFoundError, match=message):
        load_dataset(name, tmp_path)
