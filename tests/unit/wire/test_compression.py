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
BOMB_SIZE = 40 << 20


def joined_chunks(codec: Codec, data: Buffer, max_size: int) -> bytes:
    return b"".join(decompress_chunks(codec, data, max_size))


Decompress = Callable[[Codec, Buffer, int], bytes]


@pytest.fixture(params=[decompress, joined_chunks])
def unpack(request: pytest.FixtureRequest) -> Decompress:
    function: Decompress = request.param
    return function


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
def test_compressed_data_can_be_decompressed(codec: Codec, unpack: Decompress) -> None:
    for size in (0, 1, 4096, CHUNK_SIZE, CHUNK_SIZE + 1, 2_500_000):
        data = some_data(size)
        packed = packed_data(codec, size)
        assert unpack(codec, memoryview(packed), size) == data, f"{size} bytes"
    assert unpack(codec, bytearray(packed), size) == data


@pytest.mark.parametrize("codec", [Codec.NONE, *CODECS])
def test_no_chunk_is_larger_than_a_megabyte(codec: Codec) -> None:
    packed = packed_data(codec, 2_500_000)
    sizes = [len(chunk) for chunk in decompress_chunks(codec, packed, NO_LIMIT)]
    assert sum(sizes) == 2_500_000
    assert 0 < min(sizes) <= max(sizes) <= CHUNK_SIZE


@pytest.mark.parametrize("codec", [Codec.NONE, *CODECS])
def test_one_byte_over_the_limit_is_refused(codec: Codec, unpack: Decompress) -> None:
    for size in (1, 5000, 2_500_000):
        with pytest.raises(UnpackedTooLargeError, match=f"more than the {size - 1} bytes allowed"):
            unpack(codec, packed_data(codec, size), size - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_data_that_ends_early_is_corrupt(codec: Codec, unpack: Decompress) -> None:
    for packed in (packed_data(codec, size) for size in (1, 5000, 2_500_000)):
        for missing in (1, 3, 8, len(packed) // 2):
            with pytest.raises(KafkaError) as raised:
                unpack(codec, packed[:-missing], NO_LIMIT)
            assert raised.value.code is ErrorCode.corrupt_message, f"{missing} of {len(packed)} bytes missing"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_empty_data_is_corrupt(codec: Codec, unpack: Decompress) -> None:
    with pytest.raises(KafkaError):
        unpack(codec, b"", NO_LIMIT)


def test_empty_zstd_data_decompresses_to_nothing(unpack: Decompress) -> None:
    assert unpack(Codec.ZSTD, b"", NO_LIMIT) == b""


@pytest.mark.parametrize("codec", CODECS)
def test_random_bytes_are_corrupt(codec: Codec, unpack: Decompress) -> None:
    with pytest.raises(KafkaError):
        unpack(codec, os.urandom(100), 50)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_streams_may_follow_each_other(codec: Codec, unpack: Decompress) -> None:
    parts = [some_data(size) for size in (10, 0, 2_000_000, 70_000)]
    packed = b"".join(packed_data(codec, len(part)) for part in parts)
    assert unpack(codec, packed, 2_070_010) == b"".join(parts)
    with pytest.raises(UnpackedTooLargeError):
        unpack(codec, packed, 2_070_009)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_trailing_bytes_are_ignored_for_codecs_where_java_ignores_them(codec: Codec, unpack: Decompress) -> None:
    assert unpack(codec, compress(codec, b"abc") + b"garbage", 3) == b"abc"


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.ZSTD])
def test_trailing_bytes_are_refused_for_other_codecs(codec: Codec, unpack: Decompress) -> None:
    with pytest.raises(KafkaError):
        unpack(codec, compress(codec, b"abc") + b"garbage", NO_LIMIT)


def test_gzip_is_not_zlib(unpack: Decompress) -> None:
    with pytest.raises(KafkaError):
        unpack(Codec.GZIP, zlib.compress(b"abc"), NO_LIMIT)


@pytest.mark.parametrize("level", [-131072, -1, 1, 22])
def test_zstd_data_of_every_level_is_read(level: int) -> None:
    assert decompress(Codec.ZSTD, compress(Codec.ZSTD, b"abc" * 1000, level), 3000) == b"abc" * 1000


@pytest.mark.parametrize("level", [1, 9, 12, 17])
def test_lz4_data_of_every_level_is_read(level: int) -> None:
    assert decompress(Codec.LZ4, compress(Codec.LZ4, b"abc" * 1000, level), 3000) == b"abc" * 1000


@pytest.mark.parametrize("level", [-1, 1, 9])
def test_gzip_data_of_every_level_is_read(level: int) -> None:
    assert decompress(Codec.GZIP, compress(Codec.GZIP, b"abc" * 1000, level), 3000) == b"abc" * 1000


