"""The examples in README and docs run as they stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = {
    f"{name}-{number}": code
    for name in ("README.md", "docs/convert.md", "docs/units.md")
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL))
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example):
    exec(compile(EXAMPLES[example], example, "exec"), {"__name__": "__main__"})
