"""What the Triton kernels of all neurons share: tiles of neurons, their spikes and bits, surrogates and launches.

A program takes a tile of BLOCK neurons through all time steps, with their states in registers. The number of steps is a
runtime value, so a new one compiles nothing; a single step has no loop (MANY is False). The last step forward and the
first step backward come after the loop, because their states are stored elsewhere.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from .operands import Backward, Forward
from .surrogate import gradient_for

BLOCK = 1024
"""Neurons a program handles."""
THREADS = BLOCK // 8
"""Eight neurons per thread: two 128-bit accesses per float32 operand, one byte of spike bits."""
NUM_WARPS = THREADS // (64 if torch.version.hip else 32)


@triton.jit
def rows_of_eight(BLOCK: tl.constexpr):
    """The offsets of this program's bytes of bits and of its neurons: rows of eight neurons, each one byte."""
    # 64-bit offsets: tensors may exceed 2^31 elements.
    o_row = tl.program_id(0).to(tl.int64) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    return o_row, o_row[:, None] * 8 + tl.arange(0, 8)[None, :]


@triton.jit
def neurons(BLOCK: tl.constexpr):
    """This program's neurons, where no bits are written."""
    return tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def states_of_step(p_last, p_first, p_kept, n, steps):
    """Where the state of this program's step and that of the previous step are, and the step's offset in a sequence.

    p_kept has the states of all steps but the last.
    """
    i_t = tl.program_id(1).to(tl.int64)
    if i_t > 0:
        p_first = p_kept + (i_t - 1) * n
    if i_t < steps - 1:
        p_last = p_kept + i_t * n
    return p_last, p_first, i_t * n


@triton.jit
def store_fired(p_spikes, p_bits, o_n, o_row, b_fired, n, PACK: tl.constexpr):
    """Write the spikes of rows of eight neurons, and each row as one byte of bits."""
    tl.store(p_spikes + o_n, tl.where(b_fired, 1.0, 0.0).to(p_spikes.dtype.element_ty), mask=o_n < n)
    if PACK:
        b_bits = tl.sum((b_fired & (o_n < n)).to(tl.int32) << tl.arange(0, 8)[None, :], axis=1)
        tl.store(p_bits + o_row, b_bits.to(tl.uint8), mask=o_row * 8 < n)


@functools.cache
def surrogate(form: str) -> triton.JITFunction:
    """A surrogate's gradient as a function that kernels can call."""
    return triton.jit(gradient_for(form, tl))


def forward_grid(operands: Forward) -> tuple[int, ...]:
    """One program per tile of neurons."""
    return (triton.cdiv(operands.m.numel(), BLOCK),)


def backward_grid(operands: Backward) -> tuple[int, ...]:
    """One program per tile of neurons; online one per tile and step, because no step waits for another."""
    tiles = triton.cdiv(operands.m.numel(), BLOCK)
    return (tiles, operands.steps) if operands.online and operands.steps > 1 else (tiles,)


def launch(
    kernel: triton.JITFunction, grid: tuple[int, ...], stands_in: Tensor, arguments: tuple, **constants: object
) -> None:
    """Run a kernel on the device of the tensor `stands_in`, which also takes the place of absent tensors: the kernel's
    constants say that they are not touched."""
    with torch.cuda.device_of(stands_in):
        kernel[grid](
            *(stands_in if argument is None else argument for argument in arguments),
            **constants, BLOCK=BLOCK, num_warps=NUM_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
