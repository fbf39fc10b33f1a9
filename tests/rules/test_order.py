"""The schedule: subnetwork by subnetwork gives what time step by time step gives, to the last bit."""

import pytest

from stdl_engine.stream import subnetwork_major, time_major

from .nets import assert_same, assert_same_results, batches, make, numbers, small, train


@pytest.mark.parametrize(
    ("memory", "frames"), [("lean", 0), ("lean", 3), ("paper", 0)], ids=["lean-static", "lean-sequence", "paper-static"]
)
@pytest.mark.parametrize("rule", ["stdl", "ell", "even", "decolle"])
def test_both_orders_give_the_same(rule, memory, frames):
    data = batches(3, frames=frames)
    sample = data[0][0][0] if frames else data[0][0]
    found = {order: make(rule, small(), sample, memory=memory, order=order) for order in ("subnetwork", "time")}
    results = {order: train(made, data, T=3) for order, made in found.items()}
    assert_same_results(results["subnetwork"], results["time"])
    a, b = (numbers(made) for made in found.values())
    assert_same(a, b)
    tracked = {key: value for key, value in a.items() if key.endswith("num_batches_tracked")}
    assert set(map(int, tracked.values())) == {3 * 3}  # batch norm sees every time step of every batch


@pytest.mark.parametrize("name", ["vgg16", "sew_resnet34"])
def test_other_models_too(name):
    data = batches(2, name)
    found = [make("stdl", small(name), data[0][0], order=order) for order in ("subnetwork", "time")]
    assert_same_results(*(train(made, data) for made in found))
    assert_same(*map(numbers, found))


@pytest.mark.parametrize(("memory", "order"), [("lean", "subnetwork"), ("paper", "time")])
def test_default_order(memory, order):
    (x, _), *_ = batches(1)
    assert make("stdl", small(), x, memory=memory).order == order


def visits(run) -> list[str]:
    found = []

    def learn(subnetwork, t, x):
        found.append(f"{subnetwork}{t}")
        return f"{x}{subnetwork}"

    run("ab", ["x", "y"], learn, lambda subnetwork: found.append(f"{subnetwork} done"))
    return found


def test_what_runs_when():
    assert visits(subnetwork_major) == ["a0", "a1", "a done", "b0", "b1", "b done"]
    assert visits(time_major) == ["a0", "b0", "a1", "b1", "a done", "b done"]


@pytest.mark.parametrize("run", [subnetwork_major, time_major])
def test_each_subnetwork_takes_what_the_one_before_gave(run):
    taken = []

    def learn(subnetwork, t, x):
        taken.append((subnetwork, t, x))
        return f"{x}{subnetwork}"

    run("abc", ["x", "y"], learn, lambda subnetwork: None)
    expected = [(s, t, x + before) for s, before in (("a", ""), ("b", "a"), ("c", "ab")) for t, x in enumerate("xy")]
    assert sorted(taken) == sorted(expected)


def test_maps_between_subnetworks_are_forgotten_as_they_are_used():
    class Map:
        alive = 0

        def __init__(self):
            Map.alive += 1

        def __del__(self):
            Map.alive -= 1

    seen = []

    def learn(subnetwork, t, x):
        seen.append(Map.alive)
        return Map()

    subnetwork_major("ab", [None] * 4, learn, lambda subnetwork: None)
    # The second subnetwork's outputs pile up as the first one's are used up, with one of those in hand.
    assert seen == [0, 1, 2, 3, 4, 4, 4, 4]
    assert Map.alive == 0


def test_unknown_order():
    (x, _), *_ = batches(1)
    with pytest.raises(ValueError, match=r"^unknown order 'layer': pass one of subnetwork, time\.$"):
        make("stdl", small(), x, order="layer")
