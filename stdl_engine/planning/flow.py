"""A subnetwork as a sequence of pieces, with the maps that each one reads and how often each map is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..memory.pieces import Carried, Piece, dense, end_of, pieces_of, small_form
from ..memory.spikes import Kept
from ..memory.tracker import mark, mark_backward
from ..units import label_of
from .subnetworks import Subnetwork


@dataclass(frozen=True)
class Stage:
    """A piece in its place.

    Attributes:
        reads: the maps it reads, by number. Map 0 is the subnetwork's input, map n the output of its n-th stage.
        name: the number and label of its layer in the subnetwork and, where the layer has several pieces, which one:
            "0:64C3", "1:64R.2".
    """

    piece: Piece
    reads: tuple[int, ...]
    name: str

    def run(self, inputs: Sequence[Carried]) -> Tensor | Carried:
        """The output, from the maps that the stage reads."""
        mark(unit=self.name)
        if not self.piece.reads_carried:
            return self.piece.run(*map(dense, inputs))
        return self.piece.run(*inputs)


class Flow:
    """The stages of a subnetwork, its auxiliary network or head included.

    Attributes:
        stages: in the order they run. In lean memory they are pieces, in the plain form whole units.
        boundary: the number of the map that goes on to the next subnetwork.
        readers: how many stages read each map.
    """

    def __init__(self, subnetwork: Subnetwork, *, lean: bool) -> None:
        self.stages: list[Stage] = []
        self.lean = lean
        self._append(subnetwork.units, 0)
        self.boundary = len(self.stages)
        self._append(subnetwork.classifier_layers(), len(subnetwork.units))
        self.readers = Counter(number for stage in self.stages for number in stage.reads)

    def _append(self, layers: Iterable[nn.Module], first_layer: int) -> None:
        for number, layer in enumerate(layers, first_layer):
            before = len(self.stages)  # the number of the map that the layer reads
            pieces = pieces_of(layer) if self.lean else (Piece(layer, (layer,)),)
            for place, piece in enumerate(pieces, 1):
                name = f"{number}:{label_of(layer)}" + (f".{place}" if len(pieces) > 1 else "")
                self.stages.append(Stage(piece, tuple(before + taken for taken in piece.takes), name))

    def run(self, x: Kept) -> tuple[Kept, Tensor]:
        """The map for the next subnetwork, cut from the graph and in its small form if lean, and the logits."""
        maps, output = [Carried(x, self.readers[0])], x
        for number, stage in enumerate(self.stages, 1):
            y = stage.run([maps[read] for read in stage.reads])
            mark_backward(end_of(y), stage.name)
            if number == self.boundary:
                output = small_form(y) if self.lean else dense(y).detach()
            maps.append(y if isinstance(y, Carried) else Carried(y, self.readers[number]))
            del y  # from here on a map is held only while a stage still has to read it
        return output, maps[-1].dense()
