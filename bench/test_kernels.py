"""The layers of bench/peers.py under pytest-benchmark: agreement as tests, time as a table.

    pytest bench/test_kernels.py                                        # agreement, and every case once
    make bench-compare                                                  # times, against the previous run

The project's pytest options switch benchmarks off, so the first form asserts and the second only measures: no test
fails for being slow. Rounds are not interleaved here; `python -m bench kernels` does that and gives the ratios.
"""

from __future__ import annotations

import pytest

from bench import kernels
from bench.agreement import agreement
from bench.peers import CONTENDERS, Contender, inputs

NEURONS, SMALL = 2**20, 2**10
ROUNDS, WARMUP_ROUNDS = 10, 2
SETTINGS = [kernels.Setting(online=online, T=T) for T in (1, 4) for online in (True, False)]
LAYERS = [contender for contender in CONTENDERS.values() if contender.name != "torch.compile"]  # compiles for too long


@pytest.fixture(params=LAYERS, ids=lambda contender: contender.name)
def contender(request) -> Contender:
    if request.param.missing:
        pytest.skip(request.param.missing)
    return request.param


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_spikes_and_gradients_agree(contender: Contender, setting: kernels.Setting) -> None:
    found = agreement(contender, online=setting.online, T=setting.T)
    assert found.same, found


@pytest.mark.parametrize("direction", kernels.DIRECTIONS)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_speed(benchmark, contender: Contender, setting: kernels.Setting, direction: str) -> None:
    neurons = (NEURONS if benchmark.enabled else SMALL) // setting.T
    benchmark.group = f"{direction}, {setting}, {neurons} neurons"
    x, grad = inputs(neurons, setting.T)
    layer = contender.build(setting.online, setting.T)
    case = kernels.case(layer, setting, x, grad, backward=direction == kernels.DIRECTIONS[1])
    benchmark.pedantic(case.run, rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS)
