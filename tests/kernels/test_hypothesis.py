"""Any shape, memory order and parameters: the kernels equal the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stdl_engine.kernels import bits_of
from stdl_engine.kernels.bits.reference import pack
from stdl_engine.kernels.lif import lif_step_
from stdl_engine.kernels.surrogate import Rectangle, Triangle

from .compare import Case, Target, assert_equal, assert_same, run, run_online

positive = st.floats(0.05, 4.0)
shapes = st.lists(st.integers(0, 9), min_size=0, max_size=4).map(tuple)
parameters = st.fixed_dictionaries(
    {
        "decay": st.floats(0.0, 1.0),
        "threshold": positive,
        "scale": st.floats(-2.0, 2.0),
        "reset": st.sampled_from(["soft", "hard", "none"]),
        "reset_value": st.floats(-2.0, 2.0),
        "surrogate": st.builds(Triangle, positive) | st.builds(Rectangle, positive),
    }
)


def any_order(t: torch.Tensor, order: list[int]) -> torch.Tensor:
    """The same values, with dimensions laid out in memory in this order."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return t.permute(order).contiguous().permute(back)


def check(target: Target, data: st.DataObject) -> None:
    shape, options = data.draw(shapes), data.draw(parameters)
    torch.manual_seed(data.draw(st.integers(0, 2**16)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    case = Case.random(shape, dtype, target.device, threshold=options["threshold"])
    case = Case(*(any_order(t, data.draw(st.permutations(range(len(shape))))) for t in case))
    detach_reset = data.draw(st.booleans())
    exact = target.is_exact("triangle", dtype)
    assert_same(run_online(case, target, **options), run_online(case, **options), exact)
    detached = options | {"detach_reset": detach_reset}
    assert_same(run(case, target, **detached), run(case, **detached), exact)
    spikes = lif_step_(case.x, case.m_prev.clone(), backend=target.backend, **options)
    assert_equal(bits_of(spikes), pack(spikes))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_cpu(data):
    check(Target("cpu", "cpu"), data)


@pytest.mark.gpu
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_triton(data):
    check(Target("triton", "cuda" if torch.cuda.is_available() else "cpu"), data)
