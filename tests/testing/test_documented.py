"""Run the examples of docs/testing.md as a user would."""

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"


def test_the_examples_of_the_page_run(pytester: pytest.Pytester, capfd: pytest.CaptureFixture[str]) -> None:
    test, conftest, script = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    pytester.makeconftest(conftest)
    pytester.makepyfile(test)

    pytester.runpytest_subprocess("-p", "no:randomly").assert_outcomes(passed=1)

    capfd.readouterr()
    exec(compile(script, PAGE.name, "exec"), {})
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", capfd.readouterr().out)
