"""`fuse_norms`: batch norm and the neuron after it in one pass, in a forward of the user's own: the same results."""

import copy

import pytest
import torch
from spikingjelly.activation_based import functional, layer, neuron
from torch import nn

import stdl_engine
from stdl_engine import FusedALIF, FusedLIF, FusedPLIF, fuse_norms, optimize, reset_states
from stdl_engine.convert import lean_layers
from stdl_engine.kernels.norm_lif import PendingMap
from stdl_engine.kernels.spike_conv import spike_conv
from stdl_engine.memory.layers import convolve_bits
from stdl_engine.memory.tracker import Tracker

from ...kernels.compare import TARGETS
from ..nets import MODELS, run
from ..test_optimize import CHANNELS_LAST, assert_close, frames
from ..test_recompute import assert_equal
from .blocks import JOINED, Block, assert_nearly_equal, assert_same_buffers, results_of, three_ways

NEURONS = {
    "lif": lambda **options: FusedLIF(0.5, **options),
    "plif": lambda **options: FusedPLIF(0.6, **options),
    "hard": lambda **options: FusedLIF(0.5, reset="hard", detach_reset=True, scale=0.7, **options),
}


@pytest.mark.parametrize("join", JOINED)
@pytest.mark.parametrize("mode", ["s", "m"])
@pytest.mark.parametrize("kind", NEURONS)
def test_a_block(kind, mode, join, written):
    models = three_ways(Block(lambda: NEURONS[kind](step_mode=mode), join))
    x, grad = frames(3, 2, 8, 6, 6), torch.randn(3, 2, 16, 6, 6)
    plain, fused = (results_of(model, x, grad, mode == "m") for model in models[:2])
    assert written == []
    assert_close(plain, fused, 1e-5)
    same = assert_equal if mode == "s" else assert_nearly_equal
    same(fused, results_of(models[2], x, grad, mode == "m"))
    assert len(written) == 2 * (1 if mode == "m" else 3)
    assert_same_buffers(models[0], models[1], exactly=False)
    assert_same_buffers(models[1], models[2], exactly=True)
    for one, other in zip(models[1].modules(), models[2].modules(), strict=True):
        if isinstance(one, stdl_engine.neurons.Neuron):
            assert torch.equal(one.membrane, other.membrane)


@pytest.mark.parametrize("mode", ["s", "m"])
@pytest.mark.parametrize("kind", ["lif", "plif"])
def test_online(kind, mode, written):
    """Backward after each step, or after each sequence, with the past as a constant."""
    models = three_ways(Block(lambda: NEURONS[kind](step_mode=mode, online=True), "sum"))
    x, grad, results = frames(3, 2, 8, 6, 6), torch.randn(3, 2, 16, 6, 6), []
    for model in models:
        for _ in range(2):
            if mode == "m":
                model(x).backward(grad)
            else:
                for frame, upstream in zip(x, grad, strict=True):
                    model(frame).backward(upstream)
        results.append((model.neuron2.membrane, [p.grad for p in model.parameters()]))
    assert_close(*results[:2], 1e-5)
    (assert_equal if mode == "s" else assert_nearly_equal)(*results[1:])
    assert len(written) == 4 * (1 if mode == "m" else 3)


