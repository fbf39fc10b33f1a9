"""The tracker: every storage from birth to death, once, and held by nobody."""

import functools
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stdl_engine.memory.tracker import CudaTracker, Tracker, mark
from stdl_engine.models import build_model
from stdl_engine.rules import STDL
from stdl_engine.units import label_of


@pytest.fixture(params=["real", "fake"])
def tensors(request):
    if request.param == "real":
        yield
    else:
        with FakeTensorMode():
            yield


@pytest.mark.usefixtures("tensors")
def test_peak_and_current():
    with Tracker() as tracker:
        a = torch.zeros(1000)
        b = a + 1
        assert tracker.current == 8000
        del a
        assert tracker.current == 4000
        c = b * 2
        del b, c
    assert tracker.peak == 8000
    assert tracker.current == 0


@pytest.mark.usefixtures("tensors")
def test_views_count_once():
    with Tracker() as tracker:
        a = torch.zeros(10, 10)
        views = [a.t(), a[2:], a.view(-1), a.detach()]
        assert tracker.current == 400
        del a
        assert tracker.current == 400
        del views
    assert tracker.current == 0


def test_nothing_is_held_alive():
    with Tracker(trace=True):
        a = torch.zeros(1000)
        alive = weakref.ref(a.untyped_storage())
        del a
        assert alive() is None


def test_tensors_made_before():
    a = torch.zeros(1000)
    tracker = Tracker()
    tracker.follow([a, a.view(10, 100)])
    with tracker:
        assert tracker.current == 4000
        del a
        assert tracker.current == 0


def test_places():
    with Tracker(trace=True) as tracker:
        mark(step=1, phase="forward")
        a = torch.zeros(10)
        mark(phase="backward")
        b = torch.zeros(100)
    assert [(e.place.step, e.place.phase, e.bytes) for e in tracker.trace] == [(1, "forward", 40), (1, "backward", 440)]
    assert tracker.peak_place.phase == "backward"
    assert a.numel() + b.numel() == 110


def test_trace_of_a_training_step():
    """Forward and backward of every unit appear under its name, in its subnetwork and time step."""
    model = build_model("resnet18", width=0.0625)
    x, y = torch.randn(4, 3, 16, 16), torch.randint(10, (4,))
    rule = STDL(model, functools.partial(torch.optim.SGD, lr=0.1), x, budget="published")
    with Tracker(trace=True) as tracker:
        rule.step(x, y, 2)
    places = [e.place for e in tracker.trace if e.place.unit]
    seen = {(p.step, p.subnetwork, p.phase, p.unit.partition(".")[0]) for p in places}
    for number, part in enumerate(rule.subnetworks):
        for place, unit in enumerate((*part.units, *part.classifier_layers())):
            for phase in ("forward", "backward"):
                for step in range(2):
                    assert (step, number, phase, f"{place}:{label_of(unit)}") in seen


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda():
    with CudaTracker() as tracker:
        before = tracker.current
        a = torch.zeros(1 << 20, device="cuda")
        del a
    assert tracker.peak == before + 4 * (1 << 20)
