"""Errors of the pipeline's commands."""

import errno

import pytest

from headrace.cli.failures import CommandError
from headrace.cli.pipeline_options import explained


def test_a_file_that_cannot_be_used_is_named() -> None:
    with pytest.raises(CommandError) as raised, explained():
        raise PermissionError(errno.EACCES, "Permission denied", "/lake/_checkpoints/status/audit.prom.tmp")
    assert raised.value.what == "cannot use /lake/_checkpoints/status/audit.prom.tmp: permission denied"


def test_a_closed_pipe_stays_as_it_is() -> None:
    with pytest.raises(BrokenPipeError), explained():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
