"""The package's metadata matches the code, and the lock file matches the metadata."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hatch_build import is_wanted
from headrace import extras

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()

CORE = PYPROJECT["project"]["dependencies"]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
DEVELOPMENT = PYPROJECT["dependency-groups"]["dev"]

# Imported by the pytest plug-in only.
INSTALLED_BY_THE_USER = {"pytest"}
STANDARD_LIBRARY = {*sys.stdlib_module_names, "compression"}  # compression: since Python 3.14


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def imported_distributions(*, pipeline: bool) -> set[str]:
    """Return the distributions imported by the package: those of the pipeline, or all others."""
    modules: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        if ("pipeline" in path.relative_to(ROOT).parts) == pipeline:
            modules.update(imported_modules(ast.parse(path.read_text())))
    found: set[str] = set()
    distributions = packages_distributions()
    for module in modules - STANDARD_LIBRARY - {"headrace"}:
        found.update(canonicalize_name(name) for name in distributions[module])
    return found - INSTALLED_BY_THE_USER


def imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_core_and_extras_match_the_imports_outside_the_pipeline() -> None:
    declared = [*CORE, *EXTRAS["cli"], *EXTRAS["compaction"], *EXTRAS["zookeeper"]]
    # The commands of the pipeline load Spark when they run.
    assert names(declared) - {"headrace"} == imported_distributions(pipeline=False) - {"pyspark"}


def test_the_pipeline_extra_covers_the_imports_of_the_pipeline() -> None:
    covered = names([*CORE, *EXTRAS["cli"], *EXTRAS["pipeline"]]) | {"py4j"}
    assert imported_distributions(pipeline=True) <= covered


def test_the_extra_of_every_package_is_known() -> None:
    known = {(canonicalize_name(package), extra) for package, extra in extras._EXTRAS.values()}
    assert known == {(name, extra) for extra in EXTRAS for name in names(EXTRAS[extra]) - {"headrace"}}


def test_all_includes_every_extra() -> None:
    (everything,) = EXTRAS["all"]
    assert Requirement(everything).extras == EXTRAS.keys() - {"all"}


def test_the_lock_file_satisfies_every_requirement() -> None:
    for requirement in (*CORE, *(item for extra in EXTRAS.values() for item in extra), *DEVELOPMENT):
        wanted = Requirement(requirement)
        if wanted.name == "headrace":
            continue  # extras are listed separately
        locked = re.search(rf"^{re.escape(canonicalize_name(wanted.name))}==([^ ;]+)", LOCK, re.MULTILINE)
        assert locked, f"{wanted.name} is not locked: run `make lock`"
        assert wanted.specifier.contains(locked.group(1)), f"{requirement} is locked differently: run `make lock`"


def test_the_lock_file_pins_every_package_by_hash_without_addresses() -> None:
    packages = re.split(r"\n(?=[a-z])", LOCK.partition("\n#    make lock\n")[2].strip())
    assert packages
    assert [package for package in packages if "--hash=sha256:" not in package] == []
    assert "://" not in LOCK
    assert "--index" not in LOCK


BROKER_ALONE = """
import sys
for name in ("confluent_kafka", "kafka", "rich", "typer", "numpy", "kazoo", "pyspark", "delta", "pygments"):
    sys.modules[name] = None  # as if not installed
"""
AS_A_COMMAND = "from headrace.__main__ import main; sys.exit(main())"


def without_extras(code: str, *args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", BROKER_ALONE + code, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("args", "extra"),
    [
        ("topics list", "cli"),
        ("verify .", "cli"),
        ("takeover --data . --zookeeper x", "zookeeper"),
        ("demo", "pipeline"),
    ],
)
def test_a_command_without_its_packages_explains_the_installation_in_one_line(args: str, extra: str) -> None:
    result = without_extras(AS_A_COMMAND, *args.split())
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: `headrace {args.split(maxsplit=1)[0]}` needs the package typer, which is not installed."
        f" Install it with: pip install 'headrace[{extra}]'\n"
    )


@pytest.mark.parametrize(
    ("args", "status", "expected"),
    [
        ("--version", 0, "headrace "),
        ("start --help", 0, "Usage: headrace start "),
        ("", 2, "Usage: headrace start "),
        ("start --bogus 3", 2, "Error: unknown option --bogus"),
    ],
)
def test_a_broker_alone_prints_help_and_errors_without_typer(args: str, status: int, expected: str) -> None:
    result = without_extras(AS_A_COMMAND, *args.split())
    assert result.returncode == status
    assert (result.stdout + result.stderr).startswith(expected)
    assert "Traceback" not in result.stderr


def test_a_broker_alone_serves_the_fixture() -> None:
    code = """
import socket, struct
from headrace.testing import Broker
with Broker() as broker:
    with socket.create_connection(("127.0.0.1", broker.port)) as client:
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        assert client.recv(4)
"""
    result = without_extras(code)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_command_names_its_missing_package(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=0\ncluster.id=abc\n")
    code = f"import sys; sys.modules['kazoo'] = None\n{AS_A_COMMAND}"
    command = [sys.executable, "-c", code, "takeover", "--data", str(tmp_path), "--zookeeper", "127.0.0.1:1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert result.stderr == (
        "Error: this command needs the package kazoo, which is not installed. Install it with:"
        " pip install 'headrace[zookeeper]'\n"
    )


@pytest.mark.parametrize("args", ["demo", "pipeline run", "pipeline query x"])
def test_a_command_of_the_pipeline_without_spark_explains_the_installation(args: str, tmp_path: Path) -> None:
    code = f"""
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "pyspark" else found(name, *more)
{AS_A_COMMAND}
"""
    command = [sys.executable, "-c", code, *args.split()]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    assert result.returncode == 1
    assert "pyspark is not installed. Install it with: pip install 'headrace[pipeline]'" in result.stderr
    assert "Traceback" not in result.stderr


def build_wheel(directory: Path, *, compiled: bool) -> Path:
    """Build with the installed hatchling, without network."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    environment = {**os.environ, "HEADRACE_COMPILE": str(int(compiled))}
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=200, env=environment)
    (wheel,) = directory.glob("*.whl")
    return wheel


def test_the_wheel_contains_only_the_package(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(tmp_path, compiled=False)) as archive:
        files = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in files if name.endswith(".dist-info/METADATA"))
    top = {name.partition("/")[0] for name in files}
    assert {name for name in top if not name.endswith(".dist-info")} == {"headrace"}
    assert {"headrace/py.typed", "headrace/pipeline/jars.pom.xml", "headrace/testing/plugin.py"} <= files
    assert not any(name.endswith((".pyc", ".lock")) for name in files)
    for extra in EXTRAS:
        assert f"Provides-Extra: {extra}\n" in metadata


@pytest.mark.slow
@pytest.mark.skipif(not is_wanted(), reason="needs a C compiler")
def test_a_compiled_wheel_is_of_this_platform(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, compiled=True)
    assert not wheel.name.endswith("-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        compiled = [name for name in archive.namelist() if name.endswith((".so", ".pyd"))]
    assert sorted(name.partition(".")[0] for name in compiled) == [
        "headrace/wire/record_checks",
        "headrace/wire/record_checks__mypyc",
    ]
