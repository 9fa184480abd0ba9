"""AWS's event-stream framing: bytes in frames with typed headers and checksums.

The format is that of `application/vnd.amazon.eventstream` in the Smithy specification ("Amazon
Event Stream Specification"). Libraries only read it, or need a newer Python than this one.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Final

CONTENT_TYPE: Final = "application/vnd.amazon.eventstream"

_STRING: Final = 7
_PRELUDE_BYTES: Final = 12
_CHECKSUM_BYTES: Final = 4


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Write a frame.

    Args:
        headers: Names, at most 255 bytes each, and values, at most 65,535.
        payload: What it carries.

    Returns:
        Total length and length of the headers (both `u32`, big-endian), the CRC32 of these eight
        bytes, the headers, the payload, and the CRC32 of all before it.
    """
    written = b"".join(_header(name.encode(), value.encode()) for name, value in headers.items())
    total = _PRELUDE_BYTES + len(written) + len(payload) + _CHECKSUM_BYTES
    lengths = struct.pack(">II", total, len(written))
    body = lengths + struct.pack(">I", zlib.crc32(lengths)) + written + payload
    return body + struct.pack(">I", zlib.crc32(body))


def payload_part(payload: bytes) -> bytes:
    """Write a part of a response."""
    headers = {
        ":message-type": "event",
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
    }
    return frame(headers, payload)


def exception(kind: str, members: Mapping[str, str]) -> bytes:
    """Write an exception, which ends a stream.

    Args:
        kind: Its name in the service's model.
        members: What it tells.
    """
    headers = {
        ":message-type": "exception",
        ":exception-type": kind,
        ":content-type": "application/json",
    }
    return frame(headers, json.dumps(members).encode())


def _header(name: bytes, value: bytes) -> bytes:
    return struct.pack(">B", len(name)) + name + struct.pack(">BH", _STRING, len(value)) + value
