"""The traffic, vector width and spills of the compiled kernels, which no change may worsen unseen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is for Linux only")

from stdl_engine.kernels.inspect import DTYPES, KERNELS, TARGETS, Access, accesses
from stdl_engine.kernels.triton_tile import BLOCK

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
EXPECTED = {  # bytes read and written by dtype: the state is float32, the rest has the caller's dtype, bits are 1/8
    "lif_online_fwd": lambda io: (4 + io, 4 + io + 1 / 8),
    "lif_online_bwd": lambda io: (4 + io, io),
    "lif_fwd": lambda io: (4 + io, 4 + io),
    "lif_bwd": lambda io: (4 + 4 + 4 + io, io + 4),
    # A neuron and step: the membrane is read from memory only to go back.
    "lif_sequence_fwd": lambda io: (io, 4 + io + 1 / 8),
    "lif_sequence_bwd": lambda io: (4 + io, io),
    "lif_online_sequence_bwd": lambda io: (4 + io, io),
    # To go back the decay's gradient needs the membrane of the step before, too.
    "plif_online_fwd": lambda io: (4 + io, 4 + io + 1 / 8),
    "plif_online_bwd": lambda io: (4 + 4 + io, io),
    "plif_bwd": lambda io: (4 + 4 + 4 + io, io + 4),
    # Going back through time it is read anyway, to go on with; online every step reads both of its own.
    "plif_sequence_fwd": lambda io: (io, 4 + io + 1 / 8),
    "plif_sequence_bwd": lambda io: (4 + io, io),
    "plif_online_sequence_bwd": lambda io: (4 + 4 + io, io),
    # Two states.
    "alif_online_fwd": lambda io: (4 + 4 + io, 4 + 4 + io + 1 / 8),
    "alif_online_bwd": lambda io: (4 + 4 + io, io),
    "alif_bwd": lambda io: (6 * 4 + io, io + 4 + 4),
    "alif_sequence_fwd": lambda io: (io, 4 + 4 + io + 1 / 8),
    "alif_sequence_bwd": lambda io: (4 + 4 + io, io),
    "alif_online_sequence_bwd": lambda io: (4 + 4 + io, io),
    # Batch norm's input is read once for its statistics and once more with the neuron; spikes are bits, or a map, too.
    "norm_moments": lambda io: (io, 0),
    "norm_moments_runs": lambda io: (io, 0),
    "norm_lif_fwd": lambda io: (io + 4, 4 + 1 / 8),
    "norm_lif_padded_fwd": lambda io: (io + 4, 4 + 1 / 8),
    "norm_lif_runs_fwd": lambda io: (io + 4, 4 + 1 / 8),
    "norm_lif_dense_fwd": lambda io: (io + 4, 4 + io + 1 / 8),
    "norm_lif_added_fwd": lambda io: (io + io + 4, 4 + 1 / 8),
    "norm_lif_online_bwd": lambda io: (io + 4 + io, io),
    "norm_lif_runs_online_bwd": lambda io: (io + 4 + io, io),
    "norm_lif_bwd": lambda io: (io + 4 + 4 + 4 + io, io + 4),
    "norm_lif_steps_bwd": lambda io: (io + 4 + io, io),
    "norm_map": lambda io: (io, io),
    "norm_sums": lambda io: (io + io, 0),
    "norm_grad_x": lambda io: (io + io, io),
    "norm_grad_x_runs": lambda io: (io + io, io),
}
# At most 64 a thread: an SM of 65,536 registers holds 1,024 threads or more. With two states, or a state and a sum,
# carried through time, or two sums per channel, it holds 768; with both, 640.
REGISTERS = {"plif_sequence_bwd": 80, "alif_sequence_fwd": 80, "alif_sequence_bwd": 80}
REGISTERS |= {"norm_lif_online_bwd": 80, "norm_lif_bwd": 96, "norm_lif_steps_bwd": 80}
DUMP_INTERMEDIATE = """
import json
from stdl_engine.kernels.inspect import DTYPES, KERNELS, TARGETS, Kernel, compile_kernel, resources
from stdl_engine.kernels.lif.triton import plif_grad_w
ttgir = [[name, dtype, target, compile_kernel(kernel, dtype, TARGETS[target]).asm["ttgir"]]
         for name, kernel in KERNELS.items() for dtype in DTYPES for target in TARGETS]
