"""A picture that cannot be read stops the run or is named, counted and left out."""

import json

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def pictures(tmp_path):
    random = np.random.default_rng(0)
    for split, count in (("train", 10), ("test", 4)):
        for label in ("cat", "dog"):
            folder = tmp_path / "pictures" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    broken = tmp_path / "pictures" / "train" / "cat" / "3.png"
    broken.write_bytes(broken.read_bytes()[:40])
    return tmp_path / "pictures", broken


SETTINGS = [
    "--dataset",
    "folder",
    "--augment",
    "none",
    "--model",
    "resnet18",
    "--width",
    "0.0625",
    "--batch-size",
    "8",
    "--steps",
    "1",
]


def test_stop(train, tmp_path, pictures):
    folder, broken = pictures
    code, _, complaints = train(*SETTINGS, "--data", folder, "--epochs", 1, "--out", tmp_path / "run", quick=False)
    assert code == 2
    assert str(broken) in complaints
    assert len(complaints.strip().splitlines()) == 1


def test_skip(train, tmp_path, pictures):
    folder, broken = pictures
    code, printed, complaints = train(
        *SETTINGS, "--data", folder, "--epochs", 2, "--on-bad-sample", "skip", "--out", tmp_path / "run", quick=False
    )
    assert code == 0, complaints
    assert printed.count(f"left out, as it cannot be read: {broken}") == 1
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["bad_samples"] for row in rows] == [1, 1]
