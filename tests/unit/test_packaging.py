"""The package's metadata says what the code does, and the lock file follows the metadata."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()

CORE = PYPROJECT["project"]["dependencies"]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
DEVELOPMENT = PYPROJECT["dependency-groups"]["dev"]

# Taken by pytest through its plug-in, so it is there wherever that is used.
BROUGHT_BY_THE_USER = {"pytest"}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def imported_distributions(*, pipeline: bool) -> set[str]:
    """Distributions that the package imports anywhere in its modules: those of the pipeline, or all others."""
    modules: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        if ("pipeline" in path.relative_to(ROOT).parts) == pipeline:
            modules.update(imported_modules(ast.parse(path.read_text())))
    found: set[str] = set()
    distributions = packages_distributions()
    for module in modules - set(sys.stdlib_module_names) - {"headrace"}:
        found.update(canonicalize_name(name) for name in distributions[module])
    return found - BROUGHT_BY_THE_USER


def imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_core_requires_exactly_what_the_code_outside_the_pipeline_imports() -> None:
    assert names(CORE) == imported_distributions(pipeline=False)


def test_the_pipeline_extra_covers_what_the_pipeline_imports() -> None:
    assert imported_distributions(pipeline=True) <= names(CORE) | names(EXTRAS["pipeline"]) | {"py4j"}


@pytest.mark.parametrize("requirement", [*CORE, *EXTRAS["pipeline"], *DEVELOPMENT])
def test_lock_file_satisfies(requirement: str) -> None:
    wanted = Requirement(requirement)
    locked = re.search(rf"^{re.escape(canonicalize_name(wanted.name))}==([^ ;]+)", LOCK, re.MULTILINE)
    assert locked, f"{wanted.name} is not locked: run `make lock`"
    assert wanted.specifier.contains(locked.group(1)), "run `make lock`"


def test_lock_file_pins_every_package_by_hash_and_names_no_address() -> None:
    packages = re.split(r"\n(?=[a-z])", LOCK.partition("\n#    make lock\n")[2].strip())
    assert packages
    assert [package for package in packages if "--hash=sha256:" not in package] == []
    assert "://" not in LOCK
    assert "--index" not in LOCK
