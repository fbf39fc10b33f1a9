"""`optimize`: the same numbers in a loop of the user's own, less kept, and everything as it was after `restore`."""

import copy
import io

import pytest
import snntorch
import snntorch.utils
import torch
from spikingjelly.activation_based import functional, layer, neuron
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations
from torch.utils.checkpoint import checkpoint

import stdl_engine
from stdl_engine import BPTT, FusedLIF, convert_neurons, optimize, reset_states, restore, units_from
from stdl_engine.convert import lean_layers
from stdl_engine.memory import layers
from stdl_engine.memory.tracker import Tracker

from .nets import MODELS, run
from .test_untouched import snapshot

CHANNELS_LAST = torch.channels_last


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def read(monkeypatch) -> list[int]:
    """How many binary digits each convolution has read instead of a dense map."""
    digits = []

    def counted(*given):
        digits.append(len(given[-1]))
        return layers.convolve_bits(*given)

    monkeypatch.setattr(lean_layers, "convolve_bits", counted)
    return digits


def small_net(make_neuron=lambda: FusedLIF(step_mode="m"), bias: bool = False) -> nn.Sequential:
    """Layers of SpikingJelly for whole sequences, with neurons of ours."""
    return nn.Sequential(
        layer.Conv2d(3, 16, 3, padding=1, bias=bias, step_mode="m"),
        layer.BatchNorm2d(16, step_mode="m"),
        make_neuron(),
        layer.Conv2d(16, 32, 3, stride=2, padding=1, bias=bias, step_mode="m"),
        layer.BatchNorm2d(32, step_mode="m"),
        make_neuron(),
        layer.AvgPool2d(2, step_mode="m"),
        layer.Flatten(step_mode="m"),
        layer.Linear(32 * 4 * 4, 48, step_mode="m"),
        make_neuron(),
        layer.Linear(48, 10, step_mode="m"),
    )


def frames(*shape: int, dtype=torch.float32) -> Tensor:
    """A sequence in the order channels_last."""
    T, B, *rest = shape
    return torch.randn(T * B, *rest, dtype=dtype).to(memory_format=CHANNELS_LAST).unflatten(0, (T, B))


def outputs_and_gradients(model: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
    functional.reset_net(model)
    reset_states(model)
    y = model(x)
    return y.detach(), list(torch.autograd.grad(y, list(model.parameters()), grad))


def assert_close(before, after, bound: float) -> None:
    """The largest difference within `bound` of the largest number among all outputs, or among all gradients."""
    (y, grads), (other_y, other_grads) = before, after
    grads, other_grads = (list(g.values()) if isinstance(g, dict) else g for g in (grads, other_grads))
    assert (y - other_y).abs().max() <= bound * y.abs().max()
    assert y.abs().max() > 0
    largest = max(grad.abs().max() for grad in grads)
    for grad, other in zip(grads, other_grads, strict=True):
        assert (grad - other).abs().max() <= bound * largest


@pytest.mark.parametrize("mode", ["s", "m"])
@pytest.mark.parametrize("name", MODELS)
def test_spikingjellys_models_in_float64(name, mode):
    model = MODELS[name]().double()
    changed = copy.deepcopy(model)
    optimize(changed)
    x, grad = frames(4, 2, 3, 32, 32, dtype=torch.float64), torch.randn(4, 2, 10, dtype=torch.float64)
    assert_close(run(model, x, mode, grad), run(changed, x, mode, grad), 1e-11)


@pytest.mark.parametrize("mode", ["s", "m"])
@pytest.mark.parametrize("name", MODELS)
def test_convolutions_of_bits_give_what_dense_ones_do(name, mode, read):
    """Against fused neurons alone, so that only the order of sums differs."""
    model = MODELS[name]().to(memory_format=CHANNELS_LAST)
    convert_neurons(model)
    changed = copy.deepcopy(model)
    optimize(changed)
    x, grad = frames(4, 2, 3, 32, 32), torch.randn(4, 2, 10)
    assert_close(run(model, x, mode, grad), run(changed, x, mode, grad), 2e-4)
    assert {"sew_resnet18": {1, 2}}.get(name, {1}) == set(read)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_a_model_with_neurons_of_ours(bias, training, read):
    model = small_net(bias=bias).to(memory_format=CHANNELS_LAST).train(training)
    changed = copy.deepcopy(model)
    optimize(changed)
    x, grad = frames(3, 2, 3, 16, 16), torch.randn(3, 2, 10)
    assert_close(outputs_and_gradients(model, x, grad), outputs_and_gradients(changed, x, grad), 1e-5)
    assert read == [1]
    for evaluate in (torch.no_grad, torch.inference_mode):
        results = []
        for one in (model, changed):
            reset_states(one)
            with evaluate():
                results.append(one(x))
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_online_in_a_loop_of_steps():
    """Backward after each step, the past a constant."""
    conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), FusedLIF(online=True), conv, FusedLIF(online=True), nn.Flatten())
    model.to(memory_format=CHANNELS_LAST)
    changed = copy.deepcopy(model)
    optimize(changed)
    x, grad = frames(3, 2, 3, 8, 8), torch.randn(3, 2, 16 * 6 * 6)
    for one in (model, changed):
        for frame, upstream in zip(x, grad, strict=True):
            one(frame).backward(upstream)
    for p, q in zip(model.parameters(), changed.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)


