"""Reading recordings in HDF5, in the layouts that event datasets use."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from .archives import check_promise, reason_of
from .recordings import ALIASES, Events, from_fields

PLACES = ("/", "events", "CD/events", "CD")
"""Where a recording may be: groups of arrays, or one array with fields."""


def read_hdf5(path: Path, columns: str = "") -> Events:
    """The arrays t, x, y and p at the top or in "events", or an array "events" or "CD/events" with these fields."""
    with h5py.File(path, "r") as file:
        for place in PLACES:
            node = file.get(place)
            if isinstance(node, h5py.Dataset) and node.dtype.names is not None:
                content = _read(node, place)
                return from_fields({name: content[name] for name in node.dtype.names})
            if isinstance(node, h5py.Group) and any(alias in node for alias in ALIASES["x"]):
                known = [alias for aliases in ALIASES.values() for alias in aliases]
                return from_fields({name: _read(node[name], name) for name in known if name in node})
        raise ValueError(f"it has {', '.join(file) or 'nothing'} and no t, x, y and p at the top or in events")


def _read(node: h5py.Dataset | h5py.Group, name: str) -> np.ndarray:
    if not isinstance(node, h5py.Dataset):
        raise ValueError(f"its {name} is not an array")
    check_promise(node.size * node.dtype.itemsize, name)
    try:
        return node[()]
    except OSError as error:
        if "filter" in str(error) or "plugin" in str(error):
            raise ValueError(
                f"its {name} is compressed in a way that h5py does not know ({reason_of(error)}); save it again with "
                "gzip or without compression"
            ) from error
        raise
