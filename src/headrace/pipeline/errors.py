"""What a person has to put right before a pipeline can run."""


class PipelineError(Exception):
    """The pipeline cannot run here, or not so; the message says why and what to do."""
