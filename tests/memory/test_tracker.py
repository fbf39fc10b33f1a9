"""The tracker on its own and in training: what is alive, who keeps it, and where in the step it was."""

import contextlib
import functools
import itertools
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stdl_engine.memory.tracker import (
    CudaTracker,
    Place,
    Tracker,
    identity,
    is_tracking,
    mark,
    note_saved,
)
from stdl_engine.models import build_model
from stdl_engine.planning.flow import Flow
from stdl_engine.planning.planner import measure
from stdl_engine.rules import BPTT, SLTT, STDL

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


@pytest.fixture(params=["real", "fake"])
def _tensors(request):
    if request.param == "real":
        yield
    else:
        with FakeTensorMode():
            yield


@pytest.mark.usefixtures("_tensors")
class TestBytes:
    def test_trace_is_every_change(self):
        with Tracker(trace=True) as tracker:
            a = torch.empty(1000)
            b = a.to(torch.bfloat16)
            del a
            c = torch.empty(10, dtype=torch.int64)
            del b, c
        assert [event.bytes for event in tracker.trace] == [4000, 6000, 2000, 2080, 80, 0]
        assert (tracker.peak, tracker.current) == (6000, 0)

    def test_no_trace_unless_asked_for(self):
        with Tracker() as tracker:
            torch.empty(10)
        assert tracker.trace is None

    def test_written_in_place_is_nothing_new(self):
        with Tracker(trace=True) as tracker:
            a = torch.zeros(100)
            a.add_(1).mul_(2)[3:].zero_()
        assert [event.bytes for event in tracker.trace] == [400]

    def test_operators_with_several_results(self):
        a = torch.empty(8, 100)
        with Tracker() as tracker:
            tracker.follow([a])
            values, places = a.max(1)
            parts = a.split(2)
        assert tracker.current == a.nbytes + values.nbytes + places.nbytes
        assert len(parts) == 4

    def test_a_storage_dies_with_its_last_view(self):
        with Tracker() as tracker:
            a = torch.empty(100)
            view = a[50:]
            del a
            assert tracker.current == 400  # all of it, not the half that is seen
            del view
            assert tracker.current == 0

    def test_followed_tensors_count_from_the_start_and_once(self):
        before, other = torch.empty(1000), torch.empty(10)
        tracker = Tracker()
        tracker.follow([before, before[5:], before.view(10, 100)])
        assert tracker.current == tracker.peak == 4000
        with tracker:
            doubled = before * 2
        assert tracker.peak == 8000
        assert tracker.alive() == {identity(before): 4000, identity(doubled): 4000}
        del before
        assert tracker.current == 4000  # the tensors of this test outlive the context, and are still followed
        assert other.nbytes == 40

    def test_empty_tensors(self):
        with Tracker() as tracker:
            a, b = torch.empty(0), torch.empty(3, 0, 2)
        assert tracker.peak == 0
        assert a.nbytes == b.nbytes == 0

    def test_two_trackers_count_each_its_own(self):
        with Tracker() as outer:
            a = torch.empty(10)
            with Tracker() as inner:
                b = torch.empty(100)
        assert (outer.peak, inner.peak) == (440, 400)
        assert a.nbytes + b.nbytes == 440

    def test_graph_of_autograd(self):
        """What a graph saves is alive until its backward, and not after it."""
        weight = torch.ones(100, requires_grad=True)
        with Tracker() as tracker:
            tracker.follow([weight])
            loss = (weight.exp() * 2).sum()  # saves exp's result
            assert tracker.current == 400 + 400 + 4
            loss.backward()
            assert tracker.current == 400 + 400 + 4  # the gradient in its place
            weight.grad = None
            assert tracker.current == 400 + 4

    def test_callbacks(self):
        peaks, changes = [], []
        tracker = Tracker(at_peak=lambda t: peaks.append(t.peak), on_change=lambda t: changes.append(t.current))
        with tracker:
            a = torch.empty(10)
            del a
            b = torch.empty(5)
            c = torch.empty(10)
        assert changes == [40, 0, 20, 60]
        assert peaks == [40, 60]
        assert b.nbytes + c.nbytes == 60


