"""Compressed records in every form that a client might send, accepted or refused."""

import time
from collections.abc import Callable
from typing import Final

import cramjam
import lz4.frame
from backports import zstd

from headrace.wire.apis import ApiKey
from headrace.wire.batch import HEADER_SIZE, plain
from headrace.wire.compression import Codec, compress
from headrace.wire.records import RecordData, build_batch
from tests.parity.both import Both, Names
from tests.parity.records import produce

COUNT: Final = 10_000


def halves(codec: Codec, body: bytes) -> bytes:
    return compress(codec, body[:40_000]) + compress(codec, body[40_000:])


def without_content_size(body: bytes) -> bytes:
    packer = zstd.ZstdCompressor()
    return packer.compress(body) + packer.flush()


FORMS: Final[dict[str, tuple[Codec, Callable[[bytes], bytes]]]] = {
    "gzip, two members": (Codec.GZIP, lambda body: halves(Codec.GZIP, body)),
    "gzip, trailing garbage": (Codec.GZIP, lambda body: compress(Codec.GZIP, body) + b"garbage"),
    "gzip, truncated": (Codec.GZIP, lambda body: compress(Codec.GZIP, body)[:-200]),
    "zlib": (Codec.GZIP, lambda body: b"\x78\x9c" + compress(Codec.GZIP, body)[10:-8]),
    "snappy, two streams": (Codec.SNAPPY, lambda body: halves(Codec.SNAPPY, body)),
    "snappy, raw": (Codec.SNAPPY, lambda body: bytes(cramjam.snappy.compress_raw(body))),
    "snappy, truncated": (Codec.SNAPPY, lambda body: compress(Codec.SNAPPY, body)[:-3]),
    "lz4, trailing garbage": (Codec.LZ4, lambda body: compress(Codec.LZ4, body) + b"garbage"),
    "lz4, truncated": (Codec.LZ4, lambda body: compress(Codec.LZ4, body)[:-200]),
    "lz4, checksums": (
        Codec.LZ4,
        lambda body: lz4.frame.compress(body, block_linked=False, content_checksum=True, block_checksum=True),
    ),
    "lz4, large blocks": (
        Codec.LZ4,
        lambda body: lz4.frame.compress(body, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
    ),
    "lz4, linked blocks": (Codec.LZ4, lambda body: lz4.frame.compress(body, block_linked=True)),
    "zstd, two frames": (Codec.ZSTD, lambda body: halves(Codec.ZSTD, body)),
    "zstd, no content size": (Codec.ZSTD, without_content_size),
    "zstd, trailing garbage": (Codec.ZSTD, lambda body: compress(Codec.ZSTD, body) + b"garbage"),
    "zstd, truncated": (Codec.ZSTD, lambda body: compress(Codec.ZSTD, body)[:-200]),
    "zstd, level -5": (Codec.ZSTD, lambda body: compress(Codec.ZSTD, body, -5)),
    **{f"{codec.name.lower()}, empty": (codec, lambda body: b"") for codec in Codec},
}


def test_forms_of_compression(both: Both, name: Names) -> None:
    topic = both.create(name(), len(FORMS))
    now = round(time.time() * 1000)
    body = build_batch([RecordData(b"k", b"value %d" % number, now) for number in range(COUNT)])[HEADER_SIZE:]
    for partition, (form, (codec, compressed)) in enumerate(FORMS.items()):
        batch = plain(compressed(body), COUNT, now, codec)
        both.ask(ApiKey.PRODUCE, 9, produce(topic, batch, partition=partition), case=form)
