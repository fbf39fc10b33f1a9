"""Training on several processes: subnetworks as stages of a pipeline, and batches spread over ranks."""

from __future__ import annotations

from .balance import balanced
from .cut import plan_for_stages
from .faults import RankLost
from .ranks import Ranks
from .rule import Halted, LabelledResult, ParallelRule

__all__ = ["Halted", "LabelledResult", "ParallelRule", "RankLost", "Ranks", "balanced", "plan_for_stages"]
