"""Errors of Java, without a Java process."""

from py4j.protocol import Py4JJavaError, Py4JNetworkError


class JavaError(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
    """An error of Java with this text; None if the Java process has ended."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __str__(self) -> str:
        if self._text is None:
            raise Py4JNetworkError("connection refused")
        return self._text