@pytest.mark.parametrize(
    "options", [{}, {"trace": True}, {"at_peak": lambda t: t.alive()}], ids=["plain", "trace", "at_peak"]
)
def test_holds_no_tensor_alive(options):
    with Tracker(**options) as tracker:
        tensor = torch.randn(1000, requires_grad=True)
        result = (tensor * 2).exp()
        note_saved(result)
        watched = [weakref.ref(t) for t in (tensor, result, result.untyped_storage())]
        del result, tensor
        assert [reference() for reference in watched] == [None, None, None]
        assert (tracker.current, tracker.saved()) == (0, set())


def test_holds_no_model_alive():
    model = build_model("vgg11", width=0.0625)
    watched = [weakref.ref(p) for p in model.parameters()]
    tracker = Tracker()
    tracker.follow(model.parameters())
    with tracker:
        model(torch.randn(2, 3, 16, 16))
        del model
    assert {reference() for reference in watched} == {None}
    assert tracker.current == 0


def test_what_is_saved():
    with Tracker() as tracker:
        a, b = torch.zeros(10), torch.zeros(20)
        note_saved(a)
        assert tracker.saved() == {identity(a)}
        note_saved(torch.zeros(10)[2:])  # gone again at once
        assert tracker.saved() == {identity(a)}
        del a
        assert tracker.saved() == set()
    assert b.nbytes == 80


def test_in_force_only_inside_and_after_an_error_no_more():
    assert not is_tracking()
    with contextlib.suppress(KeyError), Tracker():
        assert is_tracking()
        raise KeyError
    assert not is_tracking()
    mark(step=3)  # nobody listens
    note_saved(torch.zeros(3))


def test_marks_stay_until_changed():
    with Tracker(trace=True) as tracker:
        mark(step=1, subnetwork=2, unit="a", phase="forward")
        a = torch.zeros(1)
        mark(unit="b")
        b = torch.zeros(1)
        mark(unit=None, phase="backward")
        del a
    assert [event.place for event in tracker.trace] == [
        Place(1, 2, "a", "forward"), Place(1, 2, "b", "forward"), Place(1, 2, None, "backward"),
    ]  # fmt: skip
    assert tracker.peak_place == Place(1, 2, "b", "forward")
    assert b.nbytes == 4


def traced(rule, x, y, T):
    """The trace of a step, its units named by their place ("1.0": first unit of the second subnetwork)."""
    names = [[stage.name for stage in Flow(part, lean=rule.memory == "lean").stages] for part in rule.subnetworks]
    with Tracker(trace=True) as tracker:
        rule.step(x, y, T)
    return names, tracker


def visited(tracker):
    """(step, subnetwork, phase, unit) in the order in which the trace comes by them."""
    places = [(e.place.step, e.place.subnetwork, e.place.phase, e.place.unit) for e in tracker.trace]
    return [place for place, _ in itertools.groupby(places) if place[3] is not None]


def made(kind, memory, **options):
    x, y = torch.randn(4, 3, 8, 8), torch.arange(4)
    return kind(build_model("resnet18", width=0.0625), SGD, x, memory=memory, **options), x, y


@pytest.mark.parametrize("memory", ["lean", "paper"])
def test_a_local_rule_goes_forward_and_back_through_each_subnetwork_in_every_step(memory):
    """With the order of units given backwards in backward: a wrong label would be out of order."""
    rule, x, y = made(STDL, memory, budget="published", order="subnetwork")
    names, tracker = traced(rule, x, y, 2)
    expected = []
    for number in range(3):
        own = names[number]
        for step in range(2):
            expected += [(step, number, "forward", name) for name in own]
            expected += [(step, number, "backward", name) for name in reversed(own)]
    assert visited(tracker) == expected
    phases = [phase for phase, _ in itertools.groupby(e.place.phase for e in tracker.trace if e.place.subnetwork == 1)]
    assert phases == ["forward", "backward"] * 2 + ["optimizer"]


