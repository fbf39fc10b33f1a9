"""What holds for all tests of memory."""

from ..small_runs import each_layer_measured_once, one_thread

__all__ = ["each_layer_measured_once", "one_thread"]
