"""Runs every CPU kernel with all its operands against pages without access: `python -m tests.kernels.guarded`.

Each operand ends where a page without access begins, and in a second round begins where one ends. A kernel that reads
or writes outside an operand ends the process, and the last line printed names the kernel and the size. Operands that
the kernels' callers make are guarded too: the functions that make them are replaced here.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import itertools
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from stdl_engine.kernels import cpu_threads
from stdl_engine.kernels import steps as neuron_steps
from stdl_engine.kernels.bits import add_bits_, unpack
from stdl_engine.kernels.bits import reference as bits_reference
from stdl_engine.kernels.checks import STATE_DTYPE
from stdl_engine.kernels.lif.ops import Options as lif_options
from stdl_engine.kernels.norm_lif import Pending, fire, norm_statistics
from stdl_engine.kernels.spike_conv import (
    spike_conv,
    spike_conv_add_weight_gradient,
    spike_conv_weight_gradient,
    takes_winograd,
    taps_input_gradient,
    winograd_input_gradient,
)

from .every_neuron import LIF, NEURONS, Choice, Neuron, choices

PAGE = mmap.PAGESIZE
SIZES = (1, 7, 8, 9, 2047, 2049, cpu_threads.CHUNK + 1)
Case = tuple[str, Callable[[], None]]
_libc = ctypes.CDLL(None, use_errno=True)


class Guard:
    """Tensors between pages without access, which they touch at one end."""

    def __init__(self) -> None:
        self.side = "behind"
        """Where the page is that an operand touches: "behind" it or "before" it."""
        self.made: list[range] = []
        """The addresses of all operands made so far."""

    def memory(self, size: int) -> tuple[mmap.mmap, int]:
        """That many bytes: where they are, and at which offset."""
        pages = -(-size // PAGE)
        room = mmap.mmap(-1, (pages + 2) * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(room))
        for guard in (start, start + (pages + 1) * PAGE):
            if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect failed")
        offset = PAGE if self.side == "before" else (pages + 1) * PAGE - size
        self.made.append(range(start + offset, start + offset + size))
        return room, offset

    def tensor(self, like: Tensor) -> Tensor:
        """A tensor of these numbers and these strides."""
        if not like.numel() or type(like) is not Tensor or like.device.type != "cpu":
            return like
        last = sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
        room, offset = self.memory((last + 1) * like.element_size())
        flat = torch.frombuffer(room, dtype=like.dtype, count=last + 1, offset=offset)
        found = torch.tensor([], dtype=like.dtype)  # not a view of `flat`: such a one could not be overwritten
        return found.set_(flat.untyped_storage(), 0, like.shape, like.stride()).copy_(like)

    def array(self, like: np.ndarray) -> np.ndarray:
        if not like.size or like.dtype.hasobject:
            return like
        room, offset = self.memory(like.nbytes)
        return np.ndarray(like.shape, like.dtype, room, offset)

    def guarding(self, make: Callable, wrap: Callable) -> Callable:
        """The function that makes an operand, which is guarded then."""
        return functools.wraps(make)(lambda *arguments, **options: wrap(make(*arguments, **options)))

    def install(self) -> None:
        """Guard whatever operands are made from now on, and check that no kernel is given one that is not."""
        for name in ("empty", "empty_like", "empty_strided", "zeros", "zeros_like"):
            setattr(torch, name, self.guarding(getattr(torch, name), self.tensor))
        for name in ("new_empty", "new_zeros"):
            setattr(Tensor, name, self.guarding(getattr(Tensor, name), self.tensor))
        np.empty = self.guarding(np.empty, self.array)
        compile_kernel = cpu_threads.compile_kernel
        for module in list(sys.modules.values()):
            if getattr(module, "compile_kernel", None) is compile_kernel:
                module.compile_kernel = lambda *arguments: self.checked(compile_kernel(*arguments))

    def checked(self, kernel: Callable) -> Callable:
        """The kernel, which is called only with addresses of guarded operands."""

        def call(reference) -> None:
            record = reference._obj
            numbers = {name: getattr(record, name) for name, kind in record._fields_ if kind is ctypes.c_int64}
            addresses = {name: number for name, number in numbers.items() if number > 1 << 32}
            # A step of a sequence, which an operand may be, begins inside of what was made.
            loose = [name for name, address in addresses.items() if not any(address in made for made in self.made)]
            if loose or not addresses:
                raise AssertionError(f"operands without a guard: {', '.join(loose) or 'none at all'}")
            kernel(reference)

        call.address = kernel.address
        return call


class Placed(torch.autograd.Function):
    """A tensor's numbers in guarded memory, as the output of an operation: it may be overwritten."""

    @staticmethod
    def forward(ctx, x: Tensor, guard: Guard) -> Tensor:
        return guard.tensor(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def neuron_cases(guard: Guard) -> Iterator[Case]:
    """Every neuron's operators on every size, forward and back from all that they return. What is read and written
    depends on the dtype, but neither on the surrogate nor on the reset, so these are kernels that other tests need
    too."""
    for neuron in NEURONS:
        tried = {choice.dtype: choice for choice in reversed(choices(neuron))}  # the first of each dtype
        for step, dtype in (
            ("exact", torch.float32), ("online", torch.float32), ("over its input", torch.bfloat16),
            ("sequence", torch.float32), ("online sequence", torch.float32),
            *((
                ("exact", torch.bfloat16), ("exact", torch.float64), ("online", torch.float16),
                ("over its input", torch.float32), ("sequence", torch.bfloat16),
            ) if neuron.thorough else ()),
        ):  # fmt: skip
            for size in SIZES:
                name = f"{neuron}, {step}, {tried[dtype]}, {size} neurons"
                yield name, partial(neuron_step, guard, neuron, step, size, tried[dtype])
    for dtype, size in itertools.product((torch.float32, torch.bfloat16), SIZES):
        yield f"unpack to {dtype}, {size} neurons", partial(unpacked, guard, size, dtype)


def operands(guard: Guard, neuron: Neuron, step: str, size: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """An input, states and a decay; the input may be overwritten, the states require a gradient where they may."""
    frames = (3,) if "sequence" in step else ()
    x = torch.randn(*frames, size).to(dtype).requires_grad_()
    states = [guard.tensor(torch.rand(size).to(STATE_DTYPE[dtype])) for _ in range(neuron.states)]
    learned = [torch.zeros((), requires_grad=True)] if neuron.learned else []
    return Placed.apply(x, guard), *(state.requires_grad_(step in ("exact", "sequence")) for state in states), *learned


def go_back(guard: Guard, *results: Tensor) -> None:
    """The gradients of everything, from random ones of the results, one after the other and together."""
    results = [result for result in results if result.requires_grad]
    grads = [guard.tensor(torch.randn(result.shape).to(result.dtype)) for result in results]
    torch.autograd.backward(results, grads, retain_graph=True)
    torch.autograd.backward(results[0], grads[0])


def neuron_step(guard: Guard, neuron: Neuron, step: str, size: int, choice: Choice) -> None:
    given, options = operands(guard, neuron, step, size, choice.dtype), neuron.options | choice.options(neuron)
    if step in ("exact", "sequence"):
        go_back(guard, *(neuron.step if step == "exact" else neuron.sequence)(*given, pack=True, **options))
        return
    over = {"overwrite": step == "over its input"}
    if neuron.learned and step != "online sequence":  # its past, which is kept, may also be another tensor
        go_back(guard, *neuron.step(*given, pack=True, online=True, **over, **options))
        given = operands(guard, neuron, step, size, choice.dtype)
    options.pop("detach_reset", None)
    go_back(guard, (neuron.sequence_ if step == "online sequence" else neuron.step_)(*given, **over, **options))


def unpacked(guard: Guard, size: int, dtype: torch.dtype) -> None:
    spikes = (torch.randn(size) > 0).to(dtype)
    packed = guard.tensor(bits_reference.pack(spikes))
    if not torch.equal(unpack(packed, (size,), (1,), dtype), spikes):
        raise AssertionError("other spikes")
    total = guard.tensor(spikes.clone())
    add_bits_(total, packed)
    if not torch.equal(total, 2 * spikes):
        raise AssertionError("another sum")


def convolution_cases(guard: Guard) -> Iterator[Case]:
    """Convolutions of bits with an odd number of pixels, in both directions."""
    for channels, out_channels, size, kernel, stride, padding in (
        (16, 16, (1, 3), 3, 1, 1), (16, 48, (5, 7), 3, 1, 1), (32, 32, (7, 5), 3, 2, 1), (48, 16, (3, 3), 1, 1, 0),
        (64, 32, (9, 3), 3, 2, 0), (16, 32, (23, 25), 3, 1, 1),
    ):  # fmt: skip
        shape = (3, channels, *size)
        name = f"spike_conv, {shape}, {out_channels} channels, {kernel}×{kernel}, stride {stride}, padding {padding}"
        yield name, partial(convolution, guard, shape, out_channels, kernel, [stride] * 2, [padding] * 2)


def convolution(guard: Guard, shape: tuple, out_channels: int, kernel: int, stride: list, padding: list) -> None:
    def innermost(t: Tensor) -> Tensor:
        return guard.tensor(t.contiguous(memory_format=torch.channels_last))

    spikes, weight = (torch.randn(shape) > 0).float(), torch.randn(out_channels, shape[1], kernel, kernel)
    bits = guard.tensor(bits_reference.pack(spikes.contiguous(memory_format=torch.channels_last)))
    expected = torch.nn.functional.conv2d(spikes, weight, None, stride, padding)
    found = spike_conv(bits, innermost(weight), list(shape), stride, padding)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    grad = innermost(torch.randn(expected.shape))
    spike_conv_weight_gradient(bits, grad, list(shape), list(weight.shape), stride, padding)
    spike_conv_add_weight_gradient(innermost(weight), bits, grad, list(shape), stride, padding)
    taps_input_gradient(grad, innermost(weight), shape, stride, padding)
    if takes_winograd(weight, stride, padding):
        winograd_input_gradient(grad, innermost(weight), list(shape), padding)


def norm_cases(guard: Guard) -> Iterator[Case]:
    """Batch norm and a neuron in one pass, with maps that do not fill a row or a tile."""
    last, runs = torch.channels_last, torch.contiguous_format
    for shape, dtype, layout in (
        ((2, 8, 1, 3), torch.float32, last), ((3, 16, 5, 7), torch.float32, last),
        ((3, 64, 3, 3), torch.bfloat16, last), ((1, 2048, 3, 1), torch.float32, last),
        ((5, 32, 15, 15), torch.bfloat16, last), ((3, 1032, 5, 7), torch.float32, last),
        ((3, 24, 5, 7), torch.bfloat16, last), ((2, 8, 1, 3), torch.float32, runs),
        ((3, 7, 8, 37), torch.bfloat16, runs), ((1, 1, 1, 40), torch.float32, runs),
        ((5, 16, 33, 35), torch.float32, runs),
    ):  # fmt: skip
        yield f"norm_lif, {shape}, {dtype}, {layout}", partial(norm_and_neuron, guard, shape, dtype, layout)


def norm_and_neuron(guard: Guard, shape: tuple, dtype: torch.dtype, layout: torch.memory_format) -> None:
    samples, channels, *size = shape
    pattern = torch.empty(2 * samples, channels, *size, dtype=dtype, memory_format=layout)

    def map_of(numbers: Tensor) -> Tensor:
        return guard.tensor(pattern.copy_(numbers)).requires_grad_()

    x, added = map_of(torch.randn(pattern.shape)), map_of(torch.randn(pattern.shape))
    weight, bias, mean, var = (guard.tensor(torch.rand(channels)) for _ in range(4))
    table = norm_statistics(x.detach(), weight, bias, mean, var, 2, [0.1, 0.1], 1e-5, "auto")
    parameters = weight.requires_grad_(), bias.requires_grad_()
    bits = guard.tensor(bits_reference.pack((added.detach() > 0).to(dtype)))
    options = lif_options.checked(0.5, 1.0, "soft", 0.0, 1.0, True, "triangle", "auto")
    for online, which in ((True, "map"), (False, "bits"), (True, "")):
        pending = Pending.after(x, table, *parameters, constant=False)
        if which:
            pending = pending.plus(added) if which == "map" else pending.plus_spikes(added, bits)
        m = guard.tensor(torch.randn(pattern.shape)[:samples].contiguous(memory_format=layout))
        for w in (None, guard.tensor(torch.zeros(())).requires_grad_()):
            spikes, *_ = fire(
                pending, guard.tensor(m), w, options, online=online, in_place=online, dense=which != "bits"
            )
            spikes.backward(guard.tensor(pattern.float().normal_().to(dtype)), retain_graph=True)
    written = Pending.after(x, table, *parameters, constant=True).dense()
    written.backward(guard.tensor(pattern.float().normal_().to(dtype)))


def check_guard(guard: Guard) -> None:
    """Make sure that a kernel dies that writes one byte more than there is room for."""
    child = os.fork()
    if child == 0:
        neuron_steps.packed_size = lambda elements: (elements + 7) // 8 - 1
        neuron_step(guard, LIF, "exact", 17, choices(LIF)[0])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGSEGV:
        raise AssertionError(f"a kernel wrote outside its operand and ended with status {status}")


def main() -> None:
    guard = Guard()
    guard.install()
    torch.set_num_threads(1)  # Python sees what a kernel is given only if no other thread runs it
    check_guard(guard)
    faulthandler.enable()
    cases = [*neuron_cases(guard), *convolution_cases(guard), *norm_cases(guard)]
    for threads, guard.side in itertools.product((1, 2), ("behind", "before")):
        torch.set_num_threads(threads)
        for name, run in cases:
            if threads == 1 or f" {SIZES[-1]} neurons" in name or name.startswith(("spike_conv", "norm_lif")):
                print(f"{name}, a page without access {guard.side} each operand, threads: {threads}", flush=True)
                run()
                guard.made.clear()
    print("done", flush=True)


if __name__ == "__main__":
    main()
