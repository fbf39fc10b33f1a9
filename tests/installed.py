"""What a stranger types after `pip install`: run by `make test-wheel` with the Python of a clean environment, in an
empty folder, without the checkout and without pytest.

    python tests/installed.py core          # the wheel alone: neurons, rules, planner; commands say what is missing
    python tests/installed.py all           # with [train,convert]: every code block of README and docs/, the examples,
                                            # all commands
    python tests/installed.py same A B      # two wheels hold the same files
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 600
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
    """Runs programs in an empty folder, several at once, and notes those that do not do as they should."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.failed = folder, []
        hidden = ("PYTHONPATH", "PYTHONHOME")
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.environment["OMP_NUM_THREADS"] = "1"  # each has a core to itself

    def run_all(self, jobs: list[Callable[[], object]]) -> None:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for job in [pool.submit(job) for job in jobs]:
                job.result()

    def fail(self, name: str, why: str) -> None:
        self.failed.append(name)
        print(f"FAILED {name}: {why}", flush=True)

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
        if problem:
            self.fail(name, f"it {problem}:\n{output[-3000:]}")
        else:
            print(f"ok     {name}  ({time.monotonic() - start:.0f} s)", flush=True)
        return output

    def python(self, name: str, *arguments: str, **expected) -> str:
        return self.run(name, sys.executable, *arguments, **expected)


def core(checks: Checks) -> list[Callable[[], object]]:
    """Only torch, triton, numpy and numba are there."""
    inside = f"import stdl_engine.kernels.spike_conv as k; assert k.__file__.startswith({str(ROOT)!r}), k.__file__"
    hint = "is not installed: pip install 'stdl-engine[train]'."
    return [
        partial(checks.python, "neurons, rules, planner", "-c", CORE),
        partial(checks.python, "doctor", "-m", "stdl_engine.doctor", prints="all kernels agree."),
        partial(checks.python, "the package is the installed one", "-c", ORIGIN),
        partial(checks.python, "inside the checkout it is the checkout's", "-c", inside, folder=ROOT),
        *(
            partial(checks.run, f"{name} without its extra", *command, "--help", code=2, prints=hint)
            for name, command in commands().items()
        ),
    ]


def commands() -> dict[str, list[str]]:
    """How each command is called: as a module, and as the script that pip makes."""
    modules = {f"stdl_engine.{name}": f"stdl-{name}" for name in ("train", "plan", "evaluate", "report")}
    found = {module: [sys.executable, "-m", module] for module in (*modules, "stdl_engine.kernels.inspect")}
    return found | {script: [str(Path(sys.executable).parent / script)] for script in modules.values()}


ORIGIN = """
import sys, stdl_engine, stdl_engine.kernels.spike_conv
assert stdl_engine.__file__.startswith(sys.prefix), stdl_engine.__file__
assert stdl_engine.kernels.__file__.startswith(sys.prefix), stdl_engine.kernels.__file__
"""


def everything(checks: Checks) -> list[Callable[[], object]]:
    """The extras [train] and [convert] are there. What takes longest comes first."""
    return [
        partial(training, checks),
        partial(budget, checks),
        *(partial(examples, checks, path) for path in sorted((ROOT / "examples").glob("*.py"))),
        *(partial(page, checks, path) for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))),
        partial(checks.python, "doctor", "-m", "stdl_engine.doctor", prints="all kernels agree."),
        partial(checks.python, "the package is the installed one", "-c", ORIGIN),
        partial(checks.python, "train --list", "-m", "stdl_engine.train", "--list", prints="cifar10"),
        partial(checks.python, "plan", "-m", "stdl_engine.plan", "digits", prints="peak"),
        *(
            partial(checks.run, f"{name} --help", *command, "--help", prints="usage")
            for name, command in commands().items()
        ),
    ]


ONE_EPOCH = ("-m", "stdl_engine.train", "digits", "--epochs", "1")
LOAD = "import stdl_engine, torch; print(stdl_engine.load('run')(torch.rand(2, 1, 16, 16)).shape)"


def training(checks: Checks) -> None:
    """A run, and what one does with it."""
    checks.python("train digits", *ONE_EPOCH, "--out", "run", prints="test accuracy")
    checks.python("evaluate", "-m", "stdl_engine.evaluate", "run", prints="test accuracy")
    checks.python("load", "-c", LOAD, prints="torch.Size([2, 10])")


def budget(checks: Checks) -> None:
    """A budget in bytes, planned and trained under."""
    answer = checks.python("plan --json", "-m", "stdl_engine.plan", "digits", "--budget", "14MB", "--json")
    try:
        assert json.loads(answer)["peak_bytes"] <= 14_000_000
    except (ValueError, AssertionError, KeyError, TypeError):
        checks.fail("plan --json", f"it did not answer within the budget:\n{answer[-2000:]}")
    checks.python(
        "train under a budget in bytes", *ONE_EPOCH, "--budget", "14MB", "--out", "budget", prints="test accuracy"
    )


def page(checks: Checks, path: Path) -> None:
    """The code blocks of a page, each with no more than it imports itself."""
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    name = str(path.relative_to(ROOT))
    program = "".join(
        f"exec(compile({code!r}, {f'{name}, code block {number}'!r}, 'exec'), {{'__name__': '__main__'}})\n"
        for number, code in enumerate(blocks, 1)
    )
    if blocks:
        checks.python(f"{name}, {len(blocks)} code blocks", "-c", program)


QUICK_EXAMPLES = {"own_block.py": ("--epochs", "1"), "train_under_2gib.py": ("--steps", "2", "--batch", "448")}


def examples(checks: Checks, path: Path) -> None:
    checks.python(f"examples/{path.name}", str(path), *QUICK_EXAMPLES.get(path.name, ()))


def same(first: str, second: str) -> list[str]:
    """Files that are in one wheel and not in the other, or that differ."""
    contents = []
    for path in (first, second):
        with zipfile.ZipFile(path) as wheel:
            contents.append({name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/RECORD")})
    one, other = contents
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def main() -> int:
    what, *arguments = sys.argv[1:]
    if what == "same":
        failed = same(*arguments)
    else:
        with tempfile.TemporaryDirectory(prefix="stdl-installed-") as folder:
            checks = Checks(Path(folder))
            checks.run_all({"core": core, "all": everything}[what](checks))
        failed = checks.failed
    print("all is as it should be." if not failed else f"{len(failed)} failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
