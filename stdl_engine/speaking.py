"""A command on several ranks: one of them says for all what is wrong, and all of them end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from .command_line import EXPECTED, complain, out_of_memory, sentence_of
from .parallel import RankLost, Ranks
from .stopping import Stopped
from .unread_output import flush


def number_of_processes(stages: int) -> int:
    """How many processes torchrun has started, or 1; fewer than there are stages are refused."""
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if processes < stages:
        raise ValueError(
            f"--stages {stages} takes {stages} processes, and there {'is' if processes == 1 else 'are'} {processes}: "
            f"start it by torchrun --nproc-per-node {stages} -m stdl_engine.train ..."
        )
    return processes


@contextlib.contextmanager
def first_process_speaking() -> Iterator[None]:
    """Inside, before the processes are connected and where all of them meet the same error, only one prints it."""
    try:
        yield
    except EXPECTED:
        if os.environ.get("RANK", "0") != "0":
            sys.exit(2)
        raise


@contextlib.contextmanager
def speaking_for_all(stages: int, timeout: float) -> Iterator[Ranks]:
    """A context in which this process is one of several. After an error it prints what went wrong, if no other rank
    has, and ends the process at once, because it would wait in vain for a lost rank."""
    ranks = Ranks(stages, timeout=timeout)
    pulse = ranks.pulse
    assert pulse is not None, "there are several processes"
    try:
        yield ranks
    except Stopped as stopped:
        _leave(str(stopped) if ranks.speaks and not pulse.told() else None, stopped.exit_code)
    except Exception as error:
        sentence = out_of_memory(error) or (sentence_of(error) if isinstance(error, EXPECTED) else None)
        if sentence is None:
            pulse.tell(f"{type(error).__name__}: {error}")
            raise
        told = isinstance(error, RankLost) and error.told
        first = not told and pulse.tell(sentence)
        named = sentence if isinstance(error, RankLost) else f"rank {ranks.rank}: {sentence}"
        _leave(named if first else None, 2)
    ranks.close()


def _leave(sentence: str | None, code: int) -> None:
    if sentence is not None:
        complain("train", sentence)
    flush(sys.stdout)
    flush(sys.stderr)
    os._exit(code)
