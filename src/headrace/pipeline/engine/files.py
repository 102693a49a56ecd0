"""Small files beside the checkpoints, on any file system that Hadoop supports: local, `s3a://`, `hdfs://`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.pipeline.engine.java import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files:
    """Files by URI. A path without a scheme belongs to Hadoop's default file system."""

    def __init__(self, spark: "SparkSession") -> None:
        self._path: Any = java_class(spark, "org.apache.hadoop.fs.Path")
        self._streams: Any = java_class(spark, "org.apache.commons.io.IOUtils")
        self._hadoop: Any = spark._jsc.hadoopConfiguration()
        self._systems: dict[str, Any] = {}
        """File systems by the start of a URI; None for the local one."""

    def read(self, uri: str) -> str | None:
        """Return the text; None if the file does not exist."""
        path, system = self._located(uri)
        if isinstance(path, Path):
            return path.read_text(encoding="utf-8") if path.is_file() else None
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            text: str = self._streams.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def write(self, uri: str, text: str) -> None:
        """Create or replace a file. Readers never see a part of it. Raises OSError, or Hadoop's Py4JError.

        Except on the local file system, a replaced file is missing for a moment.
        """
        path, system = self._located(uri)
        temporary, _ = self._located(f"{uri}.tmp")
        if isinstance(path, Path):
            # Hadoop's local file system cannot rename onto an existing file.
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
            # Remove the checksum of a file that Hadoop has written: it no longer matches.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            return
        stream = system.create(temporary, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        system.delete(path, False)
        if not system.rename(temporary, path):
            raise OSError(f"cannot rename {uri}.tmp to {uri}")

    def names(self, uri: str) -> list[str]:
        """Return the names in a directory; empty if it does not exist."""
        path, system = self._located(uri)
        if isinstance(path, Path):
            return [entry.name for entry in path.iterdir()] if path.is_dir() else []
        return [entry.getPath().getName() for entry in system.listStatus(path)] if system.exists(path) else []

    def delete(self, uri: str) -> None:
        """Delete the file if it exists."""
        path, system = self._located(uri)
        if isinstance(path, Path):
            path.unlink(missing_ok=True)
        else:
            system.delete(path, False)

    def _located(self, uri: str) -> tuple[Any, Any]:
        """Return a local path and None, or a Hadoop path and its file system."""
        scheme, separator, rest = uri.partition("://")
        root = f"{scheme}://{rest.partition('/')[0]}" if separator else uri.partition(":/")[0] if ":/" in uri else ""
        if root not in self._systems:
            path = self._path(uri)
            system = path.getFileSystem(self._hadoop)
            self._systems[root] = None if system.getUri().getScheme() == "file" else system
        system = self._systems[root]
        if system is not None:
            return self._path(uri), system
        return Path(uri.removeprefix(root).removeprefix(":") if root else uri), None
