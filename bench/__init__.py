"""Measurements: `python -m bench --list` says which."""
