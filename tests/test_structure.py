"""Limits on the size of modules and packages, and on imports between them."""

import re
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median

import grimp

import headrace

SOURCE = Path(headrace.__file__).parent
ROOT = SOURCE.parent.parent
MODULES = [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]
MAX_LINES = 450
MAX_MEDIAN = 120
MAX_MODULES = 15
IMPORT = re.compile(r"^ *(?:from|import) (?:[^\n(]|\([^)]*\))*", re.MULTILINE)
FLAT = {"broker/apis", "cli"}
"""One module per family of APIs and per command, without a limit on their number."""


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_no_module_has_more_than_450_lines() -> None:
    too_long = {str(path.relative_to(SOURCE)): lines(path) for path in MODULES if lines(path) > MAX_LINES}

    assert not too_long


def test_half_of_the_modules_have_fewer_than_120_lines() -> None:
    assert median(lines(path) for path in MODULES) < MAX_MEDIAN


def test_no_package_has_more_than_fifteen_modules() -> None:
    sizes = Counter(str(path.parent.relative_to(SOURCE)) for path in MODULES)

    assert not {package: size for package, size in sizes.items() if size > MAX_MODULES and package not in FLAT}


def test_no_module_imports_itself_through_others() -> None:
    graph = grimp.build_graph("headrace", cache_dir=None)

    TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}).prepare()


def test_no_module_imports_from_a_test_module() -> None:
    """Except those that run all tests of another module on a cluster."""
    repeated = ROOT / "tests" / "cluster" / "clients"

    assert not [
        (path, statement)
        for path in (ROOT / "tests").rglob("*.py")
        for statement in IMPORT.findall(path.read_text())
        if re.search(r"\btest_", statement) and not (path.parent == repeated and "import *" in statement)
    ]


def test_imports_between_packages_follow_the_contracts() -> None:
    # a separate process, because lint-imports configures logging
    command = Path(sys.executable).with_name("lint-imports")

    checked = subprocess.run(
        [command, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout


def test_the_modules_named_by_the_architecture_exist() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text()))
    modules = [f"/{path.relative_to(ROOT)}" for place in (SOURCE, ROOT / "tests") for path in place.rglob("*.py")]

    assert not {name for name in named if not any(module.endswith(f"/{name}") for module in modules)}
