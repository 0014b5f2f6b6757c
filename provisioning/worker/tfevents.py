"""TensorBoard's event files as bytes: records, and the scalars in them. Pure, and trusts nothing.

    record    u64 length, u32 masked CRC32C of these 8 bytes, data, u32 masked CRC32C of the data
    Event     1 wall_time (double), 2 step (int64), 3 file_version, 5 summary, 7 session_log
    Summary   1 value, repeated: 1 tag, 2 simple_value (float), 8 tensor, 9 metadata
    metadata  1 plugin_data: 1 plugin_name ("scalars"); 4 data_class (1: scalar)
    tensor    1 dtype (1 float, 2 double), 2 shape, 4 tensor_content, 5 float_val, 6 double_val

All numbers are little-endian, messages are protobuf's. A writer may give a tag's metadata with its
first value alone, so whoever reads keeps the tags that are known. What is no scalar is passed over
by its length.
"""

from __future__ import annotations

import re
import struct
from array import array
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

HEADER = 12
FOOTER = 4
LARGEST = 64 << 10
"""A record with scalars alone has some 60 bytes; what is larger is an image, and is not read."""
LONGEST_TAG = 200
_POLYNOMIAL = 0x82F63B78
_MOST_LENGTHS = 4096
_MOST_KNOWN = 512
_MASK64 = (1 << 64) - 1
_FLOAT, _DOUBLE = 1, 2
_START = 1
_USUAL = re.compile(
    rb"\x09(.{8})\x10([\x80-\xff]{0,7}[\x00-\x7f])(\x2a[\x00-\x7f]\x0a[\x00-\x7f]\x0a[\x00-\x7f])",
    re.DOTALL,
)
"""wall_time, step, and the lengths of a summary of one value that begins with its tag."""
_DOUBLE_OF = struct.Struct("<d").unpack
_FLOAT_OF = struct.Struct("<f").unpack_from


class NoEvent(ValueError):
    """These bytes are no event."""


class Event(NamedTuple):
    """What one record says."""

    wall: float
    step: int
    values: List[Tuple[str, float]]
    """Tags with their values, also such as are no numbers."""
    is_start: bool
    """A writer begins anew: what was said of this step and later ones before does not count."""


