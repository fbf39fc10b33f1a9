"""Bad input: one sentence that says what is wrong and what to do."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stdl_engine.kernels import dispatch
from stdl_engine.kernels.lif import lif_step_

from .every_neuron import NEURONS, every_neuron


def steps_with(option: str) -> pytest.MarkDecorator:
    """Run a test with every `step`, by its name, of a neuron that has this option."""
    names = [
        f"{neuron}_{form}"
        for neuron in NEURONS
        for form in ("step", "step_")
        if option in neuron.options | neuron.variants[neuron.default]
    ]
    return pytest.mark.parametrize("step", names)


steps = steps_with("threshold")  # which all have
backends = pytest.mark.parametrize("backend", ["auto", "cpu", "reference"])


def call(step: str, x: torch.Tensor, state: torch.Tensor, **options):
    """A function by its name, with the same state as often as it takes one."""
    (neuron,) = (neuron for neuron in NEURONS if step in (f"{neuron}_step", f"{neuron}_step_"))
    learned = [torch.zeros(1, device=x.device)] if neuron.learned else []
    states = [state.detach().clone().requires_grad_(state.requires_grad) for _ in range(neuron.states)]
    return (neuron.step_ if step.endswith("_") else neuron.step)(x, *states, *learned, **options)


def refuses(error: type[Exception], message: str, step, *args, **options) -> None:
    with pytest.raises(error) as raised:
        call(step, *args, **options) if isinstance(step, str) else step(*args, **options)
    assert str(raised.value) == message
    assert message.count(". ") == 0, "one sentence"


def zeros(n: int = 3, **options) -> torch.Tensor:
    return torch.zeros(n, **options)


@steps
@backends
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.complex64, torch.float8_e5m2], ids=str)
def test_input_dtype(step, backend, dtype):
    refuses(
        TypeError,
        f"the input's dtype is {dtype}: pass float32, float16, bfloat16 or float64, for example x.float().",
        step, zeros(dtype=dtype), zeros(), backend=backend,
    )  # fmt: skip


@steps
@backends
@pytest.mark.parametrize(
    ("of_input", "of_state", "needed"),
    [
        (torch.float32, torch.float16, torch.float32),
        (torch.float32, torch.float64, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.float32),
        (torch.float64, torch.float32, torch.float64),
        (torch.float32, torch.int64, torch.float32),
    ],
    ids=str,
)
def test_state_dtype(step, backend, of_input, of_state, needed):
    refuses(
        TypeError,
        f"the state's dtype is {of_state}, {of_input} input needs {needed}: pass m.to({needed}).",
        step, zeros(dtype=of_input), zeros(dtype=of_state), backend=backend,
    )  # fmt: skip


@steps
@backends
@pytest.mark.parametrize("shape", [(4,), (1,), (), (3, 1), (1, 3)], ids=str)
def test_mismatched_shapes(step, backend, shape):
    """None is broadcast: that would be another number of neurons."""
    refuses(
        ValueError,
        f"the state has shape {shape}, the input (3,): reset the state when the shape changes.",
        step, zeros(), torch.zeros(shape), backend=backend,
    )  # fmt: skip


@steps
def test_mismatched_devices(step):
    refuses(
        ValueError,
        "the state is on meta, the input on cpu: move one to the other.",
        step, zeros(), zeros(device="meta"),
    )  # fmt: skip


@steps
@backends
@pytest.mark.parametrize("threshold", [0.0, -1.0, float("nan"), float("inf")])
def test_threshold(step, backend, threshold):
    message = f"threshold is {threshold}: it must be positive and finite, for example 1.0."
    refuses(ValueError, message, step, zeros(), zeros(), threshold=threshold, backend=backend)


@steps_with("decay")
@backends
@pytest.mark.parametrize("decay", [-0.1, 1.1, float("nan"), float("inf")])
def test_decay(step, backend, decay):
    message = f"decay is {decay}: it must be between 0 (no memory) and 1 (no leak), for example 0.1."
    refuses(ValueError, message, step, zeros(), zeros(), decay=decay, backend=backend)


@steps_with("reset")
@backends
def test_unknown_reset(step, backend):
    message = "unknown reset 'zero': pass one of soft, hard, none."
    refuses(ValueError, message, step, zeros(), zeros(), reset="zero", backend=backend)


@steps
@backends
def test_unknown_surrogate(step, backend):
    message = (
        "unknown surrogate 'step': pass one of triangle, rectangle, sigmoid, atan, piecewise_exp, softsign, "
        "superspike, erf, or an object such as Triangle(1.0)."
    )
    refuses(ValueError, message, step, zeros(), zeros(), surrogate="step", backend=backend)


@steps
def test_unknown_backend(step):
    message = "unknown backend 'cuda': pass one of auto, triton, cpu, reference."
    refuses(ValueError, message, step, zeros(), zeros(), backend="cuda")


@steps
def test_triton_without_gpu_or_interpreter(step, monkeypatch):
    monkeypatch.setattr(dispatch, "interpreting", lambda: False)
    message = (
        'backend "triton" needs tensors on a GPU, these are on cpu: pass backend="auto", or set TRITON_INTERPRET=1 to '
        "test the kernels."
    )
    refuses(ValueError, message, step, zeros(), zeros(), backend="triton")


@steps
def test_cpu_backend_elsewhere(step):
    message = 'backend "cpu" cannot run on cuda tensors: move them to the CPU, or pass backend="auto".'
    with FakeTensorMode():
        refuses(ValueError, message, step, zeros(device="cuda"), zeros(device="cuda"), backend="cpu")


@every_neuron
@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_where_only_shapes_are_asked_for_any_backend_will_do(neuron, backend):
    found = call(f"{neuron}_step", zeros(device="meta"), zeros(device="meta"), backend=backend)
    assert all(t.shape == (3,) for t in found)
    with FakeTensorMode():
        assert call(f"{neuron}_step", zeros(), zeros(), backend=backend)[0].shape == (3,)


def test_device_without_kernels():
    message = "no fused kernel for device 'xpu': pass backend=\"reference\", or move the tensors to cuda or cpu."
    refuses(ValueError, message, dispatch.choose, "auto", torch.device("xpu"))


@steps
@pytest.mark.parametrize(("device", "backend"), [("cuda", "auto"), ("cuda", "triton"), ("cpu", "triton")])
def test_float64_in_triton(step, device, backend, monkeypatch):
    monkeypatch.setattr(dispatch, "interpreting", lambda: True)
    message = 'float64 runs in the backends "cpu" and "reference" only: pass backend="reference", or float32 tensors.'
    with FakeTensorMode():
        x, m = (zeros(dtype=torch.float64, device=device) for _ in range(2))
        refuses(TypeError, message, step, x, m, backend=backend)


@every_neuron
@backends
def test_online_state_that_wants_a_gradient(neuron, backend):
    state, detached = ("states", "them detached") if neuron.states > 1 else ("state", "m.detach()")
    message = (
        f"{neuron}_step_ writes over its {state}, which must not require a gradient: pass {detached}, or use "
        f"{neuron}_step."
    )
    refuses(ValueError, message, f"{neuron}_step_", zeros(), zeros(requires_grad=True), backend=backend)


@backends
def test_online_state_with_gaps(backend):
    message = "lif_step_ needs a dense state, this one has shape (3,) and strides (2,): pass m.contiguous()."
    refuses(ValueError, message, lif_step_, zeros(), zeros(6)[::2], backend=backend)


def test_state_is_as_it_was_after_an_error():
    m = torch.rand(3)
    before = m.clone()
    with pytest.raises(ValueError, match="unknown reset"):
        lif_step_(torch.ones(3), m, reset="zero")
    assert torch.equal(m, before)


def test_backend_choice(monkeypatch):
    cpu, cuda, meta = (torch.device(name) for name in ("cpu", "cuda", "meta"))
    assert [dispatch.choose("auto", d) for d in (cpu, cuda, meta)] == ["cpu", "triton", "cpu"]
    assert dispatch.choose("reference", torch.device("xpu")) == "reference"
    assert dispatch.choose("triton", cuda) == "triton"
    monkeypatch.setattr(dispatch, "interpreting", lambda: True)
    assert dispatch.choose("triton", cpu) == "triton"
