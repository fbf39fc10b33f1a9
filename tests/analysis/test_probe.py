"""Linear probes: a closed form that is the minimum, and accuracies that are known."""

import pytest
import torch

from stdl_engine.analysis.probe import Ridge, probe


def classes(samples, seed, noise=0.3):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % 3
    return torch.eye(3)[y] @ torch.ones(3, 8).cumsum(1) + noise * torch.randn(samples, 8, generator=g), y


def test_ridge_is_the_minimum_of_its_loss():
    x, y = classes(60, 0)
    x = x + torch.eye(3)[y].repeat(1, 3)[:, :8]
    ridge, strength = Ridge(x, y, 3), 0.1
    z = (x.double() - ridge.mean) / ridge.scale
    targets = torch.nn.functional.one_hot(y, 3).double() - ridge.offset
    expected = torch.linalg.solve(z.T @ z / len(z) + strength * torch.eye(8).double(), z.T @ targets / len(z))
    found = ridge.vectors @ (ridge.projected / (ridge.values[:, None] + strength))
    assert torch.allclose(found, expected, atol=1e-12)


def test_separable_classes_are_separated_and_noise_is_not():
    def samples(n, seed):
        y = torch.arange(n) % 2
        x = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed))
        x[:, 0] += 6 * y
        return x, y

    assert probe(samples(200, 0), samples(100, 1), 2) == pytest.approx(1, abs=0.02)
    (x, y), (x_test, y_test) = samples(400, 2), samples(1000, 3)
    assert 0.4 < probe((x[:, 1:], y), (x_test[:, 1:], y_test), 2) < 0.6


def test_more_features_than_samples_and_features_that_never_change():
    y = torch.arange(30) % 2
    x = torch.randn(30, 100)
    x[:, :50] = 1 / 3
    x[:, 50] += 20 * y
    assert probe((x, y), (x, y), 2) == 1
    assert probe((torch.ones(30, 4), y), (torch.ones(30, 4), y), 2) == 0.5
