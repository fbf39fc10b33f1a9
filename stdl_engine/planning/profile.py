"""What one subnetwork takes, and from that the peak of a whole training step, by addition and to the byte.

Subnetworks run one after the other, so the peak is what some subnetwork needs at most beside what the others hold
meanwhile.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Profile:
    """Bytes that a subnetwork takes beside what a network holds anyway.

    Attributes:
        auxiliary: held throughout by its auxiliary network: parameters, buffers, optimizer state.
        units: what its units alone need, so that no longer run needs less.
        first: the most while its first time step runs, or all of them if it runs them one after the other.
        later: the most while a later time step runs, beyond what it holds between time steps.
        finish: the most while its optimizer steps.
        stays: held while the others run: its states and gradients, or what is left.
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
        """The step with one more subnetwork behind those there are."""
        return Step(
            auxiliary=self.auxiliary + part.auxiliary,
            first=max(self.first, self.stays + part.first),
            later=max(self.later, part.later),
            finish=max(self.finish + part.stays, self.left + part.finish) + part.at_end,
            stays=self.stays + part.stays,
            left=self.left + part.left,
        )

    def takes_no_more_than(self, other: Step) -> bool:
        """Whether it is as small as another in every respect, so that whatever follows both peaks no higher here."""
        return all(mine <= theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True))

    @property
    def peak(self) -> int:
        """The most at any moment; more subnetworks never make it less."""
        return self.auxiliary + max(self.first, self.stays + self.later, self.finish)
