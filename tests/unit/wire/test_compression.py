import os
import random
import resource
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import cramjam
import lz4.frame
import pytest
from backports import zstd

from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer
from headrace.wire import compression
from headrace.wire.compression import (
    CHUNK_SIZE,
    XERIAL_MAGIC,
    Codec,
    UnpackedTooLargeError,
    compress,
    decompress,
    decompress_chunks,
)

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
XERIAL_HEADER = XERIAL_MAGIC + bytes(4) * 2
NO_LIMIT = 1 << 30
CHUNK = 16 * 1024
SEVERAL_CHUNKS = 150_000
BOMB_SIZE = 20 << 20

Decompress = Callable[[Codec, Buffer, int], bytes]


@pytest.fixture
def unpack(monkeypatch: pytest.MonkeyPatch) -> Decompress:
    """Decompress in one go and in small chunks, which must give the same data or refuse it."""
    monkeypatch.setattr(compression, "CHUNK_SIZE", CHUNK)

    def both_ways(codec: Codec, data: Buffer, max_size: int) -> bytes:
        try:
            whole = decompress(codec, data, max_size)
        except KafkaError as error:
            code = error.code
            with pytest.raises(type(error), check=lambda other: other.code is code is ErrorCode.corrupt_message):
                list(decompress_chunks(codec, data, max_size))
            raise
        chunks = list(decompress_chunks(codec, data, max_size))
        assert all(0 < len(chunk) <= CHUNK for chunk in chunks)
        assert b"".join(chunks) == whole
        return whole

    return both_ways


