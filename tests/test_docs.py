"""The examples in README and docs run as they stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = {
    f"{name}-{number}": code
    for name in ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")))
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL))
}


def test_examples_are_found():
    assert {name.partition("-")[0] for name in EXAMPLES} >= {"README.md", "docs/convert.md", "docs/memory.md"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example):
    exec(compile(EXAMPLES[example], example, "exec"), {"__name__": "__main__"})
