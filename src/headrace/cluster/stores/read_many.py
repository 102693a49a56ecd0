"""ZooKeeper's request that reads many nodes at once (3.6 and newer), which kazoo does not have.

One request per node costs several system calls and thread switches, which take seconds for thousands of nodes on a busy
machine.
"""

from collections.abc import Sequence
from typing import Any, Final

from kazoo.protocol.serialization import (
    GetData,
    MultiHeader,
    int_struct,
    multiheader_struct,
    read_buffer,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat

_ERROR: Final = -1
_NO_NODE: Final = -101


class ReadMany:
    """A request for kazoo's client. Its result is a list of (data, stat), with None for nodes that do not exist.

    `paths` are absolute. Any other error of a node raises ReadFailedError.
    """

    type = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def serialize(self) -> bytearray:
        out = bytearray()
        for path in self.paths:
            out += MultiHeader(GetData.type, False, -1).serialize()
            out += GetData(path, None).serialize()
        out += multiheader_struct.pack(-1, True, -1)
        return out

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> list[tuple[bytes, Any] | None]:
        found: list[tuple[bytes, Any] | None] = []
        header, offset = MultiHeader.deserialize(reply, offset)
        while not header.done:
            if header.type == _ERROR:
                (error,) = int_struct.unpack_from(reply, offset)
                offset += int_struct.size
                if error != _NO_NODE:
                    raise ReadFailedError(error)
                found.append(None)
            else:
                data, offset = read_buffer(reply, offset)
                found.append((data, ZnodeStat._make(stat_struct.unpack_from(reply, offset))))
                offset += stat_struct.size
            header, offset = MultiHeader.deserialize(reply, offset)
        return found


class ReadFailedError(Exception):
    """A node cannot be read; the argument is ZooKeeper's error code."""