final = Kernel(plif_grad_w, (), {"SCALE_BY_DECAY": True})
spills = [resources(compile_kernel(final, "float32", target))[1] for target in TARGETS.values()]
print(json.dumps({"ttgir": ttgir, "final_sum_spills": spills}))
"""


COMPILE_CHOICES = """
import itertools
from stdl_engine.kernels.inspect import _NORM_BWD, _NORM_FWD, _PADDED, _RUNS, TARGETS, Kernel, _norm, compile_kernel
from stdl_engine.kernels.norm_lif import triton_fire, triton_norm
table = {"HAS_WEIGHT": True, "HAS_BIAS": True, "TRACKS": True, "CHANNELS": 48, "WIDTH": 64}
some = [Kernel(triton_norm.norm_table, (), table)]
learned = {"LEARNED": True, "SCALE_BY_DECAY": True}
for places, reset in itertools.product((_PADDED, _RUNS), ("soft", "hard", "none")):
    forward = _NORM_FWD | places | learned | {"ADDS": "bits", "KEEP": True, "DENSE": True, "RESET": reset}
    backward = _NORM_BWD | places | learned | {"HAS_GRAD_W": True, "HAS_GRAD_M": True, "HAS_PAST": True}
    backward |= {"RESET": reset, "DETACH_RESET": False}
    some += [_norm(triton_fire.norm_lif_fwd, **forward), _norm(triton_fire.norm_lif_bwd, **backward)]
    some += [_norm(triton_fire.norm_lif_steps_bwd, **backward)]
    some += [Kernel(triton_norm.norm_sums, ("p_x", "p_grad"), places)]
    some += [Kernel(triton_norm.norm_map, ("p_x", "p_y"), places)]
print(len([compile_kernel(one, "float16", TARGETS["sm_90"]) for one in some]))
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Python in a process of its own, because this one may have Triton in its interpreter."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *arguments], env=kept | environment, capture_output=True, text=True)


def inspect(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return run("-m", "stdl_engine.kernels.inspect", *arguments, **environment)


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str, str], dict]:
    result = inspect("--json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return {(row["kernel"], row["dtype"], row["target"]): row for row in json.loads(result.stdout)}


def test_every_kernel_dtype_and_target_is_reported(rows):
    assert list(rows) == [(k, d, t) for k in KERNELS for d in DTYPES for t in TARGETS]
    keys = ["kernel", "dtype", "target", "bytes_read", "bytes_written", "vector_bits", "registers", "spills"]
    assert all(list(row) == keys for row in rows.values())
    assert set(KERNELS) == set(EXPECTED)


@pytest.mark.parametrize("target", TARGETS)
def test_online_lif_moves_no_more_than_it_must(rows, target):
    def moved(kernel: str) -> float:
        row = rows[kernel, "float32", target]
        return row["bytes_read"] + row["bytes_written"]

    assert moved("lif_online_fwd") == 16.125 <= 16.25
    assert moved("lif_online_bwd") == 12.0 <= 12.25


@pytest.mark.parametrize("target", TARGETS)
def test_norm_and_neuron_in_one_pass_move_less_than_one_after_the_other(rows, target):
    """Batch norm alone reads its input for the statistics, reads it again and writes its output. Going back it reads
    two maps for sums, and both again to write a third."""

    def moved(*kernels: str) -> float:
        found = [rows[kernel, "float32", target] for kernel in kernels]
        return sum(row["bytes_read"] + row["bytes_written"] for row in found)

    assert moved("norm_moments", "norm_lif_fwd") == 16.125
    assert 4 + 8 + moved("lif_online_fwd") == 28.125
    assert moved("norm_lif_online_bwd", "norm_grad_x") == 28
    assert moved("lif_online_bwd") + 8 + 12 == 32


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_figures(rows, kernel, dtype, target):
    row = rows[kernel, dtype, target]
    assert (row["bytes_read"], row["bytes_written"]) == EXPECTED[kernel](ITEMSIZE[dtype])
    assert row["vector_bits"] == 128
    assert row["spills"] == 0
    assert 0 < row["registers"] <= REGISTERS.get(kernel, 64)


@pytest.fixture(scope="module")
def intermediate() -> dict[str, list]:
    result = run("-c", DUMP_INTERMEDIATE)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_assembly_agrees_with_the_tensors_of_the_intermediate_code(rows, intermediate):
    """The same bytes by another road: elements × element size of each tensor that the TTGIR loads and stores."""
    for kernel, dtype, target, ttgir in intermediate["ttgir"]:
        if KERNELS[kernel].of_channels:
            continue  # of which assembly and intermediate code count different things
        if KERNELS[kernel].in_loop:
            ttgir = ttgir.split("scf.for")[1].split("scf.yield")[0]
        # NVIDIA: tt.load %p, %mask : tensor<128x8x!tt.ptr<f32>, ...
        # AMD: amdg.buffer_load %p[%offsets], %mask : tensor<128x8xf32, ...
        operations = re.findall(
            r"(?:tt\.|buffer_)(load|store) .*: tensor<([\dx]+)x(?:!tt\.ptr<)?[a-z]+(\d+)[>,]", ttgir
        )
        moved = {"load": 0.0, "store": 0.0}
        for operation, shape, bits in operations:
            elements = 1
            for size in shape.split("x"):
                elements *= int(size)
            moved[operation] += elements * int(bits) / 8 / BLOCK
        row = rows[kernel, dtype, target]
        assert (row["bytes_read"], row["bytes_written"]) == (moved["load"], moved["store"]), (kernel, dtype, target)


def test_final_sum_of_the_decays_gradient_compiles(intermediate):
    """`plif_grad_w` runs once for a layer, whatever its size: its traffic is no matter, its spills are."""
    assert intermediate["final_sum_spills"] == [0] * len(TARGETS)


def test_every_choice_of_batch_norm_and_neuron_compiles():
    """What Triton's interpreter lets pass, types that change in a loop for example, shows in the compiler only."""
    result = run("-c", COMPILE_CHOICES)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "31"


def test_table_shows_what_was_asked_for():
    result = inspect("--kernel", "lif_online_bwd", "--target", "sm_90", "gfx942")
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()[2:]]
    assert [line[:3] for line in lines] == [["lif_online_bwd", d, t] for d in DTYPES for t in ("sm_90", "gfx942")]
    assert lines[0][3:6] == ["8.000", "4.000", "128"]


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--target", "sm_70"], {}, "unknown target 'sm_70': pass one of sm_80, sm_90, sm_100, gfx942."),
        (["--kernel", "lif"], {}, f"unknown kernel 'lif': pass one of {', '.join(KERNELS)}."),
        ([], {"TRITON_INTERPRET": "1"}, "TRITON_INTERPRET is set, under which Triton compiles nothing: unset it"),
    ],
)
def test_errors_are_one_sentence(arguments, environment, message):
    result = inspect(*arguments, **environment)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];", Access(True, 128)),
        ("ld.global.nc.L1::evict_first.L2::128B.v2.b64 { %rd1, %rd2 }, [ %rd3 ];", Access(True, 128)),
        ("ld.relaxed.gpu.global.b16 %rs1, [ %rd1 ];", Access(True, 16)),
        ("@%p3 st.global.b8 [ %rd9 + 0 ], { %rs3 };", Access(False, 8)),
        ("global_load_dwordx4 v[2:5], v[2:3], off", Access(True, 128)),
        ("global_load_short_d16_hi v2, v[2:3], off", Access(True, 16)),
        ("buffer_load_ushort v2, v3, s[4:7], 0 offen", Access(True, 16)),
        ("buffer_store_byte v4, v0, s[8:11], 0 offen", Access(False, 8)),
        ("global_store_dword v[0:1], v4, off", Access(False, 32)),
    ],
)
def test_an_access_is_read_from_assembly(line, expected):
    assert accesses(f"\t{line}\n") == [expected]