def test_snntorch():
    def leaky():
        return snntorch.Leaky(beta=0.5, init_hidden=True)

    model = nn.Sequential(nn.Linear(20, 32), leaky(), nn.Linear(32, 32), leaky(), nn.Linear(32, 5))
    changed = copy.deepcopy(model)
    keys = set(vars(changed[1]))
    report = optimize(changed)
    assert [entry.name for entry in report.changed] == ["", "1", "3"]
    x, grad = 3 * torch.randn(3, 2, 20), torch.randn(3, 2, 5)
    results = []
    for one in (model, changed):
        snntorch.utils.reset(one)
        y = torch.stack([one(frame) for frame in x])
        results.append((y.detach(), list(torch.autograd.grad(y, list(one.parameters()), grad))))
    assert_close(*results, 1e-6)
    restore(changed)
    assert type(changed[1]) is snntorch.Leaky
    assert set(vars(changed[1])) == keys


class Attention(nn.Module):
    """Spikes that are read by operations of a forward, and by no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.neuron, self.weight = FusedLIF(step_mode="m"), nn.Parameter(torch.randn(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        spikes = self.neuron(x)
        return (spikes @ spikes.mT) @ (spikes @ self.weight)


def held(model: nn.Module, x: Tensor) -> int:
    """Bytes that a forward leaves for backward, without those of its output."""
    with Tracker() as tracker:
        y = model(x)
        return tracker.current - y.nbytes


def test_spikes_are_kept_as_bits_whoever_reads_them():
    model = Attention()
    x = torch.randn(2, 8, 32, 64, requires_grad=True)
    before = held(model, x)
    model.neuron.reset()
    optimize(model)
    assert before - held(model, x) == 4 * x.numel() - x.numel() // 8


@pytest.mark.parametrize("name", ["sew_resnet18", "spiking_resnet18"])
def test_half_the_bytes_of_fused_neurons_alone_and_less_of_spikingjellys(name):
    models = [MODELS[name]().to(memory_format=CHANNELS_LAST) for _ in range(3)]
    convert_neurons(models[1])
    optimize(models[2])
    sizes = []
    for model in models:
        functional.set_step_mode(model, "m")
        sizes.append(held(model, frames(4, 2, 3, 32, 32)))
    assert sizes[2] < 0.7 * sizes[1]
    assert sizes[2] < 0.45 * sizes[0]


def test_average_pools_keep_nothing_and_max_pools_two_bytes():
    x = torch.randn(2, 3, 16, 8, 8, requires_grad=True)
    for pool, kept in ((nn.AvgPool2d(2), 0), (nn.MaxPool2d(2), 2 * 2 * 3 * 16 * 4 * 4)):
        model = nn.Sequential(FusedLIF(step_mode="m"), nn.Flatten(0, 1), pool)
        optimize(model)
        spikes = model[1](model[0](x))
        with Tracker() as tracker:
            y = model[2](spikes)
            small = getattr(y.untyped_storage(), "small_form", None)
            bits = 0 if small is None else small.bits.nbytes
            assert tracker.current == y.nbytes + kept + bits


@pytest.mark.parametrize("order", [torch.contiguous_format, CHANNELS_LAST])
@pytest.mark.parametrize("settings", [{}, {"stride": 1, "padding": 1}, {"dilation": 2}, {"ceil_mode": True}], ids=str)
def test_max_pools_of_spikes(settings, order):
    plain, lean = nn.MaxPool2d(3, **settings), nn.Sequential(FusedLIF(), nn.MaxPool2d(3, **settings))
    optimize(lean)
    x = torch.randn(2, 16, 9, 11).to(memory_format=order).requires_grad_()
    spikes = lean[0](x)
    y, other = lean[1](spikes), plain(spikes)
    assert torch.equal(y, other)
    assert y.stride() == other.stride()
    grad = torch.randn_like(y).contiguous()
    assert torch.equal(*(torch.autograd.grad(out, spikes, grad, retain_graph=True)[0] for out in (y, other)))
    assert torch.equal(layers.bits_of(y), lean_layers.pack(other.detach()))


def test_a_graph_may_go_back_twice(read):
    model = small_net().to(memory_format=CHANNELS_LAST)
    optimize(model)
    y = model(frames(3, 2, 3, 16, 16))
    grad = torch.randn_like(y)
    first = torch.autograd.grad(y, list(model.parameters()), grad, retain_graph=True)
    second = torch.autograd.grad(y, list(model.parameters()), grad)
    assert read
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(y, list(model.parameters()), grad)


class Scaled(nn.Module):
    """Changes the spikes in place before a convolution reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.neuron, self.conv = FusedLIF(), nn.Conv2d(16, 16, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.neuron(x).mul_(0.5))


