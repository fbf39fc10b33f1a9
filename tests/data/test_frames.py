"""Integration of events against counting them one by one."""

import numpy as np
import pytest
import torch

from stdl_engine.data.frames import integrate
from stdl_engine.data.recordings import read_bin, read_text

from .samples import counted, random_events


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize("count", [1, 2, 6, 7, 500, 503])
def test_integration(steps, count):
    events = random_events(count, 5, 9, seed=count)
    frames = integrate(events["x"], events["y"], events["p"], steps, 5, 9)
    assert torch.equal(torch.from_numpy(frames).float(), counted(events, steps, 5, 9))
    assert frames.sum() == count
    share = [count // steps] * (steps - 1)
    assert frames.sum((1, 2, 3)).tolist() == [*share, count - sum(share)]


def test_integration_is_spikingjellys():
    from spikingjelly.datasets.utils import integrate_events_by_fixed_frames_number

    events = random_events(1003, 13, 17)
    expected = integrate_events_by_fixed_frames_number(events, "number", 4, 13, 17)
    assert np.array_equal(integrate(events["x"], events["y"], events["p"], 4, 13, 17), expected)


def test_small_integers_do_not_overflow():
    """Coordinates come in bytes, and 33 · 34 does not fit in one."""
    x = np.full(300, 33, np.uint8)
    frames = integrate(x, x, np.ones(300, np.uint8), 1, 34, 34)
    assert frames[0, 1, 33, 33] == 300
    assert frames.sum() == 300


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([], [], "there are no events"),
        ([0, 9], [0, 0], r"events lie from \(0, 0\) to \(9, 0\), outside 9 × 5 pixels"),
        ([0, 1], [5, 0], r"events lie from \(0, 0\) to \(1, 5\), outside 9 × 5 pixels"),
        ([-1, 1], [0, 0], r"events lie from \(-1, 0\)"),
    ],
)
def test_events_that_are_not_on_the_sensor(x, y, message):
    with pytest.raises(ValueError, match=message):
        integrate(np.array(x, int), np.array(y, int), np.zeros(len(x), int), 2, 5, 9)


def test_40_bits_an_event(tmp_path):
    # x = 18, y = 5, p = 1, t = 0x012345; x = 33, y = 0, p = 0, t = 0x7FFFFF
    (tmp_path / "a.bin").write_bytes(bytes([18, 5, 0x81, 0x23, 0x45, 33, 0, 0x7F, 0xFF, 0xFF]))
    t, x, y, p, _ = read_bin(tmp_path / "a.bin")
    assert (t.tolist(), x.tolist(), y.tolist(), p.tolist()) == ([0x012345, 0x7FFFFF], [18, 33], [5, 0], [1, 0])
    (tmp_path / "a.bin").write_bytes(bytes(9))
    with pytest.raises(ValueError, match="its 9 bytes are not a multiple of the 5 of an event"):
        read_bin(tmp_path / "a.bin")


def test_a_line_an_event(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("1000 3 127 1\n1005 0 64 0\n1007 9 1 -1\n")
    t, x, y, p, _ = read_text(path)
    assert (t.tolist(), x.tolist(), y.tolist(), p.tolist()) == ([1000, 1005, 1007], [3, 0, 9], [127, 64, 1], [1, 0, 0])
    path.write_text("1000 3 127 1\n")
    assert read_text(path).x.tolist() == [3]
    for content, message in (
        ("", "there are no events"),
        ("1 2 3\n", "its lines have 3 columns instead of t x y p"),
        ("1 2 3 1\n1 2 3 2\n", "its p is 2 at event 1, which is neither 1 nor 0 nor -1"),
        ("1 2 3 1\n1 2\n", "columns"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_text(path)
