"""The logs of running brokers in the report of a failed test.

A directory whose tests start brokers imports the hook into its `conftest.py`:
`from tests.support.broker_report import pytest_runtest_makereport  # noqa: F401`.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.broker_process import logs_of_running_brokers


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and report.when != "teardown":
        report.sections.extend(logs_of_running_brokers())
    return report
