"""Small files beside the checkpoints, through Hadoop's file systems: local directories, `s3a://`, `hdfs://`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files:
    """Files with URIs of any scheme that Spark knows."""

    def __init__(self, spark: "SparkSession") -> None:
        self._jvm: Any = spark._jvm
        self._hadoop: Any = spark._jsc.hadoopConfiguration()

    def read(self, uri: str) -> str | None:
        """Return the text; None if the file does not exist."""
        path, system = self._located(uri)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def write(self, uri: str, text: str) -> None:
        """Write a file of which readers see the earlier text or the new one. Raises OSError if it cannot be renamed."""
        path, system = self._located(uri)
        temporary, _ = self._located(f"{uri}.tmp")
        stream = system.create(temporary, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        # Object stores and HDFS do not rename onto an existing file; local file systems do.
        if system.getScheme() != "file" and system.exists(path):
            system.delete(path, False)
        if not system.rename(temporary, path):
            raise OSError(f"cannot rename {uri}.tmp to {uri}")

    def names(self, uri: str) -> list[str]:
        """Return the names in a directory; none if it does not exist."""
        path, system = self._located(uri)
        return [entry.getPath().getName() for entry in system.listStatus(path)] if system.exists(path) else []

    def delete(self, uri: str) -> None:
        """Delete the file if it exists."""
        path, system = self._located(uri)
        system.delete(path, False)

    def _located(self, uri: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(uri)
        return path, path.getFileSystem(self._hadoop)
