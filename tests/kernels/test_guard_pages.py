"""No kernel reads or writes outside its operands: they lie against pages without access, in a child process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_operands_against_pages_without_access():
    program = [sys.executable, "-m", "tests.kernels.guarded"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False, timeout=230)
    *cases, last = done.stdout.splitlines() or [""]
    assert done.returncode == 0, f"ended with {done.returncode} in: {last}\n{done.stderr}"
    assert last == "done"
    for kernel in ("lif, exact", "lif, online", "lif, sequence", "plif", "alif", "unpack", "spike_conv", "norm_lif"):
        for end in ("behind each operand, threads: 1", "before each operand, threads: 2"):
            assert any(case.startswith(kernel) and case.endswith(end) for case in cases), (kernel, end)
