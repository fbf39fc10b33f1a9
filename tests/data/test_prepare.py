"""Augmentation of whole batches against the same thing done to one sample at a time."""

import pytest
import torch
from torch.nn import functional

from stdl_engine.data.prepare import Preparation, cutout, random_crop


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(batch: int = 40, channels: int = 3, height: int = 9, width: int = 11) -> torch.Tensor:
    """No pixel is zero, so that padding shows."""
    return torch.randint(1, 256, (batch, channels, height, width), generator=generator(1), dtype=torch.uint8)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("size", "pad"), [((9, 11), 2), ((9, 11), 0), ((5, 4), 0), ((6, 11), 1)])
def test_every_crop_is_a_window_of_the_padded_image(size, pad, flip):
    x = images()
    out = random_crop(x, size, pad, flip, generator())
    assert out.shape == (40, 3, *size)
    assert out.dtype == torch.uint8
    padded = functional.pad(x, [pad] * 4)
    found = set()
    for sample, crop in zip(padded, out, strict=True):
        windows = sample.unfold(1, size[0], 1).unfold(2, size[1], 1)  # [C, places, places, h, w]
        places = [
            (mirrored, *place)
            for mirrored, content in ((False, crop), (True, crop.flip(-1)))
            for place in (windows == content[:, None, None]).all(-1).all(-1).all(0).nonzero().tolist()
        ]
        assert len(places) == 1
        found.add(tuple(places[0]))
    mirrorings, rows, columns = (set(values) for values in zip(*found, strict=True))
    assert mirrorings == ({False, True} if flip else {False})
    assert rows == set(range(9 + 2 * pad - size[0] + 1))
    assert columns == set(range(11 + 2 * pad - size[1] + 1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_crop_is_the_same_in_any_layout(layout):
    x = images()
    out = random_crop(x.contiguous(memory_format=layout), (9, 11), 3, True, generator())
    assert torch.equal(out, random_crop(x, (9, 11), 3, True, generator()))


def test_frames_of_a_sequence_move_together():
    x = images(batch=20)[:, None].expand(20, 4, 3, 9, 11)
    out = Preparation(pad=3, flip=True)(x, generator())
    assert out.shape == (20, 4, 3, 9, 11)
    assert torch.equal(out, out[:, :1].expand_as(out))
    assert not torch.equal(out[:, 0], x[:, 0].float())
    assert torch.equal(out[:, 0], Preparation(pad=3, flip=True)(x[:, 0], generator()))


@pytest.mark.parametrize("side", [1, 4, 5, 40])
def test_cutout_is_one_square(side):
    x = cutout(torch.ones(64, 2, 13, 10), side, generator())
    assert torch.equal(x[:, 0], x[:, 1])
    centres = set()
    for hole in x[:, 0] == 0:
        rows, columns = hole.any(1).nonzero().squeeze(1), hole.any(0).nonzero().squeeze(1)
        assert hole.sum() == len(rows) * len(columns)  # a filled rectangle
        for places, length in ((rows, 13), (columns, 10)):
            assert places[-1] - places[0] + 1 == len(places) <= side
            if places[0] > 0 and places[-1] < length - 1:
                assert len(places) == side
        centres.add((rows[0].item(), columns[0].item()))
    assert (len(centres) == 1) == (side == 40)  # a hole larger than the image is all of it


def test_normalises_bytes_as_fractions():
    x = images()
    mean, std = (0.1, 0.5, 0.7), (0.2, 0.3, 0.4)
    expected = (x.double() / 255 - torch.tensor(mean, dtype=torch.float64)[:, None, None]) / torch.tensor(
        std, dtype=torch.float64
    )[:, None, None]
    out = Preparation(mean=mean, std=std)(x, None)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(Preparation(mean=mean, std=std)(x.float() / 255, None), out, rtol=2e-6, atol=2e-6)


def test_without_a_generator_nothing_is_random():
    x = images(height=12, width=12)
    everything = Preparation(size=(6, 8), pad=2, flip=True, policy=True, cutout=4)
    assert torch.equal(everything(x, None), x[:, :, 3:9, 2:10].float())
    centred = Preparation(size=(6, 8), centred=True)
    assert torch.equal(centred(x, generator()), x[:, :, 3:9, 2:10].float())


def test_the_source_is_never_written_to():
    x = images(height=32, width=32).float()
    before = x.clone()
    Preparation(mean=(1.0,) * 3, std=(2.0,) * 3, cutout=9)(x, generator())
    assert torch.equal(x, before)


def test_images_come_in_channels_last():
    assert Preparation(pad=1)(images(), generator()).is_contiguous(memory_format=torch.channels_last)
    assert Preparation()(images(), None).is_contiguous(memory_format=torch.channels_last)
    assert Preparation()(images()[:, None], None).is_contiguous()
