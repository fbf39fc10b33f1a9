"""The sums that batch norm's backward needs, on their way with the gradient of its output.

The kernel that makes that gradient also makes the sums. They are a record on the gradient's storage, as small forms are
(`kernels.small_form`): found by whoever is given the gradient, and out of date once it is changed in place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Sums(NamedTuple):
    """Sums of a gradient as it was at one version."""

    sums: Tensor
    table: object
    """Which table they are for (`_mark`): a gradient may reach two batch norms, and may outlive the table."""
    version: int
    shared: bool
    """Whether someone else was given the gradient, too."""


def attach(grad: Tensor, sums: Tensor, table: Tensor) -> None:
    """Let `sums_of` find the sums."""
    _hang(grad, Sums(sums, _mark(table), grad._version, shared=False))


def sums_of(grad: Tensor, table: Tensor) -> Sums | None:
    """The record for a table, if there is one and the gradient has not changed since."""
    record = _record(grad)
    return record if record is not None and record.table is _mark(table) else None


def share(grad: Tensor) -> Tensor:
    """The gradient for more than one reader: none of them may write over it."""
    record = _record(grad)
    if record is not None:
        _hang(grad, record._replace(shared=True))
    return grad


def _hang(grad: Tensor, record: Sums) -> None:
    grad.untyped_storage().norm_sums = record  # type: ignore[attr-defined]  # hung on it for `_record` to find


def _record(grad: Tensor) -> Sums | None:
    record = getattr(grad.untyped_storage(), "norm_sums", None)
    return record if record is not None and record.version == grad._version else None


def _mark(table: Tensor) -> object:
    """An object that hangs on one table and no other. Its address would not do: the next table may get it."""
    storage: Any = table.untyped_storage()
    if not hasattr(storage, "norm_mark"):
        storage.norm_mark = object()
    return storage.norm_mark
