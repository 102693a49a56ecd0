"""The four codecs of the record batch, each with a bound on what it may unpack to.

A few kilobytes can claim to hold gigabytes, so nothing here is unpacked past the size the caller allows.
Codec libraries are imported on first use: a broker that only passes batches through never needs them.
"""

import zlib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer


class UnpackedTooLargeError(KafkaError):
    """The data may be sound, but unpacks to more than the caller allows."""


class Codec(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE: Final = 16


def codec_named(name: str) -> Codec:
    """The codec that `compression.type` calls `name` (`uncompressed` and `none` both mean none).

    Raises ValueError for a name that is not a codec.
    """
    if name == "uncompressed":
        return Codec.NONE
    try:
        return Codec[name.upper()]
    except KeyError:
        raise ValueError(f"{name!r} is not a compression codec; use none, gzip, snappy, lz4 or zstd") from None


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` packed as Kafka's own clients pack it: gzip, xerial-framed snappy, LZ4 frames, zstd frames."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
            return packer.compress(data) + packer.flush()
        case Codec.SNAPPY:
            return _snappy_compress(data)
        case Codec.LZ4:
            import lz4.frame

            packed: bytes = lz4.frame.compress(
                bytes(data), compression_level=9 if level is None else level, block_linked=False
            )
            return packed
        case Codec.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(bytes(data))


def decompress(codec: Codec, data: Buffer, max_size: int) -> bytes:
    """`data` unpacked.

    Raises KafkaError(corrupt_message) when it is not what the codec says or unpacks to more than `max_size` bytes.
    """
    try:
        match codec:
            case Codec.NONE:
                return bytes(data)
            case Codec.GZIP:
                return _gzip_decompress(data, max_size)
            case Codec.SNAPPY:
                return _snappy_decompress(data, max_size)
            case Codec.LZ4:
                return _lz4_decompress(data, max_size)
            case Codec.ZSTD:
                return _zstd_decompress(data, max_size)
    except KafkaError:
        raise
    except Exception as error:  # every codec library raises classes of its own
        raise KafkaError(ErrorCode.corrupt_message, f"{codec.name.lower()} data cannot be unpacked: {error}") from error


def _too_large(codec: Codec, max_size: int) -> UnpackedTooLargeError:
    return UnpackedTooLargeError(
        ErrorCode.corrupt_message, f"{codec.name.lower()} data unpacks to more than the {max_size} bytes allowed"
    )


def _gzip_decompress(data: Buffer, max_size: int) -> bytes:
    unpacker = zlib.decompressobj(47)
    unpacked = unpacker.decompress(data, max_size)
    if unpacker.unconsumed_tail:
        raise _too_large(Codec.GZIP, max_size)
    if not unpacker.eof:
        raise KafkaError(ErrorCode.corrupt_message, "gzip data ends before its end marker")
    return unpacked


def _snappy_compress(data: Buffer) -> bytes:
    import cramjam

    # Java's clients read and write blocks behind a xerial header; librdkafka reads both forms.
    out = bytearray(XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big"))
    view = memoryview(data)
    for start in range(0, len(view), 32 * 1024):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + 32 * 1024]))
        out += len(block).to_bytes(4, "big") + block
    return bytes(out)


def _snappy_decompress(data: Buffer, max_size: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _snappy_block(view, max_size)
    out = bytearray()
    position = _XERIAL_HEADER_SIZE
    while position < len(view):
        size = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if size > len(view) - position:
            raise KafkaError(ErrorCode.corrupt_message, "snappy data ends inside a block")
        out += _snappy_block(view[position : position + size], max_size - len(out))
        position += size
    return bytes(out)


def _snappy_block(block: memoryview, max_size: int) -> bytes:
    import cramjam

    # The size stands in front as a varint: it is looked at before anything of that size is allocated.
    if _leading_varint(block) > max_size:
        raise _too_large(Codec.SNAPPY, max_size)
    return bytes(cramjam.snappy.decompress_raw(block))


def _leading_varint(block: memoryview) -> int:
    value = shift = 0
    for byte in block[:5]:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    raise KafkaError(ErrorCode.corrupt_message, "snappy block without a length")


def _lz4_decompress(data: Buffer, max_size: int) -> bytes:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    unpacked: bytes = unpacker.decompress(bytes(data), max_length=max_size + 1)
    if len(unpacked) > max_size:
        raise _too_large(Codec.LZ4, max_size)
    if not unpacker.eof:
        raise KafkaError(ErrorCode.corrupt_message, "lz4 data ends inside a frame")
    return unpacked


def _zstd_decompress(data: Buffer, max_size: int) -> bytes:
    import zstandard

    out = bytearray()
    with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(bytes(data)) as reader:
        while chunk := reader.read(min(1 << 20, max_size + 1 - len(out))):
            out += chunk
            if len(out) > max_size:
                raise _too_large(Codec.ZSTD, max_size)
    return bytes(out)


# -- piece by piece ----------------------------------------------------------------------------------------------------

_PIECE: Final = 256 * 1024
"""Bytes unpacked at a time."""
_PACKED_PIECE: Final = 64 * 1024


def decompress_chunks(codec: Codec, data: Buffer, max_size: int) -> Iterator[bytes]:
    """`data` unpacked in pieces of mostly 256 KB, so that it takes little memory whatever it unpacks to.

    Snappy's blocks stay whole: clients make them of 32 KB. Raises as `decompress` does, at any piece.
    """
    size = 0
    try:
        for chunk in _chunks(codec, memoryview(data)):
            size += len(chunk)
            if size > max_size:
                raise _too_large(codec, max_size)
            yield chunk
    except KafkaError:
        raise
    except Exception as error:  # as in `decompress`
        raise KafkaError(ErrorCode.corrupt_message, f"{codec.name.lower()} data cannot be unpacked: {error}") from error


def _chunks(codec: Codec, data: memoryview) -> Iterator[bytes]:
    match codec:
        case Codec.NONE:
            for start in range(0, len(data), _PIECE):
                yield bytes(data[start : start + _PIECE])
        case Codec.GZIP:
            yield from _gzip_chunks(data)
        case Codec.SNAPPY:
            yield from _snappy_chunks(data)
        case Codec.LZ4:
            yield from _lz4_chunks(data)
        case Codec.ZSTD:
            import zstandard

            with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data) as reader:
                while chunk := reader.read(_PIECE):
                    yield chunk


def _gzip_chunks(data: memoryview) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(47)
    for start in range(0, len(data), _PACKED_PIECE):
        packed: Buffer = data[start : start + _PACKED_PIECE]
        while packed and not unpacker.eof:
            if chunk := unpacker.decompress(packed, _PIECE):
                yield chunk
            packed = unpacker.unconsumed_tail
    while not unpacker.eof and (chunk := unpacker.decompress(b"", _PIECE)):
        yield chunk
    if not unpacker.eof:
        raise KafkaError(ErrorCode.corrupt_message, "gzip data ends before its end marker")


def _lz4_chunks(data: memoryview) -> Iterator[bytes]:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    for start in range(0, len(data), _PACKED_PIECE):
        packed = bytes(data[start : start + _PACKED_PIECE])
        while not unpacker.eof:
            chunk: bytes = unpacker.decompress(packed, max_length=_PIECE)
            packed = b""
            if chunk:
                yield chunk
            elif unpacker.needs_input:
                break
    if not unpacker.eof:
        raise KafkaError(ErrorCode.corrupt_message, "lz4 data ends inside a frame")


def _snappy_chunks(data: memoryview) -> Iterator[bytes]:
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        yield _snappy_block(data, _most_of_snappy(len(data)))
        return
    position = _XERIAL_HEADER_SIZE
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if size > len(data) - position:
            raise KafkaError(ErrorCode.corrupt_message, "snappy data ends inside a block")
        yield _snappy_block(data[position : position + size], _most_of_snappy(size))
        position += size


def _most_of_snappy(size: int) -> int:
    """What a block of `size` bytes can unpack to: three bytes are a copy of up to 64."""
    return 64 * size + 64


def compress_chunks(codec: Codec, chunks: Iterable[Buffer], level: int | None = None) -> Iterator[bytes]:
    """`compress`, of data that come in pieces."""
    match codec:
        case Codec.NONE:
            yield from map(bytes, chunks)
        case Codec.GZIP:
            packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
            for chunk in chunks:
                yield packer.compress(chunk)
            yield packer.flush()
        case Codec.SNAPPY:
            yield XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
            for chunk in chunks:
                yield _snappy_compress(chunk)[_XERIAL_HEADER_SIZE:]
        case Codec.LZ4:
            import lz4.frame

            with lz4.frame.LZ4FrameCompressor(
                compression_level=9 if level is None else level, block_linked=False
            ) as lz4_packer:
                yield lz4_packer.begin()
                for chunk in chunks:
                    yield lz4_packer.compress(bytes(chunk))
                yield lz4_packer.flush()
        case Codec.ZSTD:
            import zstandard

            zstd_packer = zstandard.ZstdCompressor(level=3 if level is None else level).compressobj()
            for chunk in chunks:
                yield zstd_packer.compress(bytes(chunk))
            yield zstd_packer.flush()
