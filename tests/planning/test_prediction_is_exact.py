"""The planner's peak is the peak: real tensors, followed by the same tracker, reach the same byte."""

import functools
import re

import pytest
import torch

from stdl_engine.kernels.layout import empty_steps
from stdl_engine.models import build_model
from stdl_engine.planning.planner import measure, predict
from stdl_engine.rules import BPTT, DECOLLE, ELL, SLTT, STDL, EvenLocal

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-3)
RULES = [(BPTT, {}), (SLTT, {}), (ELL, {}), (DECOLLE, {}), (EvenLocal, {"K": 3}), (STDL, {"budget": 0.6})]
SHAPE, T = (4, 3, 16, 16), 3

every_rule = pytest.mark.parametrize(("rule", "options"), RULES, ids=[rule.__name__ for rule, _ in RULES])
both_memories = pytest.mark.parametrize("memory", ["lean", "paper"])


def peaks(rule, model, optimizer, *, sequence=False, autocast=None, **options):
    predicted = predict(rule, model, optimizer, SHAPE, T, sequence=sequence, autocast=autocast, **options)
    x = torch.randn((T, *SHAPE) if sequence else SHAPE)
    trained = rule(model, optimizer, torch.randn(SHAPE), **options)
    return predicted, measure(trained, x, torch.randint(10, SHAPE[:1]), T, autocast=autocast)


@both_memories
@every_rule
def test_every_rule(rule, options, memory):
    predicted, measured = peaks(rule, build_model("resnet18", width=0.0625), SGD, memory=memory, **options)
    assert predicted.peak_bytes == measured.peak_bytes
    assert predicted.parts == measured.parts
    assert predicted.place == measured.place
    assert predicted.subnetworks == measured.subnetworks
    assert sum(predicted.parts.values()) == predicted.peak_bytes
    assert max(part["peak_bytes"] for part in predicted.subnetworks) == predicted.peak_bytes


@both_memories
@pytest.mark.parametrize("model", ["vgg11", "sew_resnet34"])
def test_other_networks(model, memory):
    predicted, measured = peaks(STDL, build_model(model, width=0.0625), ADAMW, memory=memory, budget=0.7)
    assert predicted.peak_bytes == measured.peak_bytes


@both_memories
def test_statistics_that_are_means_over_all_batches(memory):
    model = build_model("vgg11", width=0.0625)
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None
    predicted, measured = peaks(SLTT, model, SGD, memory=memory)
    assert predicted.peak_bytes == measured.peak_bytes


@pytest.mark.parametrize("order", ["subnetwork", "time"])
@pytest.mark.parametrize("sequence", [False, True], ids=["image", "sequence"])
def test_orders_and_sequences(order, sequence):
    model = build_model("resnet18", width=0.0625)
    predicted, measured = peaks(STDL, model, SGD, sequence=sequence, order=order, budget="published")
    assert predicted.peak_bytes == measured.peak_bytes


@pytest.mark.parametrize("chunk", [1, T])
def test_frames_in_the_samples_memory_order(chunk):
    """In another one than the model's, which convolutions follow."""
    x = torch.randn(SHAPE).contiguous(memory_format=torch.channels_last)
    frames, y = empty_steps(x, T, x.dtype).normal_(), torch.randint(10, (len(x),))
    options = {"sequence": True, "chunk": chunk}
    predicted = predict(SLTT, build_model("resnet18", width=0.0625), SGD, x, T, **options)
    rule = SLTT(build_model("resnet18", width=0.0625), SGD, x, steps=T, **options)
    assert measure(rule, frames, y, T).peak_bytes == predicted.peak_bytes


@pytest.mark.parametrize("mixed", [{"autocast": torch.bfloat16}, {"precision": "bf16"}], ids=["around", "its own"])
@both_memories
def test_autocast(memory, mixed):
    model = build_model("resnet18", width=0.0625)
    predicted, measured = peaks(STDL, model, SGD, memory=memory, budget="published", **mixed)
    assert predicted.peak_bytes == measured.peak_bytes
    assert predicted.parts == measured.parts


def test_parameters_and_optimizer_are_counted_by_hand():
    model = build_model("resnet18", width=0.0625)
    predicted = predict(SLTT, model, SGD, SHAPE, T)
    held = [*model.parameters(), *model.buffers()]
    assert predicted.parts["parameters"] == sum(t.nbytes for t in held)
    assert predicted.parts["optimizer"] == sum(p.nbytes for p in model.parameters())  # one momentum each


def test_planning_leaves_the_model_alone():
    model = build_model("resnet18", width=0.0625).eval()
    before = [t.clone() for t in (*model.parameters(), *model.buffers())]
    predict(STDL, model, SGD, SHAPE, T, budget=0.6)
    assert all(torch.equal(a, b) for a, b in zip(before, (*model.parameters(), *model.buffers()), strict=True))
    assert not model.training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@both_memories
def test_cuda_allocates_what_was_predicted(memory):
    """The allocator rounds each tensor up to 512 bytes, and cuDNN's workspaces come on top: 10% for both."""
    shape = (64, 3, 32, 32)
    model = build_model("resnet18").cuda()
    predicted = predict(STDL, model, SGD, shape, T, memory=memory, budget="published").peak_bytes
    x, y = torch.randn(shape, device="cuda"), torch.randint(10, shape[:1], device="cuda")
    rule = STDL(model, SGD, x, memory=memory, budget="published")
    rule.step(x, y, 1)
    torch.cuda.reset_peak_memory_stats()
    rule.step(x, y, T)
    assert predicted <= torch.cuda.max_memory_allocated() <= 1.1 * predicted


@pytest.mark.parametrize("backend", ["cpu", "triton", "reference"])
def test_neurons_with_a_backend_of_their_own(backend):
    """Planning asks for shapes only, whatever the backend runs on; the plain reference keeps more than a kernel."""
    model = build_model("resnet18", width=0.0625, backend=backend)
    auto = predict(STDL, build_model("resnet18", width=0.0625), SGD, SHAPE, T, budget="published").peak_bytes
    planned = predict(STDL, model, SGD, SHAPE, T, budget="published").peak_bytes
    assert planned > auto if backend == "reference" else planned == auto
    x, y = torch.randn(SHAPE), torch.randint(10, SHAPE[:1])
    if backend != "triton":
        assert measure(STDL(model, SGD, x, budget="published"), x, y, T).peak_bytes == planned


def test_a_prediction_in_words():
    options = {"budget": 0.6, "recompute": "all", "chunk": 3}
    predicted = predict(STDL, build_model("resnet18", width=0.0625), SGD, SHAPE, T, **options)
    peak, parts, place, again, together, *subnetworks = str(predicted).splitlines()
    assert peak == f"STDL, lean memory, batch 4, T=3: peak {predicted.peak_bytes / 1e6:.2f} MB"
    assert parts.startswith(f"parameters {predicted.parts['parameters'] / 1e3:.2f} kB, optimizer ")
    assert re.fullmatch(r"reached in time step 1, subnetwork \d, (forward|backward|recompute|optimizer)", place)
    assert again.startswith("run again in backward: 1/0:4C3, ")
    assert together == "3 time steps run together"
    assert [line[:3] for line in subnetworks] == [f"{n}. " for n in range(1, 1 + len(predicted.subnetworks))]
    assert re.fullmatch(r"1\. 4C3-.*, auxiliary .*-10FC: [\d.]+ MB", subnetworks[0])
