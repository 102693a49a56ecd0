import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import registry
from tests.unit.pipeline import example_jobs

MINE = """
from headrace.pipeline import Append, Table, job

@job(name="mine", source=Table("events"), outputs=(Append(table="mine"),))
def mine(events, params):
    return events
"""


@pytest.fixture(autouse=True)
def entry_points(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points of the group, in place of those that are installed."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "headrace.jobs" else [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    return points


def point(value: str) -> EntryPoint:
    return EntryPoint("example", value, "headrace.jobs")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "my_jobs.py"
    path.write_text(MINE)
    return path


def test_all_jobs_of_a_module_are_found_in_their_order(entry_points: list[EntryPoint]) -> None:
    entry_points.append(point("tests.unit.pipeline.example_jobs"))
    assert list(registry.find()) == ["sessions", "page_views", "archive"]


def test_a_job_comes_after_the_one_whose_table_it_reads(tmp_path: Path) -> None:
    chain = "from headrace.pipeline import Append, Table, Topic, job\n"
    for name, source in (
        ("c", 'Table("b")'),
        ("b", 'Table("a")'),
        ("a", "Topic()"),
        ("x", 'Table("y")'),
        ("y", 'Table("x")'),
    ):
        chain += f'@job(name="{name}", source={source}, outputs=(Append(table="{name}"),))\ndef {name}(r, p): ...\n'
    (tmp_path / "chain.py").write_text(chain)
    found = list(registry.find([tmp_path / "chain.py"]))
    assert found[:3] == ["a", "b", "c"]
    assert sorted(found[3:]) == ["x", "y"]


def test_jobs_of_a_file_come_after_those_that_are_installed(entry_points: list[EntryPoint], mine: Path) -> None:
    entry_points.append(point("tests.unit.pipeline.example_jobs:archive"))
    found = registry.find([mine])
    assert list(found) == ["archive", "mine"]
    assert found["archive"] == example_jobs.ARCHIVE
    assert found.origin("mine") == str(mine)


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_my_jobs.py").write_text(MINE)
    (tmp_path / "jobs.py").write_text("from neighbour_of_my_jobs import mine\n")
    try:
        assert list(registry.find([tmp_path / "jobs.py"])) == ["mine"]
    finally:
        sys.modules.pop("neighbour_of_my_jobs", None)


def test_files_of_the_same_name_are_different_modules(tmp_path: Path, mine: Path) -> None:
    other = tmp_path / "other" / "my_jobs.py"
    other.parent.mkdir()
    other.write_text(MINE.replace('"mine"', '"other"'))
    assert list(registry.find([mine, other])) == ["mine", "other"]


def test_a_job_found_twice_is_one_job(entry_points: list[EntryPoint], mine: Path) -> None:
    assert list(registry.find([mine, mine.parent / "." / mine.name])) == ["mine"]
    entry_points += [point("tests.unit.pipeline.example_jobs"), point("tests.unit.pipeline.example_jobs:archive")]
    assert len(registry.find()) == 3


def test_two_jobs_of_one_name_are_refused_with_both_places(tmp_path: Path, mine: Path) -> None:
    other = tmp_path / "others.py"
    other.write_text(MINE)
    with pytest.raises(PipelineError, match=f"two jobs are called 'mine': one from {mine}, one from {other}"):
        registry.find([mine, other])


def test_a_file_without_usable_jobs_is_named(tmp_path: Path) -> None:
    for number, (text, message) in enumerate(
        (
            ("import nothing_that_exists", "No module named 'nothing_that_exists'"),
            ("def f(:", "SyntaxError: invalid syntax"),
            ("1 / 0", "ZeroDivisionError: division by zero"),
            ("raise SystemExit(3)", "the import calls sys.exit(3); move that call below"),
            ("x = 1", "contains no job: decorate a function with @job"),
            (MINE.replace('Append(table="mine"),', ""), "job mine has no output: give it an Append"),
        )
    ):
        path = tmp_path / f"broken_{number}.py"
        path.write_text(text)
        with pytest.raises(PipelineError) as refused:
            registry.find([path])
        assert str(path) in str(refused.value)
        assert message in str(refused.value)


def test_a_missing_file_and_one_that_is_not_python_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no such file"):
        registry.find([tmp_path / "nothing.py"])
    (tmp_path / "jobs.txt").write_text(MINE)
    with pytest.raises(PipelineError, match=r"its name must end in \.py"):
        registry.find([tmp_path / "jobs.txt"])


def test_a_missing_optional_package_is_left_to_the_command_line(
    entry_points: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    entry_points.append(point("pyspark"))
    with pytest.raises(ModuleNotFoundError, match="pyspark"):
        registry.find()


def test_an_entry_point_of_another_object_is_refused(entry_points: list[EntryPoint]) -> None:
    entry_points.append(point("tests.unit.pipeline.example_jobs:JOBS"))
    with pytest.raises(PipelineError, match=r"entry point 'example = tests.*:JOBS' .* neither a module nor a job"):
        registry.find()


def test_an_unknown_job_is_refused_with_a_near_name(entry_points: list[EntryPoint]) -> None:
    entry_points.append(point("tests.unit.pipeline.example_jobs"))
    with pytest.raises(PipelineError, match=r"no job 'pageviews'\. Did you mean 'page_views'"):
        registry.find().named("pageviews")


def test_a_module_may_contain_objects_with_any_attribute(
    entry_points: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Anything:
        def __call__(self) -> None: ...

        def __getattr__(self, name: str) -> object:
            return self

    module = ModuleType("module_with_anything")
    vars(module).update(column=Anything(), archive=example_jobs.archive)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry_points.append(point(module.__name__))
    assert list(registry.find()) == ["archive"]
