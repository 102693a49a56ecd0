"""Errors of the pipeline whose messages are for users."""


class PipelineError(Exception):
    """The pipeline cannot run; the message says why and what to do."""


class TemporaryError(Exception):
    """A job cannot run now, but may run later. The message says what it waits for."""
