"""Parse settings from Java properties files, `--set key=value` and the environment.

Parses only the syntax; `BrokerConfig` checks keys and values.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from headrace.config.definition import ConfigError, combined, did_you_mean

ENVIRONMENT_PREFIX: Final = "HEADRACE_"
_KUBERNETES_SERVICE: Final = "_SERVICE_HOST"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    r"""Parse a Java properties file. If a key repeats, the last value counts.

    Raises ConfigError with the line number for a line without a key and for a broken \u escape.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        try:
            properties[_unescape(key)] = _unescape(value)
        except ValueError:
            raise ConfigError(line, None, f"line {number}: \\u must be followed by four hexadecimal digits") from None
        if not key:
            raise ConfigError(line, None, f"line {number}: {line!r} has no key: use key=value")
    return properties


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Parse `key=value` arguments. Raises ConfigError for an argument without a key or an equals sign."""
    properties: dict[str, str] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(assignment, None, f"--set {assignment}: must be key=value")
        properties[key.strip()] = value.strip()
    return properties


def parse_environment(environment: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Parse variables such as HEADRACE_LOG_RETENTION_MS: the key in capitals, with `_` for dots.

    `__` stands for `_` and `___` for `-`, as in container images of Kafka. HEADRACE_HTTP_LISTENER is
    `headrace.http.listener`. Raises ConfigError if a variable looks like a misspelling of a key in `known`. Other
    variables are ignored, because the prefix has other uses. So are those that Kubernetes sets for a service, even if
    they look like keys: for a service `headrace`, it sets HEADRACE_PORT.
    """
    properties: dict[str, str] = {}
    misspelt: list[ConfigError] = []
    services = tuple(
        name.removesuffix(_KUBERNETES_SERVICE) + part
        for name in environment
        if name.endswith(_KUBERNETES_SERVICE)
        for part in ("_PORT", "_SERVICE_")
    )
    for name, value in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX) and not name.startswith(services):
            text = name.removeprefix(ENVIRONMENT_PREFIX).lower()
            key = text.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
            if key not in known and f"headrace.{key}" in known:
                key = f"headrace.{key}"
            if key in known or key.startswith("listener.name."):
                properties[key] = value
            elif suggestion := did_you_mean(key, known) or _own_setting(key, known):
                what = f"Unknown setting {key} in the environment ({name}).{suggestion}"
                misspelt.append(ConfigError(key, None, what))
    if misspelt:
        raise combined(misspelt)
    return properties


def _own_setting(key: str, known: Collection[str]) -> str:
    """Like `did_you_mean`, among Headrace's own settings, whose prefix the variable may omit."""
    own = {name.removeprefix("headrace.") for name in known if name.startswith("headrace.")}
    return did_you_mean(key, own).replace(" mean ", " mean headrace.", 1)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of every setting. Skips comments, and joins continuation lines."""
    pending = ""
    start = 0
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        line = raw.lstrip(" \t\f")
        if not pending:
            start = number
            if not line or line[0] in "#!":
                continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1]
            continue
        yield start, pending + line
        pending = ""
    if pending:
        yield start, pending


def _split(line: str) -> tuple[str, str]:
    """Split into key and value at the first unescaped `=`, `:` or blank, without unescaping them."""
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    key, rest = line[:position], line[position:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return key, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    result: list[str] = []
    characters = iter(text)
    for character in characters:
        if character != "\\":
            result.append(character)
            continue
        escaped = next(characters, "")
        if escaped == "u":
            digits = "".join(next(characters, "") for _ in range(4))
            if len(digits) != 4:
                raise ValueError(text)
            result.append(chr(int(digits, 16)))
        else:
            result.append(_ESCAPES.get(escaped, escaped))
    return "".join(result)
