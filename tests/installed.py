"""What a stranger types after `pip install`: run by `make test-wheel` with the Python of a clean environment, in an
empty folder, without the checkout and without pytest.

    python tests/installed.py core    # the wheel alone: neurons, rules, planner; commands say what is missing
    python tests/installed.py all     # with [train,convert]: every code block of README and docs/, the examples, all
                                      # commands
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ("train", "plan", "evaluate")
SECONDS = 300
"""After so long a program counts as hanging."""

CORE = """
import functools, torch
from stdl_engine import FusedLIF, FusedPLIF, FusedALIF, STDL, BPTT, SLTT, ELL, DECOLLE, build_model
from stdl_engine.planning.planner import predict
model, sgd = build_model("resnet18", width=0.25), functools.partial(torch.optim.SGD, lr=0.1)
x, y = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
for rule in (STDL, BPTT, SLTT, ELL, DECOLLE):
    assert rule(model, sgd, x).step(x, y, T=2).logits.shape == (4, 10)
assert STDL(model, sgd, x, budget="40MB", steps=2).plan.parts
assert predict(STDL, model, sgd, x, 2).peak_bytes > 0
"""


class Checks:
    """Runs programs in an empty folder and counts those that do not do as they should."""

    def __init__(self) -> None:
        self.folder, self.failed = Path(tempfile.mkdtemp(prefix="stdl-installed-")), 0
        hidden = ("PYTHONPATH", "PYTHONHOME")
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}

    def run(self, name: str, *command: str, code: int = 0, prints: str = "", folder: Path | None = None) -> str:
        """One program, which must end with this code, print this, and show no traceback."""
        start = time.monotonic()
        problem, output = "", ""
        try:
            done = subprocess.run(
                command, cwd=folder or self.folder, env=self.environment, timeout=SECONDS, check=False,
                capture_output=True, text=True,
            )  # fmt: skip
            output = done.stdout + done.stderr
            if done.returncode != code:
                problem = f"ended with {done.returncode}, not {code}"
            elif "Traceback (most recent call last)" in output:
                problem = "showed a traceback"
            elif prints not in output:
                problem = f"did not print {prints!r}"
        except subprocess.TimeoutExpired:
            problem = f"took more than {SECONDS} s"
        print(f"{'FAILED' if problem else 'ok':<7}{name}  ({time.monotonic() - start:.0f} s)", flush=True)
        if problem:
            self.failed += 1
            print(f"  it {problem}:\n{output[-3000:]}", flush=True)
        return output

    def python(self, name: str, *arguments: str, **expected) -> str:
        return self.run(name, sys.executable, *arguments, **expected)


def core(checks: Checks) -> None:
    """Only torch, triton, numpy and numba are there."""
    checks.python("the package is the installed one", "-c", ORIGIN)
    inside = f"import stdl_engine.kernels.spike_conv as k; assert k.__file__.startswith({str(ROOT)!r}), k.__file__"
    checks.python("inside the checkout it is the checkout's", "-c", inside, folder=ROOT)
    checks.python("neurons, rules, planner", "-c", CORE)
    checks.python("doctor", "-m", "stdl_engine.doctor", prints="all kernels agree.")
    for command in COMMANDS:
        hint = "is not installed: pip install 'stdl-engine[train]'."
        checks.python(f"{command} without its extra", "-m", f"stdl_engine.{command}", "--help", code=2, prints=hint)
        script = str(Path(sys.executable).parent / f"stdl-{command}")
        checks.run(f"stdl-{command} without its extra", script, "--help", code=2, prints=hint)


ORIGIN = """
import sys, stdl_engine, stdl_engine.kernels.spike_conv
assert stdl_engine.__file__.startswith(sys.prefix), stdl_engine.__file__
assert stdl_engine.kernels.__file__.startswith(sys.prefix), stdl_engine.kernels.__file__
"""


LOAD = "import stdl_engine, torch; print(stdl_engine.load('run')(torch.rand(2, 1, 16, 16)).shape)"


def everything(checks: Checks) -> None:
    """The extras [train] and [convert] are there."""
    checks.python("the package is the installed one", "-c", ORIGIN)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL), 1):
            checks.python(f"{page.relative_to(ROOT)}, code block {number}", "-c", code)
    for example in sorted((ROOT / "examples").glob("*.py")):
        checks.python(f"examples/{example.name}", str(example), *QUICK_EXAMPLES.get(example.name, ()))
    checks.python("doctor", "-m", "stdl_engine.doctor", prints="all kernels agree.")
    for command in COMMANDS:
        checks.python(f"{command} --help", "-m", f"stdl_engine.{command}", "--help", prints="usage")
        checks.run(f"stdl-{command} --help", str(Path(sys.executable).parent / f"stdl-{command}"), "--help")
    checks.python("train --list", "-m", "stdl_engine.train", "--list", prints="cifar10")
    one_epoch = ("-m", "stdl_engine.train", "digits", "--epochs", "1")
    checks.python("train digits", *one_epoch, "--out", "run", prints="test accuracy")
    checks.python("evaluate", "-m", "stdl_engine.evaluate", "run", prints="test accuracy")
    checks.python("load", "-c", LOAD, prints="torch.Size([2, 10])")
    checks.python("plan", "-m", "stdl_engine.plan", "digits", prints="peak")
    answer = checks.python("plan --json", "-m", "stdl_engine.plan", "digits", "--budget", "14MB", "--json")
    try:
        assert json.loads(answer)["peak_bytes"] <= 14_000_000
    except (ValueError, AssertionError, KeyError, TypeError):
        checks.failed += 1
        print(f"FAILED plan --json did not answer within the budget:\n{answer[-2000:]}")
    checks.python("train under a budget in bytes", *one_epoch, "--budget", "14MB", prints="test accuracy")


QUICK_EXAMPLES = {"own_block.py": ("--epochs", "1"), "train_under_2gib.py": ("--steps", "2", "--batch", "448")}


def main() -> int:
    checks = Checks()
    {"core": core, "all": everything}[sys.argv[1]](checks)
    print("all ran as they should." if not checks.failed else f"{checks.failed} failed.")
    return min(checks.failed, 1)


if __name__ == "__main__":
    sys.exit(main())
