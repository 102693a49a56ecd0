"""Update the generated parts of the pages under docs/: run by `make docs`, checked by the tests.

A generated part is between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import re
import socket
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from headrace.config.coordinator import COORDINATOR_SETTINGS
from headrace.config.definition import BOOLEAN, DOUBLE, INT, LIST, LONG, SHORT, Setting
from headrace.config.inapplicable import explained
from headrace.config.log import LOG_SETTINGS
from headrace.config.replication import REPLICATION_SETTINGS
from headrace.config.security import SECURITY_SETTINGS
from headrace.config.server import SERVER_SETTINGS
from headrace.config.topic import TOPIC_SETTINGS
from headrace.testing import Broker
from headrace.wire.apis import ApiKey

DOCS = Path(__file__).resolve().parent.parent / "docs"
REGION = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
KINDS = {BOOLEAN: "boolean", SHORT: "short", INT: "int", LONG: "long", DOUBLE: "double", LIST: "list"}


def table(*lines: Iterable[str]) -> str:
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def settings(group: dict[str, Setting], extra_head: str, extra: Callable[[Setting], str]) -> str:
    rows = (
        [
            code(setting.name),
            KINDS.get(setting.type, "string"),
            code(setting.format(setting.default)),
            setting.check.allowed if setting.check else "",
            extra(setting),
            explained(setting),
        ]
        for setting in group.values()
        if not setting.hidden
    )
    return table(["setting", "type", "default", "allowed", extra_head, "meaning"], ["---"] * 6, *rows)


def topic_settings() -> str:
    return settings(TOPIC_SETTINGS, "default from", lambda setting: ", ".join(map(code, setting.synonyms)))


def broker_settings(group: dict[str, Setting]) -> str:
    return settings(group, "change", lambda setting: setting.update)


def offered_apis() -> str:
    """Return a table of the APIs that a broker advertises."""
    # The reply to ApiVersions v0 is an error code, then an array of key, lowest and highest version.
    with Broker() as broker, socket.create_connection(("127.0.0.1", broker.port)) as connection:
        connection.sendall(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 1, -1))
        with connection.makefile("rb") as answers:
            answer = answers.read(struct.unpack(">i", answers.read(4))[0])
    rows = struct.iter_unpack(">hhh", answer[10:])
    return table(
        ["API", "key", "versions"],
        ["---"] * 3,
        *([ApiKey(key).name.title().replace("_", ""), str(key), f"{low} to {high}"] for key, low, high in sorted(rows)),
    )


GENERATORS: dict[str, Callable[[], str]] = {
    "apis": offered_apis,
    "topic-settings": topic_settings,
    "server-settings": lambda: broker_settings(SERVER_SETTINGS),
    "log-settings": lambda: broker_settings(LOG_SETTINGS),
    "coordinator-settings": lambda: broker_settings(COORDINATOR_SETTINGS),
    "replication-settings": lambda: broker_settings(REPLICATION_SETTINGS),
    "security-settings": lambda: broker_settings(SECURITY_SETTINGS),
}


def regenerated(text: str) -> str:
    """Return the page with its generated parts updated. Raises KeyError for a part without a generator."""
    return REGION.sub(lambda part: f"{part[1]}\n{GENERATORS[part[2]]()}\n{part[3]}", text)


def main() -> None:
    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text()
        after = regenerated(before)
        if after != before:
            page.write_text(after)
            print(f"written: {page.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