def test_time_major_visits_every_subnetwork_in_each_step():
    rule, x, y = made(STDL, "paper", budget="published")
    names, tracker = traced(rule, x, y, 2)
    seen = visited(tracker)
    for number, own in enumerate(names):
        for step, name, phase in itertools.product(range(2), own, ("forward", "backward")):
            assert (step, number, phase, name) in seen
    assert [step for step, _ in itertools.groupby(place[0] for place in seen)] == [0, 1]


def test_sltt_goes_back_in_every_step():
    rule, x, y = made(SLTT, "lean")
    (names,), tracker = traced(rule, x, y, 2)
    forth = [(step, 0, "forward", name) for step in range(2) for name in names]
    back = [(step, 0, "backward", name) for step in range(2) for name in reversed(names)]
    count = len(names)
    assert visited(tracker) == forth[:count] + back[:count] + forth[count:] + back[count:]


@pytest.mark.parametrize("memory", ["lean", "paper"])
def test_bptt_goes_back_through_time(memory):
    """Backward is after the last step, and each part of it belongs to the step whose forward it undoes."""
    rule, x, y = made(BPTT, memory)
    (names,), tracker = traced(rule, x, y, 3)
    forth = [(step, 0, "forward", name) for step in range(3) for name in names]
    back = [(step, 0, "backward", name) for step in reversed(range(3)) for name in reversed(names)]
    seen = visited(tracker)
    assert seen[: len(forth)] == forth
    # Losses of all steps go back through the head first.
    units = [place for place in seen[len(forth) :] if place[3] != names[-1]]
    assert units == [place for place in back if place[3] != names[-1]]


def test_a_trace_changes_no_peak():
    rule, x, y = made(STDL, "lean", budget="published")
    rule.step(x, y, 1)
    with Tracker() as plain:
        rule.step(x, y, 2)
    _, tracker = traced(rule, x, y, 2)
    assert tracker.peak == plain.peak


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestCuda:
    def test_peak_and_current(self):
        with CudaTracker() as tracker:
            before = tracker.current
            a = torch.zeros(1 << 20, device="cuda")
            assert tracker.current == before + a.nbytes
            b = a + 1
            del a, b
            assert tracker.current == before
        assert tracker.peak == before + 2 * 4 * (1 << 20)

    def test_agrees_with_following_storages(self):
        """The allocator rounds up to 512 bytes; sizes here are multiples of that."""
        x = torch.zeros(1 << 16, device="cuda")
        torch.cuda.synchronize()
        at_start = torch.cuda.memory_allocated()
        with CudaTracker() as cuda, Tracker() as tracker:
            total = x
            for _ in range(3):
                total = total * 2 + x
            del total
        assert tracker.peak - x.nbytes <= cuda.peak - at_start <= tracker.peak


def test_a_slice_of_a_dataset_is_not_the_dataset():
    data = torch.randn(1000, 4)
    tracker = Tracker()
    tracker.follow([data[10:20], data[30:40]])  # one storage, counted once
    assert tracker.current == 10 * 4 * 4
    with tracker:
        part = data[50:60]
        total = part + 1
    assert tracker.current == 2 * 10 * 4 * 4
    del part, total


def test_a_measured_step_on_a_slice():
    x, y = torch.randn(64, 3, 8, 8), torch.randint(10, (64,))
    peaks = []
    for images, labels in ((x[8:12], y[8:12]), (x[8:12].clone(), y[8:12].clone())):
        torch.manual_seed(0)
        rule = SLTT(build_model("resnet18", width=0.0625), SGD, images)
        peaks.append(measure(rule, images, labels, 2).peak_bytes)
    assert peaks[0] == peaks[1]
