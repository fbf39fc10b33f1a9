"""`fuse_norms`: batch norm and the neuron after it in one pass, in a forward of the user's own.

Two things are compared with it. The plain model differs by rounding. The same model with a hook on every neuron has
batch norm's output written by the same kernels, and must be equal: to the last bit, but for the gradients where time
steps have statistics in common.
"""

import copy
import io

import pytest
import torch
from spikingjelly.activation_based import functional, layer, neuron
from torch import Tensor, nn

import stdl_engine
from stdl_engine import BPTT, FusedALIF, FusedLIF, FusedPLIF, fuse_norms, optimize, reset_states, restore
from stdl_engine.convert import lean_layers, norms
from stdl_engine.kernels.norm_lif import PendingMap
from stdl_engine.kernels.norm_lif.pending_map import _Numbers
from stdl_engine.kernels.spike_conv import spike_conv
from stdl_engine.memory.layers import convolve_bits
from stdl_engine.memory.tracker import Tracker
from stdl_engine.units import ConvUnit, Head

from .nets import MODELS, run
from .test_optimize import CHANNELS_LAST, assert_close, frames
from .test_recompute import assert_equal


@pytest.fixture(autouse=True)
def small_maps(monkeypatch):
    """Maps as small as those of tests are left to the neuron, too."""
    monkeypatch.setattr(norms, "FEWEST", 0)
    torch.manual_seed(0)


@pytest.fixture
def written(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of the outputs of batch norm that were written."""
    shapes = []
    write = _Numbers.write

    def counted(numbers):
        if numbers.written is None:
            shapes.append(tuple(numbers.x.shape))
        return write(numbers)

    monkeypatch.setattr(_Numbers, "write", counted)
    return shapes


def see_inputs(model: nn.Module) -> nn.Module:
    """A hook on every neuron, which so has its input written."""
    for module in model.modules():
        if isinstance(module, stdl_engine.neurons.Neuron):
            module.register_forward_hook(lambda *_: None)
    return model


JOINED = {
    "alone": lambda y, x: y,
    "sum": lambda y, x: y + x,
    "reversed": lambda y, x: x + y,
    "over": lambda y, x: y.add_(x),
    "function": lambda y, x: torch.add(y, x),
}


class Block(nn.Module):
    """Two convolutions with norms and neurons, and a shortcut that is joined in one of several ways."""

    def __init__(self, make_neuron, join: str = "alone", make_norm=nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1, self.norm1, self.neuron1 = nn.Conv2d(8, 16, 3, padding=1), make_norm(16), make_neuron()
        self.conv2, self.norm2, self.neuron2 = nn.Conv2d(16, 16, 3, padding=1), make_norm(16), make_neuron()
        self.join = join
        self.to(memory_format=CHANNELS_LAST)

    def forward(self, x: Tensor) -> Tensor:
        """`x` is one time step, or [T, B, ...] where neurons take whole sequences."""
        steps = x.shape[:-3]
        x = self.norm1(self.conv1(x.reshape(-1, *x.shape[-3:]))).reshape(*steps, 16, *x.shape[-2:])
        spikes = self.neuron1(x)
        y = self.norm2(self.conv2(spikes.reshape(-1, *spikes.shape[-3:])))
        return self.neuron2(JOINED[self.join](y.reshape(spikes.shape), spikes))


def three_ways(model: nn.Module) -> list[nn.Module]:
    """The plain model, one with norms left to neurons, and one with their outputs written."""
    models = [model, copy.deepcopy(model), copy.deepcopy(model)]
    fuse_norms(models[1])
    fuse_norms(see_inputs(models[2]))
    return models


def results_of(model: nn.Module, x: Tensor, grad: Tensor, sequence: bool) -> tuple[Tensor, list[Tensor]]:
    """Outputs, and the gradients of the input and all parameters."""
    reset_states(model)
    x = x.clone().requires_grad_()
    y = model(x) if sequence else torch.stack([model(frame) for frame in x])
    return y.detach(), list(torch.autograd.grad(y, [x, *model.parameters()], grad))


def assert_nearly_equal(first, second) -> None:
    """Of several time steps with statistics in common, sums of gradients are added up in another order."""
    assert torch.equal(first[0], second[0])
    assert_close(first, second, 2e-6)


def assert_same_buffers(first: nn.Module, second: nn.Module, exactly: bool) -> None:
    for one, other in zip(first.buffers(), second.buffers(), strict=True):
        assert torch.equal(one, other) if exactly else torch.allclose(one, other, rtol=1e-5, atol=1e-6)


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


class Read(nn.Module):
    """Does something with batch norm's output before a neuron reads it, or instead."""

    def __init__(self, read) -> None:
        super().__init__()
        self.norm, self.neuron, self.read = nn.BatchNorm2d(16), FusedLIF(step_mode="m"), read

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.norm(x), self.neuron)


