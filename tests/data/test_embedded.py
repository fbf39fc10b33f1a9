"""The digits: what they are, and that moving them before a camera gives the events it should."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from stdl_engine.data import Batches, load_dataset
from stdl_engine.data.embedded import _along_loop, _log_intensity, _record

from .samples import all_of, assert_same_dataset


@pytest.fixture(scope="module")
def events():
    return load_dataset("digits-events", steps=5)


@pytest.mark.parametrize("size", [16, 32])
def test_digits(size):
    data = load_dataset("digits", size=size)
    assert (data.name, data.num_classes, data.in_shape, data.events) == ("digits", 10, (1, size, size), False)
    assert (len(data.train), len(data.test)) == (1500, 297)
    shares = data.test.labels.bincount() / torch.cat([data.train.labels, data.test.labels]).bincount()
    torch.testing.assert_close(shares, torch.full((10,), 297 / 1797), atol=0.004, rtol=0)
    x, y = all_of(data.train, 500)
    assert x.shape == (1500, 1, size, size)
    assert abs(x.mean()) < 1e-4
    assert abs(x.std() - 1) < 1e-4
    assert torch.equal(y, data.train.labels)


def test_no_digit_is_in_both_sets_and_none_is_lost():
    data = load_dataset("digits")
    train, test = (
        {(image.numpy().tobytes(), label) for image, label in zip(source.samples, source.labels.tolist(), strict=True)}
        for source in (data.train, data.test)
    )
    assert not train & test
    original = load_digits()
    distinct = {(image.tobytes(), label) for image, label in zip(original.images, original.target, strict=True)}
    assert len(train | test) == len(distinct)


def test_digits_can_be_told_apart():
    """The mean of its class is nearest for most test digits, so images and labels belong together."""
    data = load_dataset("digits")
    (x, y), (x_test, y_test) = all_of(data.train, 1500), all_of(data.test, 297)
    means = torch.stack([x[y == digit].mean(0) for digit in range(10)]).flatten(1)
    assert (torch.cdist(x_test.flatten(1), means).argmin(1) == y_test).float().mean() > 0.85


def test_shifts_are_the_augmentation():
    shifted, still = (
        next(Batches(load_dataset("digits", augment=augment).train, batch_size=100, training=True).epoch(0))
        for augment in ("paper", "none")
    )
    assert torch.equal(shifted[1], still[1])
    same = (shifted[0] == still[0]).flatten(1).all(1)
    assert 0 < same.sum() < 30  # one of 9 shifts is none


def test_events(events):
    assert (events.num_classes, events.in_shape, events.events) == (10, (2, 16, 16), True)
    assert (len(events.train), len(events.test)) == (1500, 297)
    x, y = all_of(events.test, 100)
    assert x.shape == (5, 297, 2, 16, 16)
    counts = x.sum((2, 3, 4))
    assert (counts[:-1] == counts[0]).all()  # equally many events a frame, the rest in the last
    assert ((counts[-1] - counts[0] >= 0) & (counts[-1] - counts[0] < 5)).all()
    assert (counts[0] > 100).all()
    assert torch.equal(y, load_dataset("digits").test.labels)


def test_events_are_the_same_every_time(events):
    assert_same_dataset(events, load_dataset("digits-events", steps=5))


def test_the_loop_is_closed_and_smooth():
    loop = _along_loop(48)
    assert loop.shape == (49, 2)
    torch.testing.assert_close(loop[0], loop[-1], atol=1e-6, rtol=0)
    assert (loop[1:] - loop[:-1]).norm(dim=1).max() < 0.06
    assert 1 < loop.abs().max() * 8 <= 4  # a few pixels of 16


def test_the_camera_against_pixels_followed_one_by_one():
    """Each pixel holds the level of its last event; events bring it to within a threshold of what it sees."""
    images = load_dataset("digits").test.samples[:2, 0]
    frames = _record(images, 1, positions=12, threshold=0.15)[:, 0]
    seen = np.stack([_log_intensity(images, shift) for shift in _along_loop(12)])
    expected = torch.zeros(2, 2, 16, 16, dtype=torch.int64)
    for n in range(2):
        for y in range(16):
            for x in range(16):
                level = float(seen[0, n, y, x])
                for now in seen[1:, n, y, x]:
                    while now - level >= 0.15 - 1e-5:
                        level += 0.15
                        expected[n, 1, y, x] += 1
                    while level - now >= 0.15 - 1e-5:
                        level -= 0.15
                        expected[n, 0, y, x] += 1
    assert torch.equal(frames.long(), expected)
    assert expected.sum() > 200


def test_polarity_is_the_direction_of_change():
    """After the whole loop the image is where it began, so positive and negative thresholds cancel in each pixel."""
    images = load_dataset("digits").test.samples[:20, 0]
    frames = _record(images, 1)[:, 0].int()
    assert torch.equal(frames[:, 1], frames[:, 0])
    assert frames.sum() > 20_000
    moving_right = _log_intensity(torch.eye(16)[None], torch.tensor([0.125, 0.0]))
    assert np.array_equal(moving_right[0, :, :-1] > -1, torch.eye(16).roll(-1, 1)[:, :-1].bool().numpy())
    assert math.isclose(moving_right.min(), math.log(0.1), rel_tol=1e-5)


def test_bad_options():
    with pytest.raises(ValueError, match=r"^size is 8: the digits come in 16 or 32 pixels\.$"):
        load_dataset("digits", size=8)
    with pytest.raises(ValueError, match=r"^augment is 'much': choose from paper, light, none\.$"):
        load_dataset("digits", augment="much")
    with pytest.raises(ValueError, match=r"^digits has no option 'sise': its options are augment, size\.$"):
        load_dataset("digits", sise=16)
    with pytest.raises(ValueError, match=r"^unknown dataset 'digit': choose from digits, "):
        load_dataset("digit")
    with pytest.raises(ValueError, match=r'^on_bad_sample is \'warn\': choose "stop" or "skip"\.$'):
        load_dataset("digits", on_bad_sample="warn")
    with pytest.raises(ValueError, match=r"^steps is 0: the number of time steps must be a whole number from 1 up\.$"):
        load_dataset("digits", steps=0)
