"""Recordings that cannot be true are refused, and true ones in any form give the same frames."""

import numpy as np
import pytest

from stdl_engine.data.frames import check_split, integrate
from stdl_engine.data.recordings import Events, check_events, read_array, read_arrays

from .samples import random_events

COUNT = 12


def events(**changes) -> Events:
    values = {name: column.copy() for name, column in random_events(COUNT, 6, 9).items()}
    return Events(**{**values, **changes})


def with_value(name: str, place: int, value: float) -> dict[str, np.ndarray]:
    column = getattr(events(), name).astype(np.float64)
    column[place] = value
    return {name: column}


def test_true_recordings():
    check_events(events())
    for p in (np.ones(COUNT), np.zeros(COUNT, bool), -np.ones(COUNT), 2 * events().p - 1, events().p.astype(np.uint8)):
        check_events(events(p=p))
    check_events(events(t=np.zeros(COUNT)))  # all at one time
    check_events(events(t=np.sort(np.random.default_rng(0).random(COUNT))))  # seconds
    check_events(events(x=events().x.astype(np.float32)))
    check_events(events(t=events().t[::-1]), ordered=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": events().x[:-1]}, r"it has 12 t, 11 x, 12 y, 12 p: one is cut short"),
        ({"t": events().t[:, None]}, r"its t has shape \(12, 1\) and dtype int64 instead of one number per event"),
        ({"y": np.array(["1"] * COUNT)}, r"its y has shape \(12,\) and dtype <U1 instead of one number per event"),
        ({"p": np.array([None] * COUNT)}, r"its p has shape \(12,\) and dtype object"),
        ({name: getattr(events(), name)[:0] for name in "txyp"}, r"there are no events"),
        (with_value("x", 3, 2.5), r"its x is 2\.5 at event 3, which is not a whole number"),
        (with_value("x", 4, np.nan), r"its x is nan at event 4, which is not a number"),
        (with_value("y", 0, np.inf), r"its y is inf at event 0, which is not a number"),
        (with_value("t", 5, np.nan), r"its t is nan at event 5, which is not a number"),
        (with_value("p", 5, np.nan), r"its p is nan at event 5, which is not a number"),
        (with_value("y", 7, -1), r"its y is -1 at event 7, which is outside of every sensor"),
        ({"x": events().x - 100}, r"its x is -\d+ at event 0, which is outside of every sensor"),
        ({"p": np.arange(COUNT) % 3}, r"its polarities are 0, 1, 2 instead of 0 and 1 or -1 and 1"),
        ({"p": np.arange(COUNT) % 3 - 1}, r"its polarities are -1, 0, 1 instead of"),
        ({"p": np.arange(COUNT)}, r"its polarities are 0, 1, 2, 3, 4, \.\.\. instead of"),
        (with_value("p", 1, 0.5), r"its p is 0\.5 at event 1, which is not a whole number"),
        ({"t": np.array([1, 5, 9, 4, *range(10, 18)])}, r"its times go backwards from 9 to 4 at event 3; if they are"),
    ],
)  # fmt: skip
def test_recordings_that_cannot_be_true(changes, message):
    with pytest.raises(ValueError, match=rf"^{message}"):
        check_events(events(**changes))


def structured(names="txyp") -> np.ndarray:
    array = np.zeros(COUNT, [(name, np.int64) for name in names])
    for name, own in zip(names, "txyp", strict=True):
        array[name] = getattr(events(), own)
    return array


def assert_same(found: Events) -> None:
    for name in "txyp":
        assert np.array_equal(getattr(found, name), getattr(events(), name))


def test_arrays_in_any_form(tmp_path):
    columns = np.stack([getattr(events(), name) for name in "txyp"], axis=1)
    for number, (array, order) in enumerate(
        [
            (structured(), "txyp"),
            (structured(("timestamp", "x", "y", "polarity")), "txyp"),
            (columns, "txyp"),
            (columns.astype(np.float64), "txyp"),
            (np.asfortranarray(columns), "txyp"),
            (columns[:, [1, 2, 0, 3]], "xytp"),
        ]
    ):
        path = tmp_path / f"{number}.npy"
        np.save(path, array)
        assert_same(read_array(path, order))
        np.savez_compressed(tmp_path / "a.npz", events=array)
        assert_same(read_arrays(tmp_path / "a.npz", order))
    np.savez(tmp_path / "a.npz", **events()._asdict() | {"sensor": np.zeros(2), "notes": np.array(["a", "b"])})
    assert_same(read_arrays(tmp_path / "a.npz", "txyp"))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((5, 3)), r"it has shape \(5, 3\) instead of fields t, x, y and p or four columns"),
        (np.zeros(5), r"it has shape \(5,\) instead of"),
        (structured(("t", "x", "y", "z")), r"it has no p; its arrays must be t, x, y and p"),
        (structured(("t", "ts", "y", "x")), r"it has t and ts for t; its arrays must be"),
    ],
)
def test_arrays_in_no_form(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=rf"^{message}"):
        read_array(tmp_path / "a.npy", "txyp")


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_frames_of_equal_duration_are_spikingjellys(steps):
    from spikingjelly.datasets.utils import integrate_events_by_fixed_frames_number

    values = random_events(1003, 13, 17)
    expected = integrate_events_by_fixed_frames_number(values, "time", steps, 13, 17)
    found = integrate(values["x"], values["y"], values["p"], steps, 13, 17, values["t"])
    assert np.array_equal(found, expected)
    unsigned = integrate(values["x"], values["y"], values["p"], steps, 13, 17, values["t"].astype(np.uint32))
    assert np.array_equal(unsigned, expected)


@pytest.mark.parametrize(
    ("times", "frames"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], [1, 1, 1, 5]),  # 7 // 4 = 1 tick a frame, and the last takes the rest
        ([10, 10, 10, 10], [4, 0, 0, 0]),
        ([0, 100], [1, 0, 0, 1]),  # frames without events stay empty
        ([5, 6], [1, 1, 0, 0]),  # a duration of less than a tick a frame
        ([0.0, 0.25, 0.5, 0.75, 1.0], [1, 1, 1, 2]),  # seconds
        ([7.5, 7.5], [2, 0, 0, 0]),
    ],
)
def test_frames_of_equal_duration(times, frames):
    zeros = np.zeros(len(times), int)
    found = integrate(zeros, zeros, zeros, 4, 1, 1, np.array(times))
    assert found.sum((1, 2, 3)).tolist() == frames


def test_words_for_a_split():
    assert [check_split(word) for word in ("number", "count", "time")] == ["number", "number", "time"]
    with pytest.raises(ValueError, match=r"^split_by is 'events': choose \"number\" .* or \"time\"\.$"):
        check_split("events")
