"""Counts that need no GPU: bytes in PTX with and without a loop, minima, and launches."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is for Linux only")

from bench import launches, static
from bench.peers import CONTENDERS
from bench.session import Session
from bench.traffic import backward_bytes, forward_bytes
from stdl_engine import FusedALIF, FusedLIF, FusedPLIF
from stdl_engine.kernels import dispatch
from stdl_engine.kernels.inspect import KERNELS

needs_interpreter = pytest.mark.skipif(not dispatch.interpreting(), reason="Triton is not in its interpreter")
STRAIGHT = """
	ld.global.v4.b32 	{ %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	st.global.v2.b32 	[ %rd2 + 0 ], { %r1, %r2 };
"""
LOOP = """
	ld.global.v4.b32 	{ %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
$L__BB0_1:
	ld.global.b32 	{ %r5 }, [ %rd1 + 0 ];
	@%p4 bra 	$L__BB0_1;
	st.global.v2.b32 	[ %rd2 + 0 ], { %r1, %r2 };
"""
COMPILE = """
import json
from bench import static
print(json.dumps(static.jelly_figures("fwd", 4)))
"""


def test_bytes_of_straight_code_and_of_a_loop():
    assert static.thread_bytes(STRAIGHT, 7) == 16 + 8
    assert static.thread_bytes(LOOP, 1) == 16 + 4 + 8
    assert static.thread_bytes(LOOP, 5) == 16 + 5 * 4 + 8


def test_every_kernel_has_a_minimum():
    assert set(static.MINIMUM) == set(KERNELS)
    assert static.MINIMUM["lif_online_fwd"].bytes(4) == 16.125
    assert static.MINIMUM["lif_online_bwd"].bytes(2) == 8


def test_the_traffic_of_a_step_is_the_kernels_minimum_without_bits():
    import torch

    assert forward_bytes(True, torch.float32) == static.MINIMUM["lif_online_fwd"].bytes(4) - 1 / 8
    assert forward_bytes(False, torch.bfloat16) == static.MINIMUM["lif_sequence_fwd"].bytes(2) - 1 / 8
    assert backward_bytes(torch.float16) == static.MINIMUM["lif_sequence_bwd"].bytes(2)


def test_spikingjellys_kernel_compiled_for_sm_90():
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILE], env=kept, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["bytes"] == (4 * 3 + 2) * 4 / 4  # x, spikes and h a step; the voltage in and out
    assert found["note"].endswith("0 B spilled")


@needs_interpreter
def test_interpreted_kernels_are_not_compiled():
    with pytest.raises(ValueError, match="TRITON_INTERPRET is set"):
        static.run(Session("static", 2, quick=True))


@needs_interpreter
@pytest.mark.parametrize("kind", [FusedLIF, FusedPLIF, FusedALIF])
@pytest.mark.parametrize("online", [True, False])
def test_our_layers_launch_one_kernel_a_step(kind, online):
    assert launches.count(launches.ours(kind, online, 1), online, 1) == {"forward": 1, "backward": 1}


@needs_interpreter
@pytest.mark.parametrize("kind", [FusedLIF, FusedPLIF, FusedALIF])
@pytest.mark.parametrize("online", [False, True], ids=["exact", "online"])
def test_a_sequence_is_one_launch_for_all_steps(kind, online):
    assert launches.count(launches.ours(kind, online, 4), online, 4) == {"forward": 0.25, "backward": 0.25}


@needs_interpreter
def test_plain_pytorch_launches_a_kernel_for_every_operator():
    found = launches.count(CONTENDERS["reference"].build(True, 1), True, 1)
    assert found["forward"] == 11
    assert found["backward"] > 1
