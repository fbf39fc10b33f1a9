"""The figures people come for, held: the paper's own table in the plain form, and what lean memory makes of it."""

import functools

import pytest
import torch

from stdl_engine.models import build_model
from stdl_engine.planning.planner import predict
from stdl_engine.rules import BPTT, SLTT, STDL, EvenLocal

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
BATCH = (512, 3, 32, 32)


def gigabytes(rule, T, **options):
    with torch.device("meta"):
        model = build_model("resnet18")
    if rule is STDL:
        options["budget"] = "published"
    return predict(rule, model, SGD, BATCH, T, **options).peak_bytes / 1e9


@pytest.mark.parametrize(
    ("rule", "T", "published", "within"),
    [
        (BPTT, 2, 8.40, 0.02),
        (BPTT, 4, 15.45, 0.02),
        (BPTT, 6, 22.50, 0.02),
        (SLTT, 4, 4.88, 0.02),
        (STDL, 4, 3.51, 0.03),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_plain_form_is_the_published_one(rule, T, published, within):
    assert gigabytes(rule, T, memory="paper") == pytest.approx(published, rel=within)


@pytest.mark.parametrize(("K", "published"), [(3, 3.36), (5, 2.63), (7, 2.29), (9, 2.29)])
def test_even_groups_take_what_the_published_ones_do(K, published):
    assert gigabytes(EvenLocal, 1, K=K, memory="paper") == pytest.approx(published, rel=0.015)


def test_lean_stdl():
    at_4, at_20 = gigabytes(STDL, 4), gigabytes(STDL, 20)
    assert at_4 <= 1.50
    assert at_20 <= 1.57
    assert 2 * at_4 <= 3.51
    assert 8 * at_4 <= 15.45


def test_lean_stdl_grows_with_time_only_by_the_bits_between_subnetworks():
    """The peak is in subnetwork 2, whose input, 64 maps of 32 × 32, waits as bits while its own outputs add up."""
    bits = 512 * 64 * 32 * 32 // 8
    assert round(1e9 * (gigabytes(STDL, 8) - gigabytes(STDL, 4))) == 4 * bits
