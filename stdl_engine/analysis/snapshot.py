"""A training step as a snapshot that PyTorch's memory viewer opens (docs.pytorch.org/memory_viz, or offline by
`python -m torch.cuda._memory_viz trace_plot FILE -o PAGE`): the documented dict of `segments` and `device_traces`.

Storages of fake tensors have no addresses, so they get one here in the order of allocation: each one is put into the
first gap that is large enough.
"""

from __future__ import annotations

import pickle
from typing import Any

from ..memory.tracker import Place
from ..planning.recording import Recording

START = 1 << 32
"""Where the one segment begins."""
POOL = (0, 0)


class Space:
    """Addresses of live storages, assigned by first fit."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int]] = []
        """Address and size, in order of address."""
        self.end = START

    def take(self, size: int) -> int:
        """An address for this many bytes."""
        address = START
        for place, (other, taken) in enumerate(self.blocks):
            if address + size <= other:
                self.blocks.insert(place, (address, size))
                return address
            address = other + taken
        self.blocks.append((address, size))
        self.end = max(self.end, address + size)
        return address

    def give_back(self, address: int, size: int) -> None:
        self.blocks.remove((address, size))


def snapshot(recording: Recording) -> dict[str, Any]:
    """The step in the form of `torch.cuda.memory._snapshot()`; every allocation carries its place in the step as its
    stack trace. Storages without bytes are left out."""
    space = Space()
    addresses: dict[int, int] = {}
    entries: list[dict[str, Any]] = []
    frames: dict[Place, list[dict[str, Any]]] = {}
    born_at: dict[int, list[dict[str, Any]]] = {}

    def entry(action: str, address: int, size: int, where: list[dict[str, Any]]) -> None:
        common = {"stream": 0, "time_us": len(entries), "pool_id": POOL}
        entries.append({"action": action, "addr": address, "size": size, "frames": where, **common})

    def born(storage: int, size: int, place: Place) -> None:
        where = frames.setdefault(place, _frames(place))
        addresses[storage] = address = space.take(size)
        born_at[address] = where
        entry("alloc", address, size, where)

    for storage, size in recording.held.items():
        if size:
            born(storage, size, Place(phase="before the step"))
    for moment in recording.moments:
        if moment.size > 0:
            born(moment.storage, moment.size, moment.place)
        elif moment.size < 0:
            address = addresses.pop(moment.storage)
            space.give_back(address, -moment.size)
            where = frames.setdefault(moment.place, _frames(moment.place))
            for action in ("free_requested", "free_completed"):
                entry(action, address, -moment.size, where)
    reserved = {"action": "segment_alloc", "addr": START, "size": space.end - START, "frames": []}
    trace = [reserved | {"stream": 0, "time_us": 0, "pool_id": POOL}, *entries]
    return {"segments": [_segment(space, born_at)], "device_traces": [trace], "allocator_settings": {}}


def _segment(space: Space, born_at: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """The one segment, as the step leaves it: what is alive, and the gaps between."""
    blocks, at = [], START
    for address, size in [*space.blocks, (space.end, 0)]:
        if address > at:
            blocks.append({"address": at, "size": address - at, "requested_size": 0, "state": "inactive", "frames": []})
        if size:
            state = {"requested_size": size, "state": "active_allocated", "frames": born_at[address]}
            blocks.append({"address": address, "size": size, **state})
        at = address + size
    alive = sum(size for _, size in space.blocks)
    sizes = {"total_size": space.end - START, "allocated_size": alive, "active_size": alive}
    where = {"device": 0, "address": START, "stream": 0, "segment_type": "large", "segment_pool_id": POOL}
    return {**where, **sizes, "requested_size": alive, "is_expandable": False, "frames": [], "blocks": blocks}


def _frames(place: Place) -> list[dict[str, Any]]:
    """Where in the step something happened, innermost first, as the viewer shows stack traces."""
    names = [
        place.phase,
        None if place.unit is None else f"unit {place.unit}",
        None if place.subnetwork is None else f"subnetwork {place.subnetwork + 1}",
        None if place.step is None else f"time step {place.step + 1}",
    ]
    return [{"name": name, "filename": "training step", "line": 0} for name in names if name is not None]


def as_file(recording: Recording) -> bytes:
    """The snapshot as the viewer reads it."""
    return pickle.dumps(snapshot(recording), protocol=4)