def test_spikes_changed_in_place_are_read_as_they_are(read):
    model = Scaled().to(memory_format=CHANNELS_LAST)
    changed = copy.deepcopy(model)
    optimize(changed)
    x, grad = torch.randn(2, 16, 8, 8).to(memory_format=CHANNELS_LAST).requires_grad_(), torch.randn(2, 16, 6, 6)
    assert_close(outputs_and_gradients(model, x, grad), outputs_and_gradients(changed, x, grad), 1e-6)
    assert read == []


def test_what_was_saved_whole_may_not_change():
    model = nn.Sequential(FusedLIF(), nn.Tanh(), nn.Hardtanh())
    optimize(model)
    y = model[1](torch.randn(3, requires_grad=True))
    y.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation|changed in place"):
        y.sum().backward()


def test_a_user_who_decides_what_is_saved_still_does():
    seen = []
    model = small_net()
    optimize(model)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.shape) or t, lambda t: t):
        model(frames(3, 2, 3, 16, 16))
    assert torch.Size([6, 16, 16, 16]) in seen


class Checkpointed(nn.Module):
    """Runs its head again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = small_net(), nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 3))
        self.runs = 0

    def run_head(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.run_head, self.body(x), use_reentrant=False)


def test_a_part_that_is_checkpointed_is_run_again():
    model = Checkpointed().to(memory_format=CHANNELS_LAST)
    changed = copy.deepcopy(model)
    optimize(changed)
    x, grad = frames(3, 2, 3, 16, 16), torch.randn(3, 2, 3)
    assert_close(outputs_and_gradients(model, x, grad), outputs_and_gradients(changed, x, grad), 1e-5)
    assert changed.runs == 2


def test_autocast():
    model = small_net().to(memory_format=CHANNELS_LAST)
    changed = copy.deepcopy(model)
    optimize(changed)
    x, grad = frames(3, 2, 3, 16, 16), torch.randn(3, 2, 10)
    with torch.autocast("cpu", torch.bfloat16):
        results = [outputs_and_gradients(one, x, grad.bfloat16()) for one in (model, changed)]
    assert results[0][0].dtype == torch.bfloat16
    assert_close(*results, 1e-6)


def test_compiled(read):
    model = small_net().to(memory_format=CHANNELS_LAST)
    changed = copy.deepcopy(model)
    optimize(changed)
    x, grad = frames(3, 2, 3, 16, 16), torch.randn(3, 2, 10)
    compiled = torch.compile(changed, backend="eager")
    before = outputs_and_gradients(model, x, grad)
    y = compiled(x)
    assert_close(before, (y.detach(), list(torch.autograd.grad(y, list(changed.parameters()), grad))), 1e-5)
    assert read == []


def test_transforms_of_torch_func():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), FusedLIF(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3), FusedLIF(), nn.AvgPool2d(2), nn.Flatten(),
    ).to(memory_format=CHANNELS_LAST)  # fmt: skip
    changed = copy.deepcopy(model)
    optimize(changed)
    x = torch.randn(2, 3, 12, 12).to(memory_format=CHANNELS_LAST)
    grad, results = torch.randn(2, 16), []
    for one in (model, changed):

        def loss(parameters, one=one):
            reset_states(one)
            return (torch.func.functional_call(one, parameters, (x,)) * grad).sum()

        results.append(torch.func.grad(loss)(dict(one.named_parameters())))
        reset_states(one)
    for name, gradient in results[0].items():
        assert gradient.abs().max() > 0
        assert torch.equal(gradient, results[1][name])


def test_other_convolutions_stay_and_the_report_says_why():
    class Own(nn.Conv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    class Standardised(nn.Conv2d):
        def _conv_forward(self, x, weight, bias):
            return super()._conv_forward(x, weight - weight.mean(), bias)

    parts = {
        "groups": nn.Conv2d(32, 32, 3, groups=2),
        "dilated": nn.Conv2d(32, 32, 3, dilation=2),
        "padded": nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular"),
        "same": nn.Conv2d(32, 32, 3, padding="same"),
        "narrow": nn.Conv2d(24, 32, 3),
        "window": nn.Conv2d(16, 32, 1),
        "own": Own(32, 32, 3),
        "standard": Standardised(32, 32, 3),
        "normed": weight_norm(nn.Conv2d(32, 32, 3)),
        "lazy": nn.LazyConv2d(32, 3),
        "indices": nn.MaxPool2d(2, return_indices=True),
        "qif": neuron.QIFNode(),
        "taken": nn.Conv2d(32, 32, 3),
    }
    model = nn.ModuleDict({"lif": FusedLIF(), **parts})
    kinds = {name: type(module) for name, module in parts.items()}
    report = optimize(model)
    said = {entry.name: entry.reason for entry in report.left}
    assert said.keys() == parts.keys() - {"taken"}
    reasons = {
        "groups": "2 groups", "dilated": "dilation is (2, 2)", "padded": "padding is 'circular'", "same": "'same'",
        "narrow": "24 and 32 channels", "window": "less than 48", "own": "Own has a forward of its own",
        "standard": "Standardised has a _conv_forward of its own", "normed": "parametrised", "lazy": "no weights",
        "indices": "returns its indices", "qif": "dynamics of its own",
    }  # fmt: skip
    for name, reason in reasons.items():
        assert reason in said[name]
        assert reason in str(report)
        assert type(model[name]) is kinds[name]
    assert {entry.name for entry in report.changed} == {"lif", "taken"}
    assert "channels_last" in report.advice
    assert "2 of 14 layers were changed" in str(report)


def test_the_report_is_short_for_many_layers():
    model = MODELS["spiking_resnet18"]().to(memory_format=CHANNELS_LAST)
    report = optimize(model)
    assert len(report.changed) == 58
    assert len(str(report).splitlines()) == 8
    assert (
        "17  LIFNode        fused, and writes its spikes as bits: sn1, layer1.0.sn1, layer1.0.sn2 and 14 more"
        in str(report)
    )
    assert report.advice == ""


def test_parts_of_a_list_keep_spikes_small_each():
    """A list has no forward: what is called are its parts."""
    model = nn.ModuleList([Attention(), nn.ModuleDict({"second": Attention()})])
    report = optimize(model)
    assert [entry.name for entry in report.changed] == ["0", "0.neuron", "1.second", "1.second.neuron"]
    x = torch.randn(2, 8, 32, 64, requires_grad=True)
    assert held(model[1]["second"], x) < held(Attention(), x) - 3 * x.numel()


def test_a_model_without_neurons_is_left_alone():
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.AvgPool2d(2), neuron.QIFNode())
    before = snapshot(model)
    report = optimize(model)
    assert snapshot(model) == before
    assert report.changed == ()
    assert "nothing was changed" in str(report)
    assert "QIFNode" in str(report)
    with pytest.raises(TypeError, match=r"takes an nn\.Module"):
        optimize([model])


@pytest.mark.parametrize("name", MODELS)
def test_restore_gives_back_every_layer(name):
    model = MODELS[name]()
    before, keys = snapshot(model), list(model.state_dict())
    parameters = [id(p) for p in model.parameters()]
    optimize(model)
    assert list(model.state_dict()) == keys
    assert [id(p) for p in model.parameters()] == parameters
    assert snapshot(model) != before
    restore(model)
    after = snapshot(model)
    for (name, *first, held_before), (_, *then, held_after) in zip(before, after, strict=True):
        assert (name, first) == (name, then)
        assert held_before.keys() == held_after.keys()
    restore(model)  # once more changes nothing
    assert [entry[2] for entry in snapshot(model)] == [entry[2] for entry in before]


def test_restore_in_the_middle_of_a_sequence():
    """The state goes along, there and back."""
    model = nn.Sequential(layer.Conv2d(3, 16, 3), neuron.LIFNode(), layer.Conv2d(16, 16, 3), neuron.LIFNode()).double()
    changed = copy.deepcopy(model)
    x = torch.randn(3, 2, 3, 8, 8, dtype=torch.float64)
    for step, frame in enumerate(x):
        (optimize, restore, lambda _: None)[step](changed)
        torch.testing.assert_close(changed(frame), model(frame))
    assert type(changed[1]) is neuron.LIFNode


def test_twice_is_once():
    model = MODELS["spiking_resnet18"]()
    kinds = [type(module) for module in model.modules()]
    convert_neurons(model[0] if isinstance(model, nn.Sequential) else model.layer1)
    fused = [type(module) for module in model.modules()]
    optimize(model)
    again = optimize(model)
    assert again.changed == ()
    assert "optimised already" in str(again)
    restore(model)
    assert [type(module) for module in model.modules()] == fused  # what was fused before stays fused
    assert fused != kinds


def test_copies_and_pickles():
    model = small_net(lambda: neuron.LIFNode(step_mode="m")).to(memory_format=CHANNELS_LAST)
    optimize(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    x, grad = frames(3, 2, 3, 16, 16), torch.randn(3, 2, 10)
    before = outputs_and_gradients(model, x, grad)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert_close(before, outputs_and_gradients(other, x, grad), 0)
        restore(other)
        assert type(other) is nn.Sequential
        assert type(other[0]) is layer.Conv2d
        assert type(other[2]) is neuron.LIFNode


def test_a_class_that_was_given_since_is_not_lost():
    model = nn.Sequential(FusedLIF(), nn.Conv2d(16, 16, 3))
    optimize(model)
    weight_norm(model[1])
    with pytest.raises(ValueError, match="1 was given another class, ParametrizedConv2d, after it was optimised"):
        restore(model)
    remove_parametrizations(model[1], "weight")
    restore(model)
    assert type(model[1]) is nn.Conv2d


def test_a_learning_rule_trains_an_optimised_model():
    models = []
    for change in (convert_neurons, optimize):
        torch.manual_seed(3)
        model = MODELS["spiking_resnet18"]().to(memory_format=CHANNELS_LAST)
        change(model)
        rule = BPTT(units_from(model), lambda p: torch.optim.SGD(p, lr=0.1), torch.zeros(2, 3, 32, 32))
        torch.manual_seed(4)
        rule.step(torch.randn(2, 3, 32, 32).to(memory_format=CHANNELS_LAST), torch.tensor([1, 2]), T=2)
        models.append(model)
    for p, q in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-3)
    restore(models[1])
    assert type(models[1].conv1) is layer.Conv2d


def test_hooks_stay():
    model = small_net().to(memory_format=CHANNELS_LAST)
    seen = []
    for module in (model, model[3]):
        module.register_forward_hook(lambda module, args, output: seen.append(type(module).__name__))
        module.register_full_backward_hook(lambda module, *grads: seen.append(type(module).__name__))
    optimize(model)
    model(frames(3, 2, 3, 16, 16).requires_grad_()).sum().backward()
    assert seen[:2] == ["Conv2d", "Sequential"]
    assert sorted(seen[2:]) == ["Conv2d", "Sequential"]


def test_public_names():
    assert stdl_engine.optimize is optimize
    assert stdl_engine.restore is restore
