"""The layers of bench/peers.py under pytest-benchmark: agreement as tests, time as a table.

    pytest bench/test_peers.py                                        # agreement, and every case once
    pytest bench/test_peers.py --benchmark-enable --benchmark-only    # times, 4 million float32 neurons

The project's pytest options switch benchmarks off, so the first form asserts and the second only measures: no test
fails for being slow. Rounds are not interleaved here; `python -m bench peers` does that and gives the ratios.
"""

from __future__ import annotations

import pytest

from bench import peers

ROUNDS, WARMUP_ROUNDS = 10, 2


@pytest.mark.parametrize("peer", [peer for peer in peers.PEERS.values() if peer.same], ids=lambda peer: peer.package)
def test_spikes_and_gradients_agree(peer: peers.Peer) -> None:
    pytest.importorskip(peer.package)
    peers.agreement(peer)


@pytest.mark.parametrize("contender", ["FusedLIF", "FusedLIF(online=True)", "peer"])
@pytest.mark.parametrize("name", peers.PEERS)
@pytest.mark.parametrize("start", peers.STARTS)
def test_speed(benchmark, start: str, name: str, contender: str) -> None:
    peer = peers.PEERS[name]
    pytest.importorskip(peer.package)
    layer = peer.build() if contender == "peer" else peers.fused(peer.surrogate, online="online" in contender)
    benchmark.group = f"{name}, {start}, forward and backward, {peers.NEURONS // 1_000_000}M neurons"
    x, grad = peers.inputs(peers.NEURONS if benchmark.enabled else 10_000)
    case = peers.STARTS[start](layer, x, grad)
    benchmark.pedantic(case.run, setup=case.prepare, rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS)
