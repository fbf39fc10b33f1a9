"""Memory: spikes kept as bits, peaks measured, peaks predicted."""