class Cubed(torch.autograd.Function):
    """A function of somebody else's, which saves what it reads."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] ** 2 * grad


def shown(y: Tensor) -> Tensor:
    """In steps of two samples."""
    return y.unflatten(0, (3, 2))


def changed(y: Tensor, neuron: nn.Module) -> Tensor:
    y.mul_(2)
    return neuron(shown(Cubed.apply(y)))


def slice_changed(y: Tensor, neuron: nn.Module) -> Tensor:
    y[1:3].add_(1)
    return neuron(shown(y))


def view_changed(y: Tensor, neuron: nn.Module) -> Tensor:
    shown(y).add_(torch.ones(3, 2, 16, 6, 6))
    return neuron(shown(y)) + y.sum()


def added_twice(y: Tensor, neuron: nn.Module) -> Tensor:
    y += 1
    y += torch.ones_like(y)
    y += torch.ones_like(y)
    return neuron(shown(y))


def hooked(y: Tensor, neuron: nn.Module) -> Tensor:
    y.register_hook(lambda grad: 3 * grad)
    return neuron(shown(y))


def detached(y: Tensor, neuron: nn.Module) -> Tensor:
    return neuron(shown(y.detach())) * y.square().mean()


READS = {
    "relu": lambda y, neuron: torch.relu(y),
    "relu before": lambda y, neuron: neuron(shown(y.relu_())),
    "twice": lambda y, neuron: neuron(shown(y)) * shown(y).sigmoid(),
    "twice, the other way": lambda y, neuron: shown(y).sigmoid() * neuron(shown(y)),
    "broadcast": lambda y, neuron: neuron(shown(y + torch.arange(6.0))),
    "scaled": lambda y, neuron: neuron(shown(torch.add(y, torch.ones_like(y), alpha=2))),
    "with itself": lambda y, neuron: neuron(shown(y + y)),
    "double": lambda y, neuron: (y + torch.ones(6, 16, 6, 6, dtype=torch.float64)).float(),
    "cat": lambda y, neuron: neuron(shown(torch.cat([y[:4], y[:2]]))),
    "transposed": lambda y, neuron: neuron(shown(y.transpose(2, 3))),
    "permuted": lambda y, neuron: neuron(y.view(3, 2, 16, 6, 6).flip(0)),
    "flattened": lambda y, neuron: neuron(shown(y).flatten(2)),
    "other view": lambda y, neuron: neuron(y.reshape(3, 2, 4, 4, 36)),
    "pooled": lambda y, neuron: nn.functional.max_pool2d(y, 2),
    "convolved": lambda y, neuron: nn.functional.conv2d(y, torch.ones(3, 16, 3, 3)),
    "a function": lambda y, neuron: Cubed.apply(y),
    "changed": changed,
    "slice changed": slice_changed,
    "view changed": view_changed,
    "added twice": added_twice,
    "hooked": hooked,
    "detached": detached,
    "output": lambda y, neuron: y,
    "indexed": lambda y, neuron: y[torch.tensor([1, 3])],
    "where": lambda y, neuron: torch.where(y > 0, y, -2 * y),
    "normed again": lambda y, neuron: nn.functional.batch_norm(y, None, None, training=True),
}


@pytest.mark.parametrize("name", READS)
def test_whatever_a_forward_does(name):
    """Twice in a row, so that states and statistics are compared, too."""
    plain = Read(READS[name])
    other = copy.deepcopy(plain)
    fuse_norms(other)
    x = torch.randn(6, 16, 6, 6).to(memory_format=CHANNELS_LAST).requires_grad_()
    results, upstream = [], None
    for model in (plain, other):
        for _ in range(2):
            y = model(x)
            upstream = torch.randn(y.shape) if upstream is None else upstream
            results.append((y, torch.autograd.grad(y, [x, *model.parameters()], upstream, retain_graph=True)))
    for before, after in zip(results[:2], results[2:], strict=True):
        assert before[0].shape == after[0].shape
        assert before[0].stride() == after[0].stride()
        assert before[0].requires_grad
        assert_close(before, after, 2e-5)
    assert_same_buffers(plain, other, exactly=False)


@pytest.fixture
def map_and_plain() -> tuple[PendingMap, Tensor]:
    norm = nn.BatchNorm2d(16)
    other = copy.deepcopy(norm)
    fuse_norms(nn.Sequential(norm, FusedLIF()))
    x = torch.randn(2, 16, 4, 4).to(memory_format=CHANNELS_LAST)
    with torch.no_grad():
        found, expected = norm(x), other(x)
    assert type(found) is PendingMap
    return found, expected


def through_a_file(t: Tensor) -> Tensor:
    buffer = io.BytesIO()
    torch.save(t, buffer)
    buffer.seek(0)
    return torch.load(buffer)


@pytest.mark.parametrize(
    "read",
    [
        lambda t: torch.from_numpy(t.numpy()),
        lambda t: torch.tensor(t.tolist()),
        lambda t: torch.from_dlpack(t),
        copy.deepcopy,
        through_a_file,
        lambda t: t.data,
        lambda t: t.clone(),
        lambda t: t.to(torch.float64).float(),
        lambda t: t.cpu(),
        lambda t: torch.empty_like(t).copy_(t),
        lambda t: torch.empty(0).set_(t.untyped_storage(), 0, t.shape, t.stride()),
    ],
)
def test_who_reads_memory_finds_the_numbers(read, map_and_plain):
    found, expected = map_and_plain
    torch.testing.assert_close(read(found).detach() + 0, expected, rtol=1e-5, atol=1e-5)
    assert found.data_ptr() == found.numbers.written.data_ptr()


def test_it_looks_like_any_tensor(map_and_plain):
    found, expected = map_and_plain
    for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "layout", "grad_fn"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.stride() == expected.stride()
    assert found.is_contiguous(memory_format=CHANNELS_LAST)
    assert found.numbers.written is None
    assert repr(found)[:12] == repr(expected)[:12] == "tensor([[[[ "[:12] or repr(found).startswith("tensor(")
    with pytest.raises(RuntimeError, match="would change the shape of batch norm's output in place"):
        found.unsqueeze_(0)


def test_the_gradient_of_the_map_itself():
    """It is not written over, whoever holds it."""
    plain = Block(lambda: FusedLIF(step_mode="m"), "sum")
    models = [plain, copy.deepcopy(plain)]
    fuse_norms(models[1])
    x, grad, results = frames(3, 2, 8, 6, 6), torch.randn(3, 2, 16, 6, 6), []
    for model in models:
        kept, norm = [], model.norm2.forward
        model.norm2.forward = lambda x, norm=norm, kept=kept: kept.append(norm(x)) or kept[-1]
        y = model(x)
        assert kept[0].requires_grad
        gradients = torch.autograd.grad(y, [kept[0], *model.parameters()], grad)
        results.append((y, gradients))
    assert type(kept[0]) is PendingMap
    assert_close(*results, 1e-5)


def residual_changed(y: Tensor, neuron: nn.Module) -> Tensor:
    residual = torch.ones(6, 16, 6, 6)
    y = y + residual
    residual.mul_(2)
    return neuron(shown(y))


def test_what_changes_before_it_is_read_is_an_error():
    model = Read(residual_changed)
    fuse_norms(model)
    x = torch.randn(6, 16, 6, 6).to(memory_format=CHANNELS_LAST)
    message = r"a tensor of shape \(6, 16, 6, 6\) that batch norm read, or that was added to its output, was changed"
    with pytest.raises(RuntimeError, match=message):
        model(x)
    with torch.no_grad():
        y = model.norm(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match=message):
            y.sum()


def test_spikes_that_are_added_may_change_afterwards():
    """Of spikes the bits are added, which stay."""

    def spikes_changed(y, neuron):
        spikes = FusedLIF(threshold=0.1)(y.detach().clone())
        spikes = stdl_engine.kernels.lif_step(y.detach().clone(), torch.zeros_like(y), 0.5, 0.1, pack=True)[0]
        y = y + spikes
        spikes.mul_(3)
        return neuron(shown(y))

    plain = Read(spikes_changed)
    other = copy.deepcopy(plain)
    fuse_norms(other)
    x = torch.randn(6, 16, 6, 6).to(memory_format=CHANNELS_LAST).requires_grad_()
    grad, results = torch.randn(3, 2, 16, 6, 6), []
    for model in (plain, other):
        y = model(x)
        results.append((y, torch.autograd.grad(y, [x, *model.parameters()], grad)))
    assert_close(*results, 1e-5)


def test_spikingjellys_container_and_a_shortcut_over_it(written):
    """Its output is a view of batch norm's, and `+=` changes that in place."""

    class Container(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
            self.container = layer.SeqToANNContainer(conv, nn.BatchNorm2d(16))
            self.node = neuron.LIFNode(step_mode="m")

        def forward(self, x):
            y = self.container(x)
            y += x
            return self.node(y)

    plain = Container().to(memory_format=CHANNELS_LAST)
    stdl_engine.convert_neurons(plain)
    other = copy.deepcopy(plain)
    optimize(other)
    x, grad = 2 * frames(3, 2, 16, 6, 6), torch.randn(3, 2, 16, 6, 6)
    assert_close(*(results_of(model, x, grad, True) for model in (plain, other)), 1e-5)
    assert written == []


@pytest.mark.parametrize("which", ["norm", "neuron", "both", "global"])
@pytest.mark.parametrize("kind", ["forward", "pre", "backward"])
def test_hooks_see_what_they_would(which, kind, written):
    plain = Block(lambda: FusedLIF(step_mode="m"), "sum")
    models = [plain, copy.deepcopy(plain)]
    fuse_norms(models[1])
    x, grad, seen, results = frames(3, 2, 8, 6, 6), torch.randn(3, 2, 16, 6, 6), [], []

    def look(module, *seen_by_hook):
        if isinstance(module, nn.BatchNorm2d | FusedLIF):
            seen[-1].extend(t.detach().clone() for t in _tensors(seen_by_hook))

    for model in models:
        seen.append([])
        targets = {"norm": [model.norm2], "neuron": [model.neuron2], "both": [model.norm2, model.neuron2]}
        if which == "global":
            register = {
                "forward": nn.modules.module.register_module_forward_hook,
                "pre": nn.modules.module.register_module_forward_pre_hook,
                "backward": nn.modules.module.register_module_full_backward_hook,
            }[kind]
            handles = [register(look)]
        else:
            name = {"forward": "register_forward_hook", "pre": "register_forward_pre_hook"}
            method = name.get(kind, "register_full_backward_hook")
            handles = [getattr(module, method)(look) for module in targets[which]]
        results.append(results_of(model, x, grad, True))
        for handle in handles:
            handle.remove()
    assert_close(*results, 1e-5)
    assert seen[0]
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert len(written) == {"norm": 0, "neuron": 1, "both": 0, "global": 0}[which]


def _tensors(values) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    return [t for value in values for t in _tensors(value)] if isinstance(values, tuple) else []


def test_hooks_on_a_container():
    plain = nn.Sequential(nn.Sequential(nn.BatchNorm2d(16)), FusedLIF())
    models, seen = [plain, copy.deepcopy(plain)], []
    fuse_norms(models[1])
    x, grad, results = frames(1, 2, 16, 6, 6), torch.randn(1, 2, 16, 6, 6), []
    for model in models:
        model[0].register_forward_hook(lambda _, __, y: seen.append(y.detach().clone()))
        model[0].register_full_backward_hook(lambda _, __, grads: seen.append(grads[0].clone()))
        results.append(results_of(model, x, grad, False))
    assert_close(*results, 1e-5)
    assert len(seen) == 4
    for one, other in zip(seen[:2], seen[2:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


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


def test_small_maps_stay_with_pytorch(monkeypatch):
    monkeypatch.undo()
    model = nn.Sequential(nn.BatchNorm2d(16), FusedLIF())
    fuse_norms(model)
    small = torch.randn(2, 16, 4, 4).to(memory_format=CHANNELS_LAST)
    large = torch.randn(16, 16, 32, 32).to(memory_format=CHANNELS_LAST)
    assert type(model[0](small)) is Tensor
    assert type(model[0](large)) is PendingMap
    assert type(model[0](large.contiguous())) is Tensor
    assert type(model[0](large.double().float().requires_grad_())) is PendingMap


@pytest.mark.parametrize("autocast", [False, True])
def test_autocast_and_other_types(autocast, written):
    plain = Block(lambda: FusedLIF(step_mode="m"), "sum")
    plain = plain if autocast else plain.bfloat16()
    other = copy.deepcopy(plain)
    fuse_norms(other)
    x, grad = frames(3, 2, 8, 6, 6), torch.randn(3, 2, 16, 6, 6).bfloat16()
    x = x if autocast else x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert_equal(*(results_of(model, x, grad, True) for model in (plain, other)))
    assert written == []


def test_compiled_and_transformed():
    plain = Block(lambda: FusedLIF(step_mode="m"), "sum")
    other = copy.deepcopy(plain)
    fuse_norms(other)
    x, grad = frames(3, 2, 8, 6, 6), torch.randn(3, 2, 16, 6, 6)
    expected = results_of(plain, x, grad, True)
    reset_states(other)
    compiled = torch.compile(other, backend="eager")
    x_again = x.clone().requires_grad_()
    y = compiled(x_again)
    assert_close(expected, (y.detach(), torch.autograd.grad(y, [x_again, *other.parameters()], grad)), 1e-5)
    results = []
    for model in (plain, other):
        model.eval()  # in training batch norm counts batches in place, which a transform refuses

        def loss(parameters, model=model):
            reset_states(model)
            return (torch.func.functional_call(model, parameters, (x,)) * grad).sum()

        results.append(torch.func.grad(loss)(dict(model.named_parameters())))
        reset_states(model)
    for name, gradient in results[0].items():
        assert torch.equal(gradient, results[1][name])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("part", [nn.Tanh, FusedLIF])
def test_a_compiled_part_reads_the_map(part, backend):
    model = nn.Sequential(nn.BatchNorm2d(16), part(), FusedLIF(threshold=0.5))
    x, grad = frames(1, 2, 16, 6, 6), torch.randn(1, 2, 16, 6, 6)
    expected = results_of(model, x, grad, False)
    fuse_norms(model)
    model[1] = torch.compile(model[1], backend=backend)
    assert type(model[0](x[0])) is PendingMap
    for _ in range(2):
        assert_close(expected, results_of(model, x, grad, False), 1e-5)


def test_no_second_derivatives():
    model = nn.Sequential(nn.BatchNorm2d(16), FusedLIF())
    fuse_norms(model)
    x = torch.randn(2, 16, 4, 4).to(memory_format=CHANNELS_LAST).requires_grad_()
    (grad,) = torch.autograd.grad(model(x), x, torch.randn(2, 16, 4, 4), create_graph=True)
    with pytest.raises(RuntimeError):
        grad.sum().backward()


def test_reports_and_restore():
    class Own(nn.BatchNorm2d):
        def forward(self, x):
            return 2 * super().forward(x)

    class Named(nn.BatchNorm2d):
        pass

    model = nn.Sequential(
        nn.BatchNorm2d(16), layer.BatchNorm2d(32), Named(8), nn.BatchNorm2d(24), nn.BatchNorm2d(4), Own(16),
        nn.BatchNorm1d(16), FusedLIF(),
    )  # fmt: skip
    before = [(type(module), set(vars(module))) for module in model.modules()]
    keys = list(model.state_dict())
    report = fuse_norms(model)
    assert [entry.name for entry in report.changed] == ["0", "1", "2"]
    assert {entry.name: entry.reason for entry in report.left} == {
        "3": "24 channels are not a power of two from 8 to 2048",
        "4": "4 channels are not a power of two from 8 to 2048",
        "5": "Own has a forward of its own",
    }
    assert list(model.state_dict()) == keys
    again = fuse_norms(model)
    assert again.changed == ()
    assert "it is optimised already" in str(again)
    assert isinstance(model[1], layer.BatchNorm2d)
    model[1].step_mode = "m"
    assert model[1].step_mode == "m"
    model[1].step_mode = "s"
    restore(model)
    assert [(type(module), set(vars(module))) for module in model.modules()] == before


def test_nothing_to_do():
    model = nn.Sequential(nn.BatchNorm2d(16), FusedALIF())
    report = fuse_norms(model)
    assert report.changed == ()
    assert "None of its layers is a fused LIF or PLIF neuron" in str(report)
    assert type(model[0]) is nn.BatchNorm2d
    with pytest.raises(TypeError, match=r"fuse_norms takes an nn\.Module, and got list"):
        fuse_norms([model])
    model.append(FusedLIF())
    report = optimize(model, norms=False)
    assert type(model[0]) is nn.BatchNorm2d
    assert "BatchNorm2d" not in str(report)
    assert [entry.name for entry in fuse_norms(model).changed] == ["0"]


def test_copies_and_pickles(written):
    model = Block(lambda: FusedLIF(step_mode="m"), "sum")
    fuse_norms(model)
    x, grad = frames(3, 2, 8, 6, 6), torch.randn(3, 2, 16, 6, 6)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    others = [copy.deepcopy(model), torch.load(buffer, weights_only=False)]
    expected = results_of(model, x, grad, True)
    for other in others:
        assert_equal(expected, results_of(other, x, grad, True))
        restore(other)
        assert type(other.norm1) is nn.BatchNorm2d
    assert written == []


@pytest.mark.parametrize("memory", ["lean", "paper"])
def test_a_learning_rule_has_its_own_way(memory, written):
    results = []
    for fused in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(ConvUnit(3, 16), ConvUnit(16, 16), Head(16, 10)).to(memory_format=CHANNELS_LAST)
        if fused:
            fuse_norms(model)
        rule = BPTT(model, lambda p: torch.optim.SGD(p, lr=0.1), torch.zeros(2, 3, 8, 8), memory=memory)
        torch.manual_seed(2)
        rule.step(torch.randn(2, 3, 8, 8).to(memory_format=CHANNELS_LAST), torch.tensor([1, 2]), T=3)
        results.append([*model.parameters(), *model.buffers()])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert written == []


def test_public_name():
    assert stdl_engine.fuse_norms is fuse_norms
