"""Which norms are fused, what is said about the others, and how they come back; compilers, rules and files."""

import copy
import io

import pytest
import torch
from spikingjelly.activation_based import layer
from torch import Tensor, nn
from torch.autograd import forward_ad

import stdl_engine
from stdl_engine import BPTT, FusedALIF, FusedLIF, fuse_norms, optimize, reset_states, restore
from stdl_engine.kernels.norm_lif import PendingMap
from stdl_engine.units import ConvUnit, Head

from ..test_optimize import CHANNELS_LAST, assert_close, frames
from ..test_recompute import assert_equal
from .blocks import Block, Read, results_of


def test_small_maps_stay_with_pytorch(monkeypatch):
    monkeypatch.undo()
    model = nn.Sequential(nn.BatchNorm2d(16), FusedLIF())
    fuse_norms(model)
    small = torch.randn(2, 16, 4, 4).to(memory_format=CHANNELS_LAST)
    large = torch.randn(16, 16, 32, 32).to(memory_format=CHANNELS_LAST)
    assert type(model[0](small)) is Tensor
    assert type(model[0](large)) is PendingMap
    assert type(model[0](large.contiguous())) is PendingMap
    assert type(model[0](torch.randn(16, 32, 16, 32).transpose(1, 2))) is Tensor
    assert type(model[0](large.double().float().requires_grad_())) is PendingMap


def test_reports_and_restore():
    class Own(nn.BatchNorm2d):
        def forward(self, x):
            return 2 * super().forward(x)

    class Named(nn.BatchNorm2d):
        pass

    model = nn.Sequential(
        nn.BatchNorm2d(16), layer.BatchNorm2d(32), Named(8), nn.BatchNorm2d(24), nn.BatchNorm2d(4096), Own(16),
        nn.BatchNorm1d(16), FusedLIF(),
    )  # fmt: skip
    before = [(type(module), set(vars(module))) for module in model.modules()]
    keys = list(model.state_dict())
    report = fuse_norms(model)
    assert [entry.name for entry in report.changed] == ["0", "1", "2", "3"]
    assert {entry.name: entry.reason for entry in report.left} == {
        "4": "4096 channels are more than 2048",
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
        written.clear()  # what was measured before the first step
        rule.step(torch.randn(2, 3, 8, 8).to(memory_format=CHANNELS_LAST), torch.tensor([1, 2]), T=3)
        results.append([*model.parameters(), *model.buffers()])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
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


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_part_reads_a_view_of_the_map(backend):
    plain = Read(lambda y, neuron: neuron(y.view(3, 2, *y.shape[1:])))
    other = copy.deepcopy(plain)
    fuse_norms(other)
    other.neuron = torch.compile(other.neuron, backend=backend)
    x, grad = torch.randn(6, 16, 6, 6).to(memory_format=CHANNELS_LAST), torch.randn(3, 2, 16, 6, 6)
    results = []
    for model in (plain, other):
        given = x.clone().requires_grad_()
        y = model(given)
        results.append((y.detach(), torch.autograd.grad(y, [given, *model.parameters()], grad)))
    assert_close(*results, 1e-5)


def test_statistics_are_counted_in_training_only():
    model = nn.Sequential(nn.BatchNorm2d(16), FusedLIF()).eval()
    model[0].running_mean = model[0].running_var = None
    fuse_norms(model)
    assert type(model[0](torch.randn(2, 16, 6, 6))) is PendingMap
    assert model[0].num_batches_tracked == 0


def test_forward_mode_differentiation():
    model = nn.Sequential(nn.BatchNorm2d(16), FusedLIF(backend="reference")).eval()
    x, tangents = torch.randn(2, 16, 6, 6), []
    for _ in range(2):
        reset_states(model)
        with forward_ad.dual_level():
            tangents.append(forward_ad.unpack_dual(model(forward_ad.make_dual(x, torch.ones_like(x)))).tangent)
        fuse_norms(model)
    assert torch.equal(*tangents)


def test_no_second_derivatives():
    model = nn.Sequential(nn.BatchNorm2d(16), FusedLIF())
    fuse_norms(model)
    x = torch.randn(2, 16, 4, 4).to(memory_format=CHANNELS_LAST).requires_grad_()
    (grad,) = torch.autograd.grad(model(x), x, torch.randn(2, 16, 4, 4), create_graph=True)
    with pytest.raises(RuntimeError):
        grad.sum().backward()


def test_public_name():
    assert stdl_engine.fuse_norms is fuse_norms
