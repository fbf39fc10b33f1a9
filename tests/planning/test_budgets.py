"""What may be written as a budget, and one sentence for what may not."""

import math

import numpy as np
import pytest

from stdl_engine.planning.budgets import Budget, format_bytes, parse_budget, parse_bytes


@pytest.mark.parametrize("budget", [0.5, "0.5", " .5 ", "5e-1", "+0.5", np.float64(0.5), Budget(fraction=0.5)])
def test_fractions(budget):
    assert parse_budget(budget) == Budget(fraction=0.5)


@pytest.mark.parametrize("budget", [1, 1.0, "1", "1.0"])
def test_one_is_the_whole_network(budget):
    assert parse_budget(budget) == Budget(fraction=1.0)


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        (2e9, 2_000_000_000),
        (2_000_000_000, 2_000_000_000),
        ("2e9", 2_000_000_000),
        ("2000000000", 2_000_000_000),
        ("2GB", 2_000_000_000),
        ("2 gb", 2_000_000_000),
        ("2GiB", 2 * 2**30),
        ("0.5GiB", 2**29),
        (".5gib", 2**29),
        ("1B", 1),
        ("3KB", 3_000),
        ("3KiB", 3 * 2**10),
        ("3MB", 3_000_000),
        ("3MiB", 3 * 2**20),
        ("1.5TB", 1_500_000_000_000),
        ("2TiB", 2 * 2**40),
    ],
)
def test_bytes(budget, size):
    assert parse_budget(budget) == Budget(size=size)
    assert parse_bytes(budget) == size


@pytest.mark.parametrize("budget", [1.5, "1.5", 24, "999"])
def test_neither_a_fraction_nor_bytes(budget):
    with pytest.raises(ValueError, match=r"more than the whole network and too few bytes to mean it: write"):
        parse_budget(budget)


def test_published():
    assert parse_budget("published") == Budget(published=True)


@pytest.mark.parametrize(
    "budget", ["abc", "2XB", "", " ", "GiB", ".", "1.2.3", "1..2", "--1", "50%", "1,5", "0x10", "nan", "inf"]
)
def test_text_that_says_nothing(budget):
    with pytest.raises(ValueError, match=r"^cannot read the budget .*: write a fraction .* or \"published\"\.$"):
        parse_budget(budget)


@pytest.mark.parametrize("budget", [True, False, None, [0.5], 1j])
def test_things_that_are_no_number(budget):
    with pytest.raises(TypeError, match=r"^cannot read the budget .*: write a fraction .* or \"published\"\.$"):
        parse_budget(budget)


@pytest.mark.parametrize("budget", [0, 0.0, -1, -0.5, "0", "-0.5", "-2GiB", "0GiB", "0.1B"])
def test_budgets_must_be_positive(budget):
    with pytest.raises(ValueError, match=r"^the budget .* is not positive and finite: write a fraction .*\.$"):
        parse_budget(budget)


@pytest.mark.parametrize("budget", [math.nan, math.inf, -math.inf, "1e999", "1e999GiB"])
def test_budgets_must_be_finite(budget):
    with pytest.raises(ValueError, match=r"^the budget .* is not positive and finite: write a fraction .*\.$"):
        parse_budget(budget)


@pytest.mark.parametrize("size", [0.5, 1, "published"])
def test_a_fraction_is_no_amount_of_memory(size):
    with pytest.raises(ValueError, match=r"is no amount of memory: write bytes"):
        parse_bytes(size)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.00 kB"),
        (1_740_000_000, "1.74 GB"),
        (2**20, "1.05 MB"),
        (5e12, "5000.00 GB"),
    ],
)
def test_bytes_for_people(size, text):
    assert format_bytes(size) == text
