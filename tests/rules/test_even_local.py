"""K even groups."""

import functools

import pytest

from stdl_engine.rules import EvenLocal
from stdl_engine.units import PooledHead

from .nets import batch, make, sgd, small


@pytest.mark.parametrize("K", range(1, 10))
def test_groups_differ_by_one_unit_at_most(K):
    x, _ = batch()
    rule = make("even", small(), x, K=K)
    sizes = [len(part.units) for part in rule.subnetworks]
    assert len(sizes) == K
    assert sum(sizes) == 9
    assert max(sizes) - min(sizes) <= 1
    assert [unit for part in rule.subnetworks for unit in part.units] == list(rule.model)[:-1]
    assert all(isinstance(part.classifier[0], PooledHead) for part in rule.subnetworks[:-1])
    assert rule.subnetworks[-1].classifier is rule.model[-1]


@pytest.mark.parametrize("K", [0, -1, 10, 2.0, "3", None, True])
def test_k_must_be_a_number_of_units(K):
    x, _ = batch()
    with pytest.raises(ValueError, match=r"^K is .*: this network has 9 units, so K must be 1 to 9\.$"):
        make("even", small(), x, K=K)


def test_k_must_be_given():
    x, _ = batch()
    with pytest.raises(TypeError, match="K"):
        functools.partial(EvenLocal, small(), sgd, x)()
