"""SpikingJelly's memories: a table of a node's states by name, which a fused node has as attributes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, MutableMapping
from typing import Any

from .spikingjelly_settings import Node


class Memories(MutableMapping):
    """SpikingJelly's table of a node's states, which are attributes here; `v` is computed only when it is read."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __getitem__(self, name: str) -> Any:
        if name not in self.node._memories_rv:
            raise KeyError(name)
        return getattr(self.node, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.node, name, value)

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"the memory {name} of a {type(self.node).__name__} cannot be removed.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.node._memories_rv)

    def __len__(self) -> int:
        return len(self.node._memories_rv)

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)


def take_over(node: Node, kind: type, added: dict[str, Any]) -> None:
    """Turn SpikingJelly's own object into a fused one: its memories become attributes."""
    own = vars(node)
    memories = own.pop("_memories")
    v_seq = own.pop("v_seq", None)
    node.__class__ = kind
    own.update(added)
    node._memories = memories
    if "v_seq" not in memories:
        node.v_seq = v_seq


def give_back(node: Node) -> None:
    """Turn a fused object into SpikingJelly's own again: its attributes become memories."""
    kind: Any = type(node)
    own, memories = vars(node), dict(node._memories)
    v_seq = node.v_seq
    for name in memories.keys() & own.keys():
        del own[name]
    node.__class__ = kind.kind
    own.update(_memories=memories, v_seq=v_seq)


@contextlib.contextmanager
def as_it_was(node: Node) -> Iterator[None]:
    """Inside, a fused node is a plain SpikingJelly node again; its state is kept in both directions."""
    kind: Any = type(node)
    give_back(node)
    try:
        yield
    finally:
        take_over(node, kind, {})
