"""Errors of the pipeline that a user can fix."""


class PipelineError(Exception):
    """The pipeline cannot run; the message says why and what to do."""
