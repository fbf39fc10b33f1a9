"""When a rank ends, hangs or loses its data: every other rank ends too, and one of them says which rank it was.

Each rank beats once a second into the store that all of them share. A rank that finds a link or an exchange broken
looks for one that no longer beats; where all do, for one that is not waiting for others as well. The first rank to say
something says it for all; the others end in silence.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator

from torch.distributed import Store

BEAT_SECONDS = 1.0
REMEDY = "look at its machine, and go on from the last checkpoint."
SILENT_AFTER = 3.0
"""Seconds in which a living rank has surely beaten."""


class LinkError(RuntimeError):
    """What goes between ranks does not arrive."""


class RankLost(ConnectionError):
    """Another rank has ended, hangs, or stopped with an error of its own. `told` says that it has said why itself, or
    that yet another rank has."""

    def __init__(self, sentence: str, *, told: bool = False) -> None:
        super().__init__(sentence)
        self.told = told


class Pulse:
    """The beat of one rank, and what can be learned from those of the others."""

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self.store, self.rank, self.world = store, rank, world
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it whoever would ask
            while not self._ended.wait(BEAT_SECONDS):
                self.store.add(f"pulse/{self.rank}", 1)

    def end(self) -> None:
        """Beat no more, without that meaning anything."""
        self._ended.set()
        self._thread.join()

    def tell(self, sentence: str) -> bool:
        """Note that this rank stops because of that; whether nobody else has said anything yet."""
        try:
            first = self.store.add("told", 1) == 1
            if first:
                self.store.set("fault", f"rank {self.rank}: {sentence}")
        except RuntimeError:
            return True
        return first

    def told(self) -> bool:
        """Whether a rank has said why it stops."""
        try:
            return self.store.check(["fault"])
        except RuntimeError:
            return False

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Inside, an error of a link or an exchange between ranks becomes `RankLost`, which says whose fault it is."""
        try:
            yield
        except LinkError as error:
            raise self.explained(error) from error

    def explained(self, error: Exception) -> RankLost:
        """What has happened to the other ranks, after a few seconds of looking at them."""
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
            return RankLost("the process that keeps the ranks together has ended: go on from the last checkpoint.")
        if silent:
            return RankLost(f"{_ranks(silent)} ended or stands still without a word: {REMEDY}")
        if busy and re.search("timed out|seconds", str(error), re.IGNORECASE):
            return RankLost(f"{_ranks(busy)} did not answer in time, and does not wait for another rank: {REMEDY}")
        return RankLost(f"a connection between ranks broke ({first_line(error)}): {REMEDY}")

    def _beats(self) -> list[int]:
        return [self.store.add(f"pulse/{rank}", 0) for rank in range(self.world)]


@contextlib.contextmanager
def exchanging() -> Iterator[None]:
    """Inside, whatever torch.distributed raises is a `LinkError`."""
    try:
        yield
    except LinkError:
        raise
    except RuntimeError as error:
        raise LinkError(first_line(error)) from error


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"


def first_line(error: BaseException) -> str:
    """An error in a sentence."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^]]*\]\s*", "", line)  # the source file that torch.distributed names first
