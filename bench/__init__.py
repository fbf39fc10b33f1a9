"""Benchmarks: `python -m bench --list` lists them."""
