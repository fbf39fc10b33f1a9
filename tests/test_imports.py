"""Imports point one way, those inside functions included, and a private name stays in its package.

`python -m tests.test_imports` prints the layers with what each one imports.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = (
    "extras", "atomic_files", "file_locks", "unread_output", "own_functions", "kernels", "neurons", "memory", "units",
    "models", "convert", "planning", "stream", "rules", "parallel", "data", "settings", "recipes",
)  # fmt: skip
"""From the ground up; what is not named is the top: commands and what only they use."""
TOP = "(commands)"


def modules() -> dict[str, Path]:
    """Every module of the package by name."""
    paths = [p for p in (ROOT / "stdl_engine").rglob("*.py") if not p.is_relative_to(ROOT / "stdl_engine" / "kernels")]
    paths += [ROOT / "stdl_engine" / p.relative_to(ROOT) for p in (ROOT / "kernels").rglob("*.py")]
    names = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in paths}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def imports(name: str, path: Path, known: dict[str, Path]) -> set[tuple[str, str]]:
    """The modules of ours that a module imports anywhere in its text, each with the name taken from it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            target = ".".join([*base, *(node.module or "").split(".")]).rstrip(".")
            for alias in node.names:
                whole = f"{target}.{alias.name}"
                if whole in known:
                    found.add((whole, alias.name))
                elif target in known:
                    found.add((target, alias.name))
    return found


def layer(name: str) -> str:
    part = [*name.split("."), ""][1]
    return part if part in LAYERS else TOP


KNOWN = modules()
EDGES = {name: imports(name, path, KNOWN) for name, path in KNOWN.items()}


def test_the_walk_sees_imports():
    assert len(KNOWN) > 80
    assert ("stdl_engine.kernels.lif", "lif_step") in EDGES["stdl_engine.neurons.lif"]
    assert ("stdl_engine.neurons.foreign", "fused_like") in EDGES["stdl_engine.neurons.lif"]  # inside a function


@pytest.mark.parametrize("name", KNOWN)
def test_imports_point_down(name):
    order = (*LAYERS, TOP)
    for target, _ in EDGES[name]:
        assert order.index(layer(target)) <= order.index(layer(name)), f"{name} imports {target}, which is above it"


@pytest.mark.parametrize("name", KNOWN)
def test_private_names_stay_in_their_package(name):
    for target, taken in EDGES[name]:
        package = target if KNOWN[target].name == "__init__.py" else target.rpartition(".")[0]
        private = taken.startswith("_") and not taken.startswith("__")
        assert not private or name.startswith(package), f"{name} takes {taken} from {target}"


def main() -> None:
    for one in (*LAYERS, TOP):
        below = {layer(target) for name in KNOWN if layer(name) == one for target, _ in EDGES[name]} - {one}
        print(f"{one:<11} <- {', '.join(sorted(below, key=(*LAYERS, TOP).index)) or '-'}")


if __name__ == "__main__":
    main()