LOOP = """
	ld.global.b32 %r1, [%rd1];
$L__BB0_1:
	ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	@%p1 bra $L__BB0_1;
	st.global.b16 [ %rd9 + 0 ], { %rs3 };
"""


def test_a_loop_over_time_steps_is_counted_once():
    assert accesses(LOOP, in_loop=True) == [Access(True, 128)]
    with pytest.raises(ValueError, match="cannot count the bytes of a loop"):
        accesses(LOOP + LOOP, in_loop=True)
    with pytest.raises(ValueError, match="there is none"):
        accesses("\tld.global.b32 %r1, [%rd1];\n", in_loop=True)


@pytest.mark.parametrize(
    "line",
    ["ld.param.b64 %rd1, [lif_fwd_param_0];", "s_load_dwordx4 s[4:7], s[0:1], 0x8", "cvta.to.global.u64 %rd2, %rd1;"],
)
def test_arguments_and_addresses_are_no_traffic(line):
    assert accesses(f"\t{line}\n") == []


@pytest.mark.parametrize(
    "assembly",
    [
        "$L__BB0_1:\n\tld.global.b32 %r1, [%rd1];\n\t@%p1 bra $L__BB0_1;\n",
        ".LBB0_1:\n\tglobal_load_dword v1, v[2:3], off\n\ts_cbranch_scc1 .LBB0_1\n",
        "\tatom.global.add.f32 %f1, [%rd1], %f2;\n",
        "\t@%p1 red.relaxed.gpu.global.add.f32 [%rd1], %f2;\n",
        "\tcp.async.cg.shared.global [%r1], [%rd1], 16;\n",
        "\tglobal_atomic_add_f32 v1, v2, s[0:1]\n",
        "\tflat_load_dword v1, v[2:3]\n",
        "\tglobal_load_lds_dword v[0:1], off\n",
    ],
)
def test_traffic_that_cannot_be_counted_is_an_error(assembly):
    with pytest.raises(ValueError, match="cannot count"):
        accesses(assembly)
