"""Before a run: how a network is cut under a budget, and the peak memory of a training step."""
