"""AutoAugment on whole batches against torchvision's on one image."""

from collections import Counter

import pytest
import torch
from torchvision.transforms.v2 import AutoAugment, AutoAugmentPolicy

from stdl_engine.data.policy import OPERATIONS, POLICY, SIGNED, auto_augment

THEIRS = AutoAugment(AutoAugmentPolicy.CIFAR10)
NAMES = {
    "shear_y": "ShearY",
    "translate_x": "TranslateX",
    "translate_y": "TranslateY",
    "rotate": "Rotate",
    "brightness": "Brightness",
    "color": "Color",
    "contrast": "Contrast",
    "sharpness": "Sharpness",
    "posterize": "Posterize",
    "solarize": "Solarize",
    "autocontrast": "AutoContrast",
    "equalize": "Equalize",
    "invert": "Invert",
}


def images(batch: int = 6) -> torch.Tensor:
    """Smooth images with noise, so that equalize and autocontrast have something to do."""
    generator = torch.Generator().manual_seed(3)
    ramp = torch.linspace(40, 180, 32)
    noise = torch.randint(0, 30, (batch, 3, 32, 32), generator=generator)
    return (ramp[:, None] * 0.5 + ramp[None, :] * 0.5 + noise).to(torch.uint8)


def test_the_policy_is_the_published_one():
    ours = [tuple((NAMES[name], tenths / 10, strength) for name, tenths, strength in pair) for pair in POLICY]
    theirs = [tuple((name, chance, strength or 0) for name, chance, strength in pair) for pair in THEIRS._policies]
    assert ours == theirs


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_a_batch_is_torchvisions_on_each_image(name):
    x = images()
    magnitudes, signed = THEIRS._AUGMENTATION_SPACE[NAMES[name]]
    assert signed == (name in SIGNED)
    table = magnitudes(10, 32, 32)
    for strength in range(10) if table is not None else (0,):
        for sign in (1, -1) if signed else (1,):
            magnitude = sign * float(table[strength]) if table is not None else 0.0
            out = OPERATIONS[name](x, sign * strength / 9)
            for image, ours in zip(x, out, strict=True):
                expected = THEIRS._apply_image_or_video_transform(
                    image, NAMES[name], magnitude, THEIRS.interpolation, THEIRS._fill
                )
                # magnitudes in float32 and float64 may round a pixel to either side
                difference = (ours.int() - expected.int()).abs()
                assert (difference > 1).float().mean() <= 0.001


def test_operations_happen_as_often_as_the_policy_says(monkeypatch):
    drawn = Counter()

    def counting(name):
        def count(x, strength):
            drawn[name, round(strength * 9)] += len(x)
            return x

        return count

    for name in OPERATIONS:
        monkeypatch.setitem(OPERATIONS, name, counting(name))
    images = 20_000
    auto_augment(torch.zeros(images, 3, 1, 1, dtype=torch.uint8), torch.Generator().manual_seed(0))
    expected = Counter()
    for name, tenths, strength in (operation for pair in POLICY for operation in pair):
        for sign in (1, -1) if name in SIGNED else (1,):
            expected[name, sign * strength] += images / 25 * tenths / 10 / (2 if name in SIGNED else 1)
    for key in expected | drawn:
        assert abs(drawn[key] - expected[key]) <= 4 * expected[key] ** 0.5, key


def test_the_generator_decides():
    x = images(64)
    first, again, other = (auto_augment(x, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(x, images(64))
    changed = (first != x).flatten(1).any(1).float().mean()
    assert 0.6 < changed < 1.0
