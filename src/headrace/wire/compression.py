"""The four compression codecs of record batches.

A few kilobytes can decompress to gigabytes, so callers always pass a limit. Codec libraries are imported on first use:
a broker that only passes batches through never needs them.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any, Final

from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer
from headrace.wire.varint import unsigned_varint


class UnpackedTooLargeError(KafkaError):
    """The data may be valid, but decompresses to more than the caller allows."""


class Codec(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE: Final = 16
_XERIAL_MAGIC_AS_SIZE: Final = int.from_bytes(XERIAL_MAGIC[:4], "big")
_SNAPPY_MAX_RATIO: Final = 22
"""Snappy's densest element represents 64 bytes in 3."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_INDEPENDENT: Final = 0x20
"""Flag in the byte after the magic: the blocks do not refer to earlier blocks."""
_ZSTD_WINDOW_LOG: Final = 27
"""The maximum window is 128 MB, as in Kafka's zstd library."""
CHUNK_SIZE: Final = 1 << 20
"""Bytes that `decompress_chunks` reads and yields at a time."""
_FREE_PARTS: Final = 1000
"""Frames or blocks that may be small, because each costs microseconds; one more is allowed per KB of their data."""


def codec_named(name: str) -> Codec:
    """Return the codec for a value of `compression.type`, where `uncompressed` and `none` are the same.

    Raises ValueError for an unknown name.
    """
    if name == "uncompressed":
        return Codec.NONE
    try:
        return Codec[name.upper()]
    except KeyError:
        raise ValueError(f"{name!r} is not a compression codec; use none, gzip, snappy, lz4 or zstd") from None


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` like Kafka's own clients: gzip, xerial-framed snappy, LZ4 frames, zstd frames."""
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

            # Kafka's Java client does not support linked blocks
            packed: bytes = lz4.frame.compress(
                data, compression_level=9 if level is None else level, block_linked=False
            )
            return packed
        case Codec.ZSTD:
            zstd_packed: bytes = _zstd().compress(data, level=3 if level is None else level)
            return zstd_packed


def compress_chunks(codec: Codec, chunks: Iterable[Buffer], level: int | None = None) -> Iterator[bytes]:
    """Like `compress`, for data in chunks."""
    match codec:
        case Codec.NONE:
            yield from map(bytes, chunks)
        case Codec.GZIP:
            packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
            for chunk in chunks:
                yield packer.compress(chunk)
            yield packer.flush()
        case Codec.SNAPPY:
            yield _xerial_header()
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
            zstd_packer = _zstd().ZstdCompressor(level=3 if level is None else level)
            for chunk in chunks:
                yield zstd_packer.compress(chunk)
            yield zstd_packer.flush()


def decompress(codec: Codec, data: Buffer, max_size: int) -> bytes:
    """Decompress `data`.

    Raises KafkaError(corrupt_message) for malformed data, UnpackedTooLargeError for more than `max_size` bytes.
    """
    # one byte more than allowed, to detect too much data
    parts = list(_decompressed(codec, data, max_size, max_size + 1))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decompress_chunks(codec: Codec, data: Buffer, max_size: int) -> Iterator[bytes]:
    """Decompress `data` in non-empty chunks of at most `CHUNK_SIZE` bytes.

    Takes about 3 MB, and the memory of the codec: a snappy block of up to 22 times its compressed size, a zstd window
    of up to 128 MB. Raises the exceptions of `decompress` while iterating.
    """
    return _decompressed(codec, data, max_size, CHUNK_SIZE)


def _decompressed(codec: Codec, data: Buffer, max_size: int, step: int) -> Iterator[bytes]:
    """Yield chunks of at most `step` bytes."""
    size = 0
    try:
        for part in _DECOMPRESS[codec](memoryview(data), step, max_size):
            size += len(part)
            if size > max_size:
                raise _too_large(codec, max_size)
            if part:
                yield part
    except KafkaError:
        raise
    except Exception as error:  # every codec library has its own exceptions
        raise KafkaError(
            ErrorCode.corrupt_message, f"{codec.name.lower()} data cannot be decompressed: {error}"
        ) from error


def _too_large(codec: Codec, max_size: int) -> UnpackedTooLargeError:
    return UnpackedTooLargeError(
        ErrorCode.corrupt_message, f"{codec.name.lower()} data decompresses to more than the {max_size} bytes allowed"
    )


def _corrupt(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, reason)


def _check_parts(codec: Codec, count: int, size: int) -> None:
    """Refuse data with many tiny frames or blocks, which only waste the broker's time."""
    if count > _FREE_PARTS + size // 1024:
        raise _corrupt(f"{codec.name.lower()} data has {count} frames or blocks for only {size} bytes")


def _stored(view: memoryview, step: int, max_size: int) -> Iterator[bytes]:
    if len(view) > max_size:
        raise _too_large(Codec.NONE, max_size)
    for start in range(0, len(view), step):
        yield bytes(view[start : start + step])


def _gzip_decompress(view: memoryview, step: int, max_size: int) -> Iterator[bytes]:  # noqa: ARG001  # as the others
    position = members = size = 0
    # as in Java, several members may follow one another, and anything else after a member is ignored
    while members == 0 or bytes(view[position : position + 2]) == _GZIP_MAGIC:
        unpacker = zlib.decompressobj(31)
        is_at_end = False
        while not is_at_end:
            given = view[position : position + CHUNK_SIZE]
            part = unpacker.decompress(given, step)
            is_at_end = unpacker.eof
            position += len(given) - len(unpacker.unused_data if is_at_end else unpacker.unconsumed_tail)
            if not part and position == len(view) and not is_at_end:
                raise _corrupt("gzip data ends before its end marker")
            size += len(part)
            yield part
        members += 1
        _check_parts(Codec.GZIP, members, size)


def _xerial_header() -> bytes:
    return XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")


def _snappy_compress(data: Buffer) -> bytes:
    import cramjam

    # Java clients read and write blocks after a xerial header; librdkafka reads both formats
    out = bytearray(_xerial_header())
    view = memoryview(data)
    for start in range(0, len(view), 32 * 1024):
        block = cramjam.snappy.compress_raw(view[start : start + 32 * 1024])
        out += len(block).to_bytes(4, "big")
        out += memoryview(block)
    return bytes(out)


def _snappy_decompress(view: memoryview, step: int, max_size: int) -> Iterator[bytes]:
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        yield from _snappy_block(view, step, max_size, 0)
        return
    if len(view) < _XERIAL_HEADER_SIZE:
        raise _corrupt("snappy data ends inside its header")
    position = _XERIAL_HEADER_SIZE
    blocks = size = 0
    while position < len(view):
        block_size = int.from_bytes(view[position : position + 4], "big")
        if block_size == _XERIAL_MAGIC_AS_SIZE:  # another stream follows
            position += _XERIAL_HEADER_SIZE
        else:
            position += 4
            if block_size > len(view) - position:
                raise _corrupt("snappy data ends inside a block")
            block = view[position : position + block_size]
            position += block_size
            for part in _snappy_block(block, step, max_size, size):
                size += len(part)
                yield part
        blocks += 1
        _check_parts(Codec.SNAPPY, blocks, size)


def _snappy_block(block: memoryview, step: int, max_size: int, before: int) -> Iterator[bytes]:
    """Decompress one block; `before` is the decompressed size of earlier blocks of the same data."""
    import cramjam

    # a block begins with its decompressed size: check it before allocating as much
    try:
        size, _ = unsigned_varint(block, 0)
    except (IndexError, ValueError) as error:
        raise _corrupt("a snappy block does not begin with its length") from error
    if before + size > max_size:
        raise _too_large(Codec.SNAPPY, max_size)
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise _corrupt(f"a snappy block of {len(block)} bytes cannot decompress to {size} bytes")
    unpacked = cramjam.snappy.decompress_raw(block)
    if size <= step:
        yield bytes(unpacked)
    else:
        yield from _stored(memoryview(unpacked), step, max_size)


def _lz4_decompress(view: memoryview, step: int, max_size: int) -> Iterator[bytes]:  # noqa: ARG001  # as the others
    import lz4.frame

    # like Kafka, read one frame and ignore the rest; refuse frames that Java clients cannot read
    if bytes(view[:4]) == _LZ4_MAGIC and len(view) > 4 and not view[4] & _LZ4_INDEPENDENT:
        raise _corrupt("lz4 blocks refer to earlier blocks, which Kafka does not support")
    context = lz4.frame.create_decompression_context()
    position = 0
    is_at_end = False
    while not is_at_end:
        given = view[position : position + max(CHUNK_SIZE, step)]
        part, taken, is_at_end = lz4.frame.decompress_chunk(context, given, max_length=step)
        position += taken
        if not part and not taken and not is_at_end:
            raise _corrupt("lz4 data ends inside a frame")
        yield part


def _zstd() -> Any:
    try:
        from compression import zstd as library  # type: ignore[import-not-found]  # since Python 3.14
    except ImportError:
        from backports import zstd as library
    return library


def _zstd_decompress(view: memoryview, step: int, max_size: int) -> Iterator[bytes]:  # noqa: ARG001  # as the others
    library = _zstd()
    options = {library.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    position = frames = size = 0
    # as in Java, only frames may follow one another, and no frame means no records
    while position < len(view):
        unpacker = library.ZstdDecompressor(options=options)
        while not unpacker.eof:
            given = view[position : position + CHUNK_SIZE] if unpacker.needs_input else b""
            if unpacker.needs_input and not given:
                raise _corrupt("zstd data ends inside a frame")
            position += len(given)
            part = unpacker.decompress(given, step)
            size += len(part)
            yield part
        position -= len(unpacker.unused_data)
        frames += 1
        _check_parts(Codec.ZSTD, frames, size)


_DECOMPRESS: Final[dict[Codec, Callable[[memoryview, int, int], Iterator[bytes]]]] = {
    Codec.NONE: _stored,
    Codec.GZIP: _gzip_decompress,
    Codec.SNAPPY: _snappy_decompress,
    Codec.LZ4: _lz4_decompress,
    Codec.ZSTD: _zstd_decompress,
}
