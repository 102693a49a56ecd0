"""The request that reads many nodes of ZooKeeper, byte by byte."""

import struct

import pytest

pytest.importorskip("kazoo")

from headrace.cluster.stores.read_many import ReadFailedError, ReadMany

STAT = struct.Struct(">qqqqiiiqiiq")
END = struct.pack(">i?i", -1, True, -1)


def found(data: bytes, version: int) -> bytes:
    return (
        struct.pack(">i?ii", 4, False, 0, len(data)) + data + STAT.pack(7, 8, 0, 0, version, 0, 0, 0, len(data), 0, 7)
    )


def failed(error: int) -> bytes:
    return struct.pack(">i?ii", -1, False, error, error)


def test_every_path_is_read_without_a_watch() -> None:
    path = struct.pack(">i", 2) + b"/a" + b"\0"
    read = struct.pack(">i?i", 4, False, -1)
    assert bytes(ReadMany(("/a", "/a")).serialize()) == (read + path) * 2 + END


def test_nodes_are_returned_with_their_versions_and_missing_ones_as_none() -> None:
    answer = b"head" + found(b"first", 3) + failed(-101) + found(b"", 0) + END
    first, missing, empty = ReadMany.deserialize(answer, 4)
    assert missing is None
    assert first is not None
    assert empty is not None
    assert (first[0], first[1].version, first[1].czxid, first[1].mzxid) == (b"first", 3, 7, 8)
    assert empty[0] == b""


def test_another_error_of_a_node_is_raised() -> None:
    no_auth = -102
    with pytest.raises(ReadFailedError, match="-102"):
        ReadMany.deserialize(failed(no_auth) + END, 0)