def crc32c(data: bytes) -> int:
    """The CRC32C (Castagnoli) of these bytes."""
    table, pairs = _tables()
    crc = 0xFFFFFFFF
    even = len(data) & ~1
    for pair in struct.unpack("<%dH" % (even >> 1), data[:even]):
        crc = pairs[(crc ^ pair) & 0xFFFF] ^ (crc >> 16)
    if even != len(data):
        crc = table[(crc ^ data[-1]) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """The same as event files hold it."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def length_of(header: bytes) -> Optional[int]:
    """How many bytes of data a record has, by its first 12 bytes; None where they are damaged."""
    told = header[:8]
    crc = _lengths.get(told)
    if crc is None:
        crc = masked(told)
        if len(_lengths) < _MOST_LENGTHS:
            _lengths[told] = crc
    if crc != int.from_bytes(header[8:HEADER], "little"):
        return None
    return int.from_bytes(told, "little")


def is_whole(data: bytes, footer: bytes) -> bool:
    """Whether a record's data is as it was written."""
    return masked(data) == int.from_bytes(footer, "little")


def decode(data: bytes, known: Set[str]) -> Event:
    """The event in a record. Raises NoEvent.

    known: tags whose tensors are known to be scalars; those that are told here come to it.
    """
    usual = _usual(data)
    if usual is not None:
        return usual
    wall, step, is_start = 0.0, 0, False
    values: List[Tuple[str, float]] = []
    for number, kind, at, stop in _fields(data, 0, len(data)):
        if number == 1 and kind == 1:
            wall = _number("<d", data, at)
        elif number == 2 and kind == 0:
            step = at if at < 1 << 63 else at - (1 << 64)
        elif number == 5 and kind == 2:
            for inner, its_kind, begin, end in _fields(data, at, stop):
                if inner == 1 and its_kind == 2:
                    found = _value(data, begin, end, known)
                    if found is not None:
                        values.append(found)
        elif number == 7 and kind == 2:
            is_start = any(
                (inner, its_kind, status) == (1, 0, _START)
                for inner, its_kind, status, _ in _fields(data, at, stop)
            )
    return Event(wall, step, values, is_start)


def short(value: float) -> float:
    """The number with the fewest digits that is the same as a 32-bit float; else as it is."""
    try:
        single = struct.pack("<f", value)
        if struct.unpack("<f", single)[0] != value:
            return value
        for digits in (6, 7, 8):
            shorter = float("%.*g" % (digits, value))
            if struct.pack("<f", shorter) == single:
                return shorter
        return float("%.9g" % value)
    except OverflowError:
        return value


# -- parts ------------------------------------------------------------------------------------


_lengths: Dict[bytes, int] = {}
_made: List[Tuple["array[int]", "array[int]"]] = []


def _tables() -> Tuple["array[int]", "array[int]"]:
    """CRCs of each byte and of each pair of bytes; made at the first need, in some 30 ms."""
    if not _made:
        single = []
        for crc in range(256):
            for _ in range(8):
                crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
            single.append(crc)
        after = [single[first & 0xFF] ^ (first >> 8) for first in single]
        # of a pair the byte that comes first passes through the table twice
        pairs = [after[low] ^ single[high] for high in range(256) for low in range(256)]
        _made.append((array("I", single), array("I", pairs)))
    return _made[0]


def _usual(data: bytes) -> Optional[Event]:
    """The event, if it is one simple value as nearly all writers spell it; as `decode` reads it,
    in a third of the time."""
    found = _USUAL.match(data)
    if found is None:
        return None
    wall, digits, sizes = found.groups()
    summary, value, tag = sizes[1], sizes[3], sizes[5]
    at = found.end()
    stop = at + tag
    # the lengths must leave room for the value, and for nothing else
    if len(data) != stop + 5 or data[stop] != 0x15 or (value, summary) != (tag + 7, tag + 9):
        return None
    step = shift = 0
    for byte in digits:
        step |= (byte & 0x7F) << shift
        shift += 7
    return Event(
        _DOUBLE_OF(wall)[0],
        step,
        [(data[at:stop].decode("utf-8", "replace"), _FLOAT_OF(data, stop + 1)[0])],
        False,
    )


def _value(data: bytes, at: int, stop: int, known: Set[str]) -> Optional[Tuple[str, float]]:
    """(tag, value) of one of a summary's values; None for what is no scalar."""
    tag: Optional[str] = None
    simple: Optional[float] = None
    tensor: Optional[Tuple[int, int]] = None
    is_scalar = False
    for number, kind, begin, end in _fields(data, at, stop):
        if kind == 2 and number == 1:
            if end - begin > LONGEST_TAG:
                return None
            tag = data[begin:end].decode("utf-8", "replace")
        elif kind == 5 and number == 2:
            simple = _number("<f", data, begin)
        elif kind == 2 and number == 8:
            tensor = begin, end
        elif kind == 2 and number == 9:
            is_scalar = _tells_scalars(data, begin, end)
    if tag is None:
        return None
    if simple is not None:
        return tag, simple
    if is_scalar and len(known) < _MOST_KNOWN:
        known.add(tag)
    if tensor is None or not (is_scalar or tag in known):
        return None
    value = _tensor(data, *tensor)
    return None if value is None else (tag, value)


def _tells_scalars(data: bytes, at: int, stop: int) -> bool:
    """Whether a value's metadata says that it is one of TensorBoard's scalars."""
    for number, kind, begin, end in _fields(data, at, stop):
        if number == 1 and kind == 2:
            for inner, its_kind, name, name_end in _fields(data, begin, end):
                if inner == 1 and its_kind == 2 and data[name:name_end] == b"scalars":
                    return True
        elif number == 4 and kind == 0 and begin == 1:
            return True
    return False


def _tensor(data: bytes, at: int, stop: int) -> Optional[float]:
    """The one float of a tensor, in whichever field it stands; None where it is anything else."""
    dtype, content = 0, b""
    singles, doubles = b"", b""
    for number, kind, begin, end in _fields(data, at, stop):
        if number == 1 and kind == 0:
            dtype = begin
        elif number == 4 and kind == 2:
            content = data[begin:end]
        elif number == 5 and kind in (2, 5):
            singles = data[begin:end]
        elif number == 6 and kind in (1, 2):
            doubles = data[begin:end]
    if dtype == _FLOAT:
        return _alone("<f", content or singles)
    if dtype == _DOUBLE:
        return _alone("<d", content or doubles)
    return None


def _alone(form: str, data: bytes) -> Optional[float]:
    if len(data) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, data)[0])


def _number(form: str, data: bytes, at: int) -> float:
    return float(struct.unpack_from(form, data, at)[0])


def _fields(data: bytes, at: int, stop: int) -> Iterator[Tuple[int, int, int, int]]:
    """(number, wire type, begin, end) of a message's fields; of a varint its value stands first.

    Raises NoEvent for what reaches over the message's end, so every field lies in it.
    """
    while at < stop:
        key, at = _varint(data, at, stop)
        kind = key & 7
        if kind == 2:
            length, at = _varint(data, at, stop)
        elif kind == 0:
            value, at = _varint(data, at, stop)
            yield key >> 3, 0, value, at
            continue
        elif kind == 5:
            length = 4
        elif kind == 1:
            length = 8
        else:
            raise NoEvent("wire type %d" % kind)
        end = at + length
        if end > stop:
            raise NoEvent("a field that is longer than its message")
        yield key >> 3, kind, at, end
        at = end


def _varint(data: bytes, at: int, stop: int) -> Tuple[int, int]:
    """(value, where it ends)"""
    value = shift = 0
    while at < stop and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
        shift += 7
    raise NoEvent("a number without an end")
