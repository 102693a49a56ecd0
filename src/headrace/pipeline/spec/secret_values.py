"""Secrets in a deployment: references to environment variables and files, read only when a client needs them."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from headrace.pipeline.errors import PipelineError

HIDDEN: Final = "********"
_SECRET: Final = re.compile(
    r"password|passphrase|secret|jaas|token$|access[.]?key$|account[.]key|(keystore|ssl|private)[.]key(\.pem)?$",
    re.IGNORECASE,
)
_NOT_SECRET: Final = re.compile(r"^spark[.]kubernetes[.].*secret|^spark[.].*redaction")
"""Settings that only refer to Kubernetes secrets, or select settings to hide, although their names look secret."""
_PUBLIC: Final = ("env", "file")


@dataclass(frozen=True, slots=True)
class Secret:
    """A value in an environment variable or a file. Printing it shows the place, never the value."""

    kind: Literal["env", "file"]
    place: str

    def __str__(self) -> str:
        return f"{self.kind} {self.place}"

    def read(self, setting: str) -> str:
        """Return the value, without the newline at the end of a file. Raises PipelineError, naming the `setting`."""
        if self.kind == "env":
            value = os.environ.get(self.place)
            if value is None:
                raise PipelineError(f"{setting} is in the environment variable {self.place}, which is not set")
            return value
        return read_text(self.place, setting).rstrip("\r\n")


Value: TypeAlias = str | Secret


class Options(dict[str, str]):
    """Client settings. Printing them hides secrets."""

    def __repr__(self) -> str:
        return repr({name: HIDDEN if is_secret(name) else value for name, value in self.items()})


def is_secret(name: str) -> bool:
    """Return True if a setting with this name contains a secret."""
    return _SECRET.search(name) is not None and _NOT_SECRET.search(name) is None


def read_text(path: str, setting: str) -> str:
    """Return the text of a file. Raises PipelineError, naming the `setting`."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"{setting}: cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise PipelineError(f"{setting}: {path} is not UTF-8 text") from None


def flattened(table: Mapping[str, object], where: str, directory: Path) -> dict[str, Value]:
    """Return the settings of a TOML table by dotted name. Relative paths of secret files are resolved from `directory`.

    TOML reads `a.b = 1` as a nested table. Raises PipelineError for a secret in plain text, and for a value that is
    neither text, a number, a boolean nor a reference to a secret.
    """
    found: dict[str, Value] = {}
    for name, value in _leaves(table):
        if isinstance(value, Mapping):
            found[name] = _secret(name, value, where, directory)
        elif is_secret(name):
            raise PipelineError(
                f"{where} {name} is a secret in plain text: write "
                f'{name} = {{ env = "NAME" }} or {name} = {{ file = "PATH" }}'
            )
        elif isinstance(value, bool):
            found[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            found[name] = str(value)
        else:
            raise PipelineError(f"{where} {name} must be a string, a number, true or false, not {value!r}")
    return found


def _leaves(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, Mapping) and not (value.keys() & set(_PUBLIC)):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _secret(name: str, value: Mapping[str, object], where: str, directory: Path) -> Secret:
    [kind, *others] = value
    place = value[kind]
    if others or kind not in _PUBLIC or not isinstance(place, str) or not place:
        # The value is not shown: it may be the secret itself.
        raise PipelineError(f'{where} {name} must be {{ env = "NAME" }} or {{ file = "PATH" }}')
    if kind == "file":
        return Secret("file", str(directory / Path(place).expanduser()))
    return Secret("env", place)
