"""What holds for all tests of rules."""

from ..small_runs import each_layer_measured_once, one_thread

__all__ = ["each_layer_measured_once", "one_thread"]