@pytest.mark.parametrize("mode", ["s", "m"])
@pytest.mark.parametrize("name", MODELS)
def test_spikingjellys_models(name, mode, written):
    models = [MODELS[name]().to(memory_format=CHANNELS_LAST)]
    models += [copy.deepcopy(models[0])]
    optimize(models[0], norms=False)
    optimize(models[1])
    x, grad = frames(4, 2, 3, 32, 32), torch.randn(4, 2, 10)
    plain, fused = (run(model, x, mode, grad) for model in models)
    assert_close(plain, fused, 2e-4)
    downsampled = 2 if name == "spiking_resnet18" else 0  # shortcuts with a norm; the last one's map is 1 × 1
    assert len(written) == downsampled * (1 if mode == "m" else 4)
    assert_same_buffers(*models, exactly=False)
    nodes = [[m.v for m in model.modules() if isinstance(m, neuron.BaseNode)] for model in models]
    for one, other in zip(*nodes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


SETTINGS = [{"momentum": None}, {"track_running_stats": False}, {"affine": False}, {"eps": 0.1, "momentum": 0.5}]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings_of_batch_norm(settings, training, written):
    def norm(channels):
        return nn.BatchNorm2d(channels, **settings)

    models = three_ways(Block(lambda: FusedLIF(step_mode="m"), "sum", norm))
    x, grad = frames(3, 2, 8, 6, 6), torch.randn(3, 2, 16, 6, 6)
    for model in models:
        model(x)  # statistics that are not those of a new layer
        model.train(training)
    written.clear()
    plain, fused = (results_of(model, x, grad, True) for model in models[:2])
    assert written == []
    assert_close(plain, fused, 1e-5)
    assert_nearly_equal(fused, results_of(models[2], x, grad, True))
    assert_same_buffers(models[0], models[1], exactly=False)


def test_less_memory_and_no_map_of_batch_norm():
    """Beside the input there are the spikes, their bits, and the membranes; under no_grad only before and after."""
    model = nn.Sequential(nn.BatchNorm2d(16), nn.Unflatten(0, (4, 2)), FusedLIF(step_mode="m"))
    fuse_norms(model)
    x = torch.randn(8, 16, 8, 8).to(memory_format=CHANNELS_LAST)
    for gradients in (False, True):
        model[2].reset()
        with Tracker() as tracker, torch.set_grad_enabled(gradients):
            tracker.follow([x])
            spikes = model(x.requires_grad_())
            membranes = x.nbytes * (5 if gradients else 2) / 4
            assert tracker.peak < x.nbytes + spikes.nbytes + membranes + x.numel() / 8 + 2048


def test_without_gradients(written):
    for mode in ("s", "m"):
        models = three_ways(Block(lambda mode=mode: FusedLIF(step_mode=mode), "sum"))
        x = frames(3, 2, 8, 6, 6)
        for training, evaluate in ((True, torch.no_grad), (False, torch.no_grad), (False, torch.inference_mode)):
            results = []
            for model in models:
                model.train(training)
                reset_states(model)
                with evaluate():
                    results.append(model(x) if mode == "m" else torch.stack([model(frame) for frame in x]))
                assert not results[-1].requires_grad
            torch.testing.assert_close(*results[:2])
            assert torch.equal(*results[1:]) or evaluate is torch.inference_mode
        assert_same_buffers(models[0], models[1], exactly=False)
        assert len(written) == 4 * (1 if mode == "m" else 3)  # of the model with hooks
        written.clear()


def test_other_neurons_read_it_too(written):
    for make in (FusedALIF, lambda **options: FusedLIF(backend="reference", **options)):
        plain = Block(lambda make=make: make(step_mode="m"), "sum")
        plain.add_module("lif", FusedLIF())  # else nothing is changed
        other = copy.deepcopy(plain)
        fuse_norms(other)
        x, grad = frames(3, 2, 8, 6, 6), torch.randn(3, 2, 16, 6, 6)
        results = []
        for model in (plain, other):
            y = model(x)
            parameters = [p for p in model.parameters() if p.requires_grad]
            results.append((y, torch.autograd.grad(y, parameters, grad)))
        assert_close(*results, 1e-5)
    assert len(written) == 4


@pytest.mark.parametrize("settings", [{"store_v_seq": True}, {"v_reset": None}, {}], ids=str)
@pytest.mark.parametrize("mode", ["s", "m"])
def test_spikingjellys_states(mode, settings, written):
    """Over two sequences in a row, after a state was assigned that is above the threshold in places."""
    plain = nn.Sequential(layer.BatchNorm2d(16, step_mode=mode), neuron.LIFNode(step_mode=mode, **settings)).double()
    plain = plain.float()
    stdl_engine.convert_neurons(plain)
    other = copy.deepcopy(plain)
    optimize(other)
    x, grad, v = 2 * frames(3, 2, 16, 6, 6), torch.randn(2, 3, 2, 16, 6, 6), torch.randn(2, 16, 6, 6)
    results = []
    for model in (plain, other):
        model[1].v = v.clone()
        outputs = []
        for _ in range(2):
            outputs.append(model(x) if mode == "m" else torch.stack([model(frame) for frame in x]))
        y = torch.stack(outputs)
        v_seq = [] if model[1].v_seq is None else [model[1].v_seq.detach()]
        results.append((y.detach(), [model[1].v.detach(), *v_seq, *torch.autograd.grad(y, model.parameters(), grad)]))
    assert_close(*results, 1e-5)
    calls = 2 if mode == "m" else 6
    assert len(written) == (calls if "store_v_seq" in settings else 1)  # the step after an assigned state has no reset


def test_computed_again_once_for_norm_and_neuron(monkeypatch, written):
    again, first = [], []
    monkeypatch.setattr(lean_layers, "spike_conv", lambda *given: again.append(0) or spike_conv(*given))
    monkeypatch.setattr(lean_layers, "convolve_bits", lambda *given: first.append(0) or convolve_bits(*given))
    results, sizes = [], []
    model = MODELS["spiking_resnet18"]().to(memory_format=CHANNELS_LAST)
    x, grad = frames(4, 2, 3, 32, 32), torch.randn(4, 2, 10)
    for recompute in (False, True):
        other = copy.deepcopy(model)
        optimize(other, recompute=recompute)
        results.append(run(other, x, "m", grad))
        functional.reset_net(other)
        with Tracker() as tracker:
            y = other(x)
            sizes.append(tracker.current)
            del y
    assert_equal(*results)
    assert len(again) == len(first) / 4  # of two models, each with a second forward
    assert sizes[1] < 0.75 * sizes[0]


def test_parameters_in_low_precision(written):
    plain = Block(lambda: FusedLIF(step_mode="m"), "sum").bfloat16()
    other = copy.deepcopy(plain)
    fuse_norms(other)
    x, grad = frames(3, 2, 8, 6, 6).bfloat16(), torch.randn(3, 2, 16, 6, 6).bfloat16()
    assert_equal(*(results_of(model, x, grad, True) for model in (plain, other)))
    assert written == []


def test_autocast(written):
    """Convolutions give batch norm bfloat16, in which the neuron computes it; the sum with a shortcut is, too."""
    plain, fused, shown = three_ways(Block(lambda: FusedLIF(step_mode="m"), "sum"))
    x, grad = frames(3, 2, 8, 6, 6), torch.randn(3, 2, 16, 6, 6).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert type(fused.norm1(fused.conv1(x[0]))) is PendingMap
        fused.norm1.load_state_dict(plain.norm1.state_dict())
        expected, found, seen = (results_of(model, x, grad, True) for model in (plain, fused, shown))
    assert found[0].dtype == torch.bfloat16
    assert written == [(6, 16, 6, 6)] * 2
    assert torch.equal(found[0], seen[0])
    assert_close(found, seen, 1e-2)  # time steps have statistics in common: sums of bfloat16 in another order
    assert_close(expected, found, 5e-2)


@pytest.mark.skipif(len(TARGETS) < 2, reason="Triton is for Linux only")
@pytest.mark.parametrize("backend", ["triton"])
@pytest.mark.parametrize("layout", [CHANNELS_LAST, torch.contiguous_format], ids=str)
def test_a_whole_sequence_by_triton(layout, backend):
    """Several exact time steps in one kernel per direction, with a shortcut."""
    results, x, grad = [], frames(3, 2, 8, 4, 4).contiguous(), torch.randn(3, 2, 16, 4, 4)
    for by, device in (("cpu", "cpu"), (backend, TARGETS[1].device)):
        torch.manual_seed(0)
        model = Block(lambda by=by: FusedLIF(step_mode="m", backend=by), "sum").to(memory_format=layout)
        fuse_norms(model.to(device))
        spikes, gradients = results_of(model, x.to(device), grad.to(device), True)
        results.append((spikes.cpu(), [g.cpu() for g in gradients]))
    assert torch.equal(results[0][0], results[1][0])
    assert_close(*results, 1e-5)
