"""Layouts: any strides give the right numbers, and operands that share a dense layout are used where they are."""

import pytest
import torch

from stdl_engine.kernels import layout, steps
from stdl_engine.kernels.lif import lif_step_, reference

from .compare import Case, assert_equal, assert_same, run, run_online

SHAPE = (2, 6, 5, 4)

LAYOUTS = {
    "contiguous": torch.clone,
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "permuted": lambda t: t.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    "sliced": lambda t: torch.stack([t, t + 1], dim=-1)[..., 0],
    "offset": lambda t: torch.cat([t.flatten()[:3], t.flatten()])[3:].view(t.shape),
}


@pytest.fixture
def copies(monkeypatch) -> list[bool]:
    """For each operand a kernel took, whether it was copied."""
    seen = []

    def spy(t, pattern):
        found = layout.like(t, pattern)
        seen.append(found is not t)
        return found

    monkeypatch.setattr(steps, "like", spy)
    return seen


@pytest.mark.parametrize("of_state", LAYOUTS)
@pytest.mark.parametrize("of_input", LAYOUTS)
def test_any_strides(target, of_input, of_state):
    plain = Case.random(SHAPE, torch.float32, target.device)
    case = Case(*(LAYOUTS[name](t) for name, t in zip([of_input, of_state, of_state, of_input], plain, strict=True)))
    assert_same(run(case, target), run(plain))
    if of_state != "sliced":  # a state with gaps is refused
        assert_same(run_online(case, target), run_online(plain))


@pytest.mark.parametrize("name", ["channels_last", "permuted", "offset"])
def test_shared_layout_is_kept_without_a_copy(target, copies, name):
    case = Case.random(SHAPE, torch.float32, target.device).map(LAYOUTS[name])
    for result in (run(case, target), run_online(case, target)):
        for t in result:
            assert t is None or t.stride() == case.x.stride()
    assert len(copies) == 1 + 3 + 2 + 1  # the operands of two forwards and two backwards, the pattern itself apart
    assert not any(copies)


def test_strides_of_single_elements_do_not_matter(target, copies):
    """A convolution may give a batch of one, or one channel, any stride there."""
    case = Case.random((1, 3, 1, 5), torch.float32, target.device)
    odd = case.map(lambda t: t.as_strided(t.shape, (999, 5, 77, 1)))
    assert_same(run(odd._replace(x=case.x), target), run(case))
    assert_same(run(case._replace(x=odd.x), target), run(case))
    assert not any(copies)


def test_expanded_input(target):
    """Stride 0, as the gradient of a sum has it."""
    x = torch.randn(1, 5, device=target.device).expand(4, 5)
    case = Case.random((4, 5), torch.float32, target.device)._replace(x=x, grad_spikes=-x)
    assert_same(run(case, target), run(case))
    assert_same(run_online(case, target), run_online(case))


def test_online_state_is_updated_where_it_is(target):
    """A state that is a view: its memory changes, its neighbours do not."""
    buffer = torch.zeros(3, 10, device=target.device)
    x = torch.randn(10, device=target.device)
    expected = torch.zeros_like(x)
    reference.lif_step_(x, expected)
    lif_step_(x, buffer[1], backend=target.backend)
    assert_equal(buffer, torch.stack([torch.zeros_like(x), expected, torch.zeros_like(x)]))


@pytest.mark.parametrize("name", LAYOUTS)
def test_is_dense(name):
    t = LAYOUTS[name](torch.randn(SHAPE))
    assert layout.is_dense(t) == (name != "sliced")


@pytest.mark.parametrize(
    ("size", "stride", "dense"),
    [
        ((), (), True),
        ((0, 3), (7, 7), True),
        ((1, 4), (100, 1), True),
        ((4, 3), (1, 4), True),
        ((4, 3), (0, 1), False),
        ((4, 3), (1, 5), False),
        ((2, 2), (1, 1), False),
    ],
)
def test_is_dense_by_strides(size, stride, dense):
    assert layout.is_dense(torch.empty(100).as_strided(size, stride)) == dense