@cache
def some_data(size: int) -> bytes:
    """Return data that compresses to about a third."""
    source = random.Random(size)
    words = [source.randbytes(6) + b"key=value " * 2 for _ in range(500)]
    return b"".join(source.choices(words, k=size // 26 + 1))[:size]


@cache
def packed_data(codec: Codec, size: int) -> bytes:
    return bytes(compress(codec, memoryview(some_data(size))))


@pytest.mark.parametrize("codec", [Codec.NONE, *CODECS])
def test_compressed_data_can_be_decompressed_up_to_the_limit(codec: Codec, unpack: Decompress) -> None:
    for size in (0, 1, CHUNK, CHUNK + 1, SEVERAL_CHUNKS):
        packed = packed_data(codec, size)
        assert unpack(codec, memoryview(packed), size) == some_data(size), f"{size} bytes"
        if size:
            with pytest.raises(UnpackedTooLargeError, match=f"more than the {size - 1} bytes allowed"):
                unpack(codec, bytearray(packed), size - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_data_that_ends_early_is_corrupt(codec: Codec, unpack: Decompress) -> None:
    for packed in (packed_data(codec, size) for size in (1, SEVERAL_CHUNKS)):
        for missing in (1, 3, 8, len(packed) // 2):
            with pytest.raises(KafkaError):
                unpack(codec, packed[:-missing], NO_LIMIT)


def test_empty_data_is_corrupt_except_for_zstd(unpack: Decompress) -> None:
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
        with pytest.raises(KafkaError):
            unpack(codec, b"", NO_LIMIT)
    assert unpack(Codec.ZSTD, b"", NO_LIMIT) == b""


def test_data_of_another_format_is_corrupt(unpack: Decompress) -> None:
    for codec, data in (*((codec, os.urandom(100)) for codec in CODECS), (Codec.GZIP, zlib.compress(b"abc"))):
        with pytest.raises(KafkaError):
            unpack(codec, data, 50)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_streams_may_follow_each_other(codec: Codec, unpack: Decompress) -> None:
    parts = [some_data(size) for size in (10, 0, SEVERAL_CHUNKS, 7_000)]
    packed = b"".join(packed_data(codec, len(part)) for part in parts)
    size = SEVERAL_CHUNKS + 7_010
    assert unpack(codec, packed, size) == b"".join(parts)
    with pytest.raises(UnpackedTooLargeError):
        unpack(codec, packed, size - 1)


def test_trailing_bytes_are_ignored_only_for_codecs_where_java_ignores_them(unpack: Decompress) -> None:
    for codec in (Codec.GZIP, Codec.LZ4):
        assert unpack(codec, compress(codec, b"abc") + b"garbage", 3) == b"abc"
    for codec in (Codec.SNAPPY, Codec.ZSTD):
        with pytest.raises(KafkaError):
            unpack(codec, compress(codec, b"abc") + b"garbage", NO_LIMIT)


def test_data_of_every_level_is_read() -> None:
    data = b"abc" * 1000
    for codec, levels in {Codec.GZIP: (-1, 1, 9), Codec.LZ4: (1, 9, 12, 17), Codec.ZSTD: (-131072, -1, 1, 22)}.items():
        for level in levels:
            assert decompress(codec, compress(codec, data, level), len(data)) == data, (codec, level)


def test_lz4_blocks_do_not_refer_to_each_other() -> None:
    info = lz4.frame.get_frame_info(packed_data(Codec.LZ4, SEVERAL_CHUNKS))
    assert not info["block_linked"]


def test_all_kinds_of_lz4_frames_are_read(unpack: Decompress) -> None:
    data = some_data(SEVERAL_CHUNKS)
    kinds: list[dict[str, int]] = [
        {"store_size": False},
        {"content_checksum": True, "block_checksum": True},
        {"block_size": lz4.frame.BLOCKSIZE_MAX4MB},
    ]
    for options in kinds:
        packed = lz4.frame.compress(data, block_linked=False, **options)
        assert unpack(Codec.LZ4, packed, len(data)) == data, options


def test_lz4_blocks_that_refer_to_earlier_ones_are_refused_as_by_kafka(unpack: Decompress) -> None:
    with pytest.raises(KafkaError, match="refer to earlier blocks"):
        unpack(Codec.LZ4, lz4.frame.compress(some_data(SEVERAL_CHUNKS), block_linked=True), NO_LIMIT)


def test_zstd_frames_without_a_content_size_are_read(unpack: Decompress) -> None:
    data = some_data(SEVERAL_CHUNKS)
    packer = zstd.ZstdCompressor()
    packed = packer.compress(data) + packer.flush()
    assert zstd.get_frame_info(packed).decompressed_size is None
    assert unpack(Codec.ZSTD, packed, len(data)) == data


def test_a_zstd_window_over_128_mb_is_refused(unpack: Decompress) -> None:
    options: dict[int, int] = {zstd.CompressionParameter.window_log: 28}
    packer = zstd.ZstdCompressor(options=options)
    packed = packer.compress(b"abc") + packer.flush()
    with pytest.raises(KafkaError, match="memory"):
        unpack(Codec.ZSTD, packed, NO_LIMIT)


def test_raw_snappy_from_librdkafka_is_read(unpack: Decompress) -> None:
    data = some_data(SEVERAL_CHUNKS)
    assert unpack(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), len(data)) == data


def test_a_snappy_block_that_declares_an_impossible_size_is_refused_before_decompression(unpack: Decompress) -> None:
    with pytest.raises(KafkaError, match="cannot decompress to"):
        unpack(Codec.SNAPPY, b"\xff\xff\xff\xff\x01" + bytes(1000), NO_LIMIT)


def test_more_than_a_thousand_empty_frames_or_blocks_are_refused(unpack: Decompress) -> None:
    empty = {Codec.GZIP: compress(Codec.GZIP, b""), Codec.ZSTD: zstd.compress(b""), Codec.SNAPPY: b"\0\0\0\1\0"}
    for codec, frame in empty.items():
        header = XERIAL_HEADER if codec is Codec.SNAPPY else b""
        assert unpack(codec, header + frame * 1_000, NO_LIMIT) == b""
        with pytest.raises(KafkaError, match=f"{codec.name.lower()} data has 1001 frames or blocks for only 0 bytes"):
            unpack(codec, header + frame * 1_001, NO_LIMIT)


def resident_bytes() -> int:
    """Return the memory of this process, including that of C and Rust code."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("needs Linux")
    return int(statm.read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_decompression_bomb_takes_little_memory(codec: Codec) -> None:
    """Less than 100 kB decompress to 20 MiB."""
    packed = compress(codec, bytes(BOMB_SIZE), 1)
    before = resident_bytes()
    total = most = 0
    for chunk in decompress_chunks(codec, packed, NO_LIMIT):
        assert len(chunk) <= CHUNK_SIZE
        total += len(chunk)
        most = max(most, resident_bytes())
    assert total == BOMB_SIZE
    assert most - before < BOMB_SIZE // 2


def test_chunks_are_decompressed_one_at_a_time() -> None:
    packed = compress(Codec.ZSTD, bytes(4 * CHUNK_SIZE))
    chunks = decompress_chunks(Codec.ZSTD, packed, 2 * CHUNK_SIZE)
    first, second = next(chunks), next(chunks)
    assert len(first) + len(second) == 2 * CHUNK_SIZE
    with pytest.raises(UnpackedTooLargeError):
        next(chunks)


def test_a_corrupt_byte_causes_no_error_but_kafka_error(unpack: Decompress) -> None:
    """Every byte is corrupted in turn."""
    for codec in CODECS:
        packed = compress(codec, some_data(100))
        for position in range(len(packed)):
            bad = bytearray(packed)
            bad[position] ^= 0x41
            with suppress(KafkaError):
                assert len(unpack(codec, bad, 100_000)) <= 100_000
