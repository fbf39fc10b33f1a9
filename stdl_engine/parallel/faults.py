"""When a rank ends, hangs or loses its connection, every other rank ends too, and one of them says which rank it was.

Each rank writes a heartbeat once a second into the store that all of them share. A rank that finds a link or an
exchange broken looks for one whose heartbeat has stopped; if there is none, for one that is not waiting for others as
well. The first rank to report speaks for all; the others end silently.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator

from torch.distributed import Store

BEAT_SECONDS = 1.0
REMEDY = "look at its machine, and resume from the last checkpoint."
SILENT_AFTER = 3.0
"""Seconds within which a living rank has surely written a heartbeat."""


class LinkError(RuntimeError):
    """A message between ranks did not arrive."""


class RankLost(ConnectionError):
    """Another rank has ended, hangs, or stopped with its own error. `told` is whether that rank, or a third one, has
    already reported why."""

    def __init__(self, sentence: str, *, told: bool = False) -> None:
        super().__init__(sentence)
        self.told = told


class Pulse:
    """The heartbeat of one rank, and what can be learned from those of the others."""

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self.store, self.rank, self.world = store, rank, world
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it every rank that would look
            while not self._ended.wait(BEAT_SECONDS):
                self.store.add(f"pulse/{self.rank}", 1)

    def end(self) -> None:
        """Stop the heartbeat in a way that is not taken for a failure."""
        self._ended.set()
        self._thread.join()

    def tell(self, sentence: str) -> bool:
        """Note that this rank stops for this reason; returns whether no other rank has reported anything yet."""
        try:
            first = self.store.add("told", 1) == 1
            if first:
                self.store.set("fault", f"rank {self.rank}: {sentence}")
        except RuntimeError:
            return True
        return first

    def told(self) -> bool:
        """Whether any rank has reported why it stops."""
        try:
            return self.store.check(["fault"])
        except RuntimeError:
            return False

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Inside, an error of a link or an exchange between ranks becomes `RankLost`, which names the rank at fault."""
        try:
            yield
        except LinkError as error:
            raise self.explained(error) from error

    def explained(self, error: Exception) -> RankLost:
        """What has happened to the other ranks, after watching them for a few seconds."""
        try:
            self.store.set(f"waits/{self.rank}", "yes")
            before = self._beats()
            deadline = time.monotonic() + SILENT_AFTER
            while time.monotonic() < deadline:
                if self.store.check(["fault"]):
                    return RankLost(self.store.get("fault").decode(), told=True)
                time.sleep(0.1)
            after = self._beats()
            others = [rank for rank in range(self.world) if rank != self.rank]
            silent = [rank for rank in others if after[rank] == before[rank]]
            busy = [rank for rank in others if not self.store.check([f"waits/{rank}"])]
        except RuntimeError:
            return RankLost("the process that keeps the ranks together has ended: resume from the last checkpoint.")
        if silent:
            return RankLost(f"{_ranks(silent)} ended or hangs without a message: {REMEDY}")
        if busy and re.search("timed out|seconds", str(error), re.IGNORECASE):
            return RankLost(f"{_ranks(busy)} did not answer in time, and does not wait for another rank: {REMEDY}")
        return RankLost(f"a connection between ranks broke ({first_line(error)}): {REMEDY}")

    def _beats(self) -> list[int]:
        return [self.store.add(f"pulse/{rank}", 0) for rank in range(self.world)]


@contextlib.contextmanager
def exchanging() -> Iterator[None]:
    """Inside, whatever torch.distributed raises becomes a `LinkError`."""
    try:
        yield
    except LinkError:
        raise
    except RuntimeError as error:
        raise LinkError(first_line(error)) from error


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"


def first_line(error: BaseException) -> str:
    """An error as one sentence."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^]]*\]\s*", "", line)  # the source file that torch.distributed names first
