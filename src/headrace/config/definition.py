"""A setting: name, type, default, valid values, and the level at which it can be changed at run time.

Values follow Kafka's textual rules (trimmed, booleans in any case, lists split at commas), so that a file or a request
written for Kafka means the same here.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

Value: TypeAlias = "int | float | str | bool | tuple[str, ...] | None"

# Types, with their numbers in DescribeConfigs (KIP-569).
BOOLEAN: Final = 1
STRING: Final = 2
INT: Final = 3
SHORT: Final = 4
LONG: Final = 5
DOUBLE: Final = 6
LIST: Final = 7
CLASS: Final = 8
PASSWORD: Final = 9

# Importance.
HIGH: Final = "high"
MEDIUM: Final = "medium"
LOW: Final = "low"

# The level at which a broker setting can be changed at run time (KIP-226).
READ_ONLY: Final = "read-only"
PER_BROKER: Final = "per-broker"
CLUSTER_WIDE: Final = "cluster-wide"

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1


class ConfigError(ValueError):
    """The setting `key` is invalid for `reason`; if `value` is None, the reason is the whole message."""

    def __init__(self, key: str, value: object, reason: str) -> None:
        self.key, self.value, self.reason = key, value, reason
        super().__init__(reason if value is None else f"Invalid value {value!r} for {key}: {reason}")


def combined(errors: Sequence[ConfigError]) -> ConfigError:
    """Combine several errors into one, so that all can be fixed at once."""
    if len(errors) == 1:
        return errors[0]
    lines = "\n".join(f"  {error}" for error in errors)
    return ConfigError(errors[0].key, None, f"{len(errors)} settings are invalid:\n{lines}")


class Check:
    """A condition on a value, and `allowed`, a description of the values that meet it."""

    __slots__ = ("allowed", "test")

    def __init__(self, allowed: str, test: Callable[[Value], bool]) -> None:
        self.allowed, self.test = allowed, test


def at_least(low: int) -> Check:
    return Check(f"at least {low}", lambda v: isinstance(v, (int, float)) and v >= low)


def between(low: float, high: float) -> Check:
    return Check(f"from {low} to {high}", lambda v: isinstance(v, (int, float)) and low <= v <= high)


def one_of(*names: str) -> Check:
    return Check("one of " + ", ".join(names), lambda v: v in names)


def one_of_ignoring_case(*names: str) -> Check:
    return Check("one of " + ", ".join(names), lambda v: isinstance(v, str) and v.lower() in names)


def each_of(*names: str) -> Check:
    return Check(
        "a comma-separated list of " + ", ".join(names),
        lambda v: isinstance(v, tuple) and all(item in names for item in v),
    )


# Limits shared by topic and broker settings.
CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
GZIP_LEVEL: Final = Check("from 1 to 9, or -1", lambda v: isinstance(v, int) and (v == -1 or 1 <= v <= 9))
SEGMENT_BYTES: Final = at_least(1024 * 1024)


class Setting:
    """One row of a settings table.

    `default` is a typed value. If the setting has no value, its `synonyms` apply, in this order. A `hidden` setting is
    shown only if it is set.
    """

    __slots__ = (
        "check",
        "default",
        "documentation",
        "hidden",
        "importance",
        "name",
        "synonyms",
        "type",
        "update",
    )

    def __init__(
        self,
        name: str,
        type: int,
        default: Value,
        documentation: str,
        check: Check | None = None,
        *,
        importance: str = MEDIUM,
        update: str = READ_ONLY,
        synonyms: tuple[str, ...] = (),
        hidden: bool = False,
    ) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.documentation = documentation
        self.check = check
        self.importance = importance
        self.update = update
        self.synonyms = synonyms
        self.hidden = hidden

    @property
    def attribute(self) -> str:
        """The name of the attribute that has the value: `log_retention_ms` for `log.retention.ms`."""
        return self.name.replace(".", "_")

    @property
    def sensitive(self) -> bool:
        """True if the value must not leave the broker."""
        return self.type == PASSWORD

    def parse(self, text: str, *, any_number: bool = False) -> Value:
        """Parse a value; with `any_number`, do not check the range of numbers.

        Raises ConfigError with the key, the value and the valid values.
        """
        try:
            value = _READERS[self.type](text.strip() if self.type != PASSWORD else text)
        except ValueError:
            raise self.refuse(text) from None
        is_limited = not any_number or self.type in (BOOLEAN, STRING, LIST)
        if self.check is not None and is_limited and not self.check.test(value):
            raise self.refuse(text)
        return value

    def refuse(self, text: str) -> ConfigError:
        """Return the error for an invalid value."""
        shown = "[hidden]" if self.sensitive else text
        return ConfigError(self.name, shown, f"must be {self.allowed()}")

    def allowed(self) -> str:
        """Describe the valid values."""
        if self.check is None:
            return _KINDS[self.type]
        return (
            self.check.allowed if self.type in (BOOLEAN, STRING, LIST) else f"{_KINDS[self.type]}, {self.check.allowed}"
        )

    def format(self, value: Value) -> str | None:
        """Return a typed value as text, as Kafka's tools print it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float):
            return repr(value).replace("e+", "E").replace("e-", "E-")
        return str(value)


def _boolean(text: str) -> Value:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _integer(bits: int) -> Callable[[str], Value]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def read(text: str) -> Value:
        value = int(text)
        if not low <= value <= high or "_" in text:
            raise ValueError(text)
        return value

    return read


def _list(text: str) -> Value:
    return tuple(dict.fromkeys(item.strip() for item in text.split(","))) if text else ()


_READERS: Final[Mapping[int, Callable[[str], Value]]] = {
    BOOLEAN: _boolean,
    STRING: str,
    SHORT: _integer(16),
    INT: _integer(32),
    LONG: _integer(64),
    DOUBLE: float,
    LIST: _list,
    CLASS: str,
    PASSWORD: str,
}
_KINDS: Final[Mapping[int, str]] = {
    BOOLEAN: "true or false",
    STRING: "text",
    SHORT: "a whole number (16 bits)",
    INT: "a whole number (32 bits)",
    LONG: "a whole number (64 bits)",
    DOUBLE: "a number",
    LIST: "a comma-separated list",
    CLASS: "a class name",
    PASSWORD: "text",
}


def table(*settings: Setting) -> dict[str, Setting]:
    """Return the settings by name, in the given order."""
    return {setting.name: setting for setting in settings}


_LONGEST_TYPO: Final = 200
"""Maximum characters of a key to look up: comparing longer keys takes too long."""


def did_you_mean(key: str, known: Collection[str]) -> str:
    """Return a sentence, with a leading space, that suggests the most similar key; an empty string if there is none."""
    import difflib  # slow to import, and needed only for mistakes

    if len(key) > _LONGEST_TYPO:
        return ""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    return f" Did you mean {near[0]}?" if near else ""
