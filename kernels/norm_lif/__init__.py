"""Batch norm and the neuron after it in one pass: see README.md."""

from .ops import norm_statistics, table_of
from .pending import Across, Pending, takes
from .pending_map import PendingMap, of_norm
from .steps import fire

__all__ = ["Across", "Pending", "PendingMap", "fire", "norm_statistics", "of_norm", "table_of", "takes"]