@pytest.mark.parametrize("size", [10, 2_500_000])
def test_lz4_blocks_do_not_refer_to_each_other(size: int) -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, some_data(size)))
    assert not info["block_linked"]


@pytest.mark.parametrize(
    "options",
    [
        {"store_size": False},
        {"content_checksum": True, "block_checksum": True},
        {"block_size": lz4.frame.BLOCKSIZE_MAX4MB},
    ],
)
def test_all_kinds_of_lz4_frames_are_read(options: dict[str, int], unpack: Decompress) -> None:
    data = some_data(4_500_000)
    assert unpack(Codec.LZ4, lz4.frame.compress(data, block_linked=False, **options), 4_500_000) == data


def test_lz4_blocks_that_refer_to_earlier_ones_are_refused_as_by_kafka(unpack: Decompress) -> None:
    with pytest.raises(KafkaError, match="refer to earlier blocks"):
        unpack(Codec.LZ4, lz4.frame.compress(some_data(200_000), block_linked=True), NO_LIMIT)


def test_zstd_frames_without_a_content_size_are_read(unpack: Decompress) -> None:
    data = some_data(2_500_000)
    packer = zstd.ZstdCompressor()
    packed = packer.compress(data) + packer.flush()
    assert zstd.get_frame_info(packed).decompressed_size is None
    assert unpack(Codec.ZSTD, packed, 2_500_000) == data


def test_a_zstd_window_over_128_mb_is_refused(unpack: Decompress) -> None:
    options: dict[int, int] = {zstd.CompressionParameter.window_log: 28}
    packer = zstd.ZstdCompressor(options=options)
    packed = packer.compress(b"abc") + packer.flush()
    with pytest.raises(KafkaError, match="memory"):
        unpack(Codec.ZSTD, packed, NO_LIMIT)


def test_raw_snappy_from_librdkafka_is_read(unpack: Decompress) -> None:
    data = some_data(2_500_000)
    assert unpack(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), 2_500_000) == data


def test_a_snappy_block_that_declares_an_impossible_size_is_refused_before_decompression(unpack: Decompress) -> None:
    with pytest.raises(KafkaError, match="cannot decompress to"):
        unpack(Codec.SNAPPY, b"\xff\xff\xff\xff\x01" + bytes(1000), NO_LIMIT)


@pytest.mark.parametrize(
    ("codec", "tiny"), [(Codec.GZIP, compress(Codec.GZIP, b"")), (Codec.ZSTD, zstd.compress(b""))], ids=["gzip", "zstd"]
)
def test_thousands_of_empty_frames_are_refused(codec: Codec, tiny: bytes, unpack: Decompress) -> None:
    with pytest.raises(KafkaError, match="1001 frames or blocks for only 0 bytes"):
        unpack(codec, tiny * 5_000, NO_LIMIT)


def test_thousands_of_empty_snappy_blocks_are_refused(unpack: Decompress) -> None:
    with pytest.raises(KafkaError, match="1001 frames or blocks for only 0 bytes"):
        unpack(Codec.SNAPPY, XERIAL_HEADER + b"\0\0\0\1\0" * 5_000, NO_LIMIT)


def resident_bytes() -> int:
    """Return the memory of this process, including that of C and Rust code."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("needs Linux")
    return int(statm.read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_decompression_bomb_takes_little_memory(codec: Codec) -> None:
    """Less than 200 kB decompress to 40 MiB."""
    packed = compress(codec, bytes(BOMB_SIZE), 1)
    before = resident_bytes()
    total = most = 0
    for chunk in decompress_chunks(codec, packed, NO_LIMIT):
        assert len(chunk) <= CHUNK_SIZE
        total += len(chunk)
        most = max(most, resident_bytes())
    assert total == BOMB_SIZE
    assert most - before < BOMB_SIZE // 4


def test_chunks_are_decompressed_one_at_a_time() -> None:
    packed = compress(Codec.ZSTD, bytes(40 << 20))
    chunks = decompress_chunks(Codec.ZSTD, packed, 2 * CHUNK_SIZE)
    first, second = next(chunks), next(chunks)
    assert len(first) + len(second) == 2 * CHUNK_SIZE
    with pytest.raises(UnpackedTooLargeError):
        next(chunks)


def test_a_corrupt_byte_causes_no_error_but_kafka_error(unpack: Decompress) -> None:
    """Every byte is corrupted in turn."""
    for codec in CODECS:
        packed = compress(codec, some_data(300))
        for position in range(len(packed)):
            bad = bytearray(packed)
            bad[position] ^= 0x41
            with suppress(KafkaError):
                assert len(unpack(codec, bad, 100_000)) <= 100_000
