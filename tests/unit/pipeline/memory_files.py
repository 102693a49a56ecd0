"""Files in memory, for checkpoints and logs of tables."""

from collections.abc import Mapping


class MemoryFiles(dict[str, str]):
    def __init__(self, files: Mapping[str, str]) -> None:
        super().__init__(files)

    def read(self, uri: str) -> str | None:
        return self.get(uri)

    def write(self, uri: str, text: str) -> None:
        self[uri] = text

    def names(self, uri: str) -> list[str]:
        return [name.removeprefix(f"{uri}/") for name in self if name.startswith(f"{uri}/")]

    def delete(self, uri: str) -> None:
        self.pop(uri, None)
