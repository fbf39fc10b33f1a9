"""What one subnetwork takes, and the peak of a whole training step, which follows by addition, to the byte.

Subnetworks run one after the other, so the peak is the most that any subnetwork needs, together with what the others
hold meanwhile.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Profile:
    """Bytes that a subnetwork takes in addition to what the network holds anyway.

    Attributes:
        auxiliary: held throughout by its auxiliary network: parameters, buffers, optimizer state.
        units: what its units need without an auxiliary network; every longer run needs at least this much.
        first: the most while its first time step runs, or all time steps if it runs them one after the other.
        later: the most while a later time step runs, beyond what it holds between time steps.
        finish: the most while its optimizer steps.
        stays: held while the others run: its states and gradients, or `left` if it has finished.
        left: held after its optimizer has stepped: its loss.
        at_end: output of the network, held while optimizers step.
    """

    auxiliary: int
    units: int
    first: int = 0
    later: int = 0
    finish: int = 0
    stays: int = 0
    left: int = 0
    at_end: int = 0


@dataclass(frozen=True)
class Step:
    """A training step of subnetworks one after the other, bytes as in `Profile`."""

    auxiliary: int = 0
    first: int = 0
    later: int = 0
    finish: int = 0
    stays: int = 0
    left: int = 0

    def then(self, part: Profile) -> Step:
        """The step with one more subnetwork at the end."""
        return Step(
            auxiliary=self.auxiliary + part.auxiliary,
            first=max(self.first, self.stays + part.first),
            later=max(self.later, part.later),
            finish=max(self.finish + part.stays, self.left + part.finish) + part.at_end,
            stays=self.stays + part.stays,
            left=self.left + part.left,
        )

    def takes_no_more_than(self, other: Step) -> bool:
        """Whether it is no larger than another in every respect, so that it peaks no higher, whatever follows."""
        return all(mine <= theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True))

    @property
    def peak(self) -> int:
        """The most at any moment; more subnetworks never make it less."""
        return self.auxiliary + max(self.first, self.stays + self.later, self.finish)
