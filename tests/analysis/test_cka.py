"""Linear CKA: against a direct computation, and where its value is known."""

import math
from types import SimpleNamespace

import pytest
import torch

from stdl_engine.analysis.cka import Similarity, centred_gram, pairs_to_compare


def direct(x, y):
    """Unbiased HSIC as it is defined, by traces and sums."""
    n = len(x)
    k, m = (z.double() @ z.double().T for z in (x, y))
    k, m = (gram - gram.diag().diag() for gram in (k, m))
    one = torch.ones(n, dtype=torch.float64)
    whole = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return ((k @ m).trace() + whole - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3))


def cka(*batches):
    found = Similarity()
    for x, y in batches:
        found.add(centred_gram(x)[None], centred_gram(y)[None])
    return found.values()[0][0]


def test_is_what_the_definition_says():
    x, y = torch.randn(13, 3, 5, dtype=torch.float64), torch.randn(13, 7, dtype=torch.float64)
    expected = direct(x.flatten(1), y) / (direct(x.flatten(1), x.flatten(1)) * direct(y, y)).sqrt()
    assert cka((x, y)) == pytest.approx(expected.item(), rel=1e-12)


def test_minibatches_are_summed_before_the_ratio():
    batches = [(torch.randn(9, 4).double(), torch.randn(9, 6).double()) for _ in range(3)]
    sums = [sum(direct(*pair) for pair in pairs) for pairs in (
        batches, [(x, x) for x, _ in batches], [(y, y) for _, y in batches],
    )]  # fmt: skip
    assert cka(*batches) == pytest.approx((sums[0] / (sums[1] * sums[2]).sqrt()).item(), rel=1e-12)


def test_rotation_scale_and_shift_change_nothing():
    x = torch.randn(20, 6).double()
    rotation, _ = torch.linalg.qr(torch.randn(6, 6).double())
    assert cka((x, 3.7 * x @ rotation + 5)) == pytest.approx(1, abs=1e-12)


def test_independent_maps_are_near_zero_where_samples_are_few():
    """The biased estimate of so few samples of so many features is far from it."""
    pairs = [(torch.randn(8, 200), torch.randn(8, 200)) for _ in range(200)]
    assert abs(cka(*pairs)) < 0.05
    x, y = (z.double() - z.double().mean(0) for z in pairs[0])
    biased = ((x @ x.T) * (y @ y.T)).sum() / ((x @ x.T).norm() * (y @ y.T).norm())
    assert biased > 0.7


@pytest.mark.parametrize("value", [0.0, 1.0, 1 / 3, 1e6])
def test_constant_maps_are_undefined(value):
    x = torch.randn(10, 5)
    assert cka((x, torch.full((10, 7), value))) is None
    assert cka((torch.full((10, 7), value), torch.full((10, 7), value))) is None


def test_a_map_in_which_one_sample_differs_is_undefined():
    """Nothing can be said of which samples are alike; only rounding would be left."""
    x = torch.full((10, 50), 1 / 3)
    x[4] = torch.rand(50)
    assert cka((x, torch.randn(10, 5))) is None


def test_a_unit_that_is_constant_spoils_no_other():
    maps = torch.randn(12, 4).double()
    grams = torch.stack([centred_gram(maps), centred_gram(torch.ones(12, 3))])
    found = Similarity()
    found.add(grams, grams)
    assert found.values() == [[pytest.approx(1), None], [None, None]]
    assert not any(math.isnan(value) for row in found.values() for value in row if value is not None)


def study(references, others, yardstick=()):
    """What a study knows of runs, which are no more than seeds here."""

    def run(seed):
        return SimpleNamespace(recipe=SimpleNamespace(seed=seed))

    groups = {"BPTT": [run(seed) for seed in references], "STDL": [run(seed) for seed in others]}
    return SimpleNamespace(
        groups=lambda: {label: runs for label, runs in groups.items() if runs},
        reference=lambda: groups["BPTT"],
        reference_label="BPTT",
        yardstick=lambda: [run(seed) for seed in yardstick],
    )


@pytest.mark.parametrize(
    ("references", "yardstick", "others", "expected"),
    [
        ([0], [1], [0], [("BPTT, another seed", 0, 1), ("STDL", 0, 1)]),
        ([0, 1], [], [0, 1], [("BPTT, another seed", 0, 1), ("STDL", 0, 1), ("STDL", 1, 0)]),
        (
            [0, 1, 2], [], [0, 1, 2],
            [*(("BPTT, another seed", a, b) for a, b in ((0, 1), (1, 2), (2, 0))),
             *(("STDL", a, b) for a, b in ((0, 1), (1, 2), (2, 0)))],
        ),
        ([0], [], [0, 5], [("STDL", 0, 0), ("STDL", 5, 0)]),
    ],
)  # fmt: skip
def test_networks_of_other_seeds_are_compared(references, yardstick, others, expected):
    pairs, note = pairs_to_compare(study(references, others, yardstick))
    assert [(label, one.recipe.seed, two.recipe.seed) for label, one, two in pairs] == expected
    assert ("same random weights" in note) == any(one == two for _, one, two in expected)


def test_one_network_is_compared_with_none():
    with pytest.raises(ValueError, match="there is only one"):
        pairs_to_compare(study([0], []))


def test_too_few_samples():
    with pytest.raises(ValueError, match="it takes 4 or more"):
        centred_gram(torch.randn(3, 5))
