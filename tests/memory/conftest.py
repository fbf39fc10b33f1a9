"""Small training runs, as in tests/rules: one thread is quicker."""

from ..rules.conftest import _one_thread  # noqa: F401
