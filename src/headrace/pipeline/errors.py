"""Errors of the pipeline that a user can understand."""


class PipelineError(Exception):
    """The pipeline cannot run; the message says why and what to do."""


class TemporaryError(Exception):
    """A job cannot run now, but perhaps later: the message says what it waits for."""
