"""A few processes that know each other through torch.distributed, for one function of a test to run in."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SECONDS = 180
"""After which processes that have not ended are ended, and the test fails."""


def run(world: int, function: Callable[..., Any], *arguments: Any, expect_errors: bool = False) -> list[Any]:
    """What a function of a module returns in each of so many ranks; it is called with these arguments. Where errors are
    expected, the exit codes of the processes.

    Processes are forked from a server that has imported torch once. They meet at a file, so that tests side by side
    cannot take each other's ports.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.parallel.warm"])
    threads = torch.get_num_threads()  # PyTorch's sums depend on it, and ranks are compared with this process
    with tempfile.TemporaryDirectory() as folder:
        started = [
            context.Process(target=_rank, args=(rank, world, folder, threads, function, arguments), daemon=True)
            for rank in range(world)
        ]
        for process in started:
            process.start()
        deadline = time.monotonic() + SECONDS
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, process in enumerate(started) if process.is_alive()]
        for rank in late:
            started[rank].kill()
        for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
            for rank in range(world):
                stream.write((Path(folder) / f"{name}-{rank}").read_text())
        errors = [path.read_text() for path in sorted(Path(folder).glob("error-*"))]
        assert not errors, "\n".join(errors)
        assert not late, f"ranks {late} have not ended after {SECONDS} seconds"
        if expect_errors:
            return [process.exitcode for process in started]
        return [torch.load(Path(folder) / f"result-{rank}", weights_only=False) for rank in range(world)]


def _rank(
    rank: int, world: int, folder: str, threads: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    for stream, name in ((1, "out"), (2, "err")):  # not where the server's own went when it was started
        os.dup2(os.open(f"{folder}/{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
        torch.save(function(*arguments), Path(folder) / f"result-{rank}")
        torch.distributed.barrier()
    except BaseException:
        (Path(folder) / f"error-{rank}").write_text(f"rank {rank}: {traceback.format_exc()}")
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)
