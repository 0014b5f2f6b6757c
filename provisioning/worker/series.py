"""Points of one metric as they come, thinned so that they never take much room. Pure.

While there are few all are kept, then every second one, every fourth …; the first and the newest
always. Numbers lie in arrays of 8 bytes each.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from typing import Any, Dict, Iterator, List, Optional, Tuple

import plain

Point = Tuple[int, float, float]
"""(step, wall clock in seconds or 0.0 where it is not known, value)"""
_POINT_BYTES = 24
_MOST_PACKED = 1 << 20
"""Points that are taken from a file of ours, whatever it says."""


class Series:
    """One metric of one file."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._walls = array("d")
        self._values = array("d")
        self._count = 0
        self._stride = 1
        self._newest: Optional[Point] = None

    def add(self, point: Point, most: int) -> None:
        """Take up the next point; `most` or up to twice as many are kept."""
        if self._count % self._stride == 0:
            while len(self._steps) >= 2 * max(1, most):
                self._halve()
            if self._count % self._stride == 0:
                self._steps.append(point[0])
                self._walls.append(point[1])
                self._values.append(point[2])
        self._count += 1
        self._newest = point

    def _halve(self) -> None:
        self._stride *= 2
        self._steps, self._walls = self._steps[::2], self._walls[::2]
        self._values = self._values[::2]

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Point]:
        """The points that are kept, in the order in which they came."""
        yield from zip(self._steps, self._walls, self._values)
        if self._newest is not None and (self._count - 1) % self._stride:
            yield self._newest

    def newest_first(self) -> Iterator[Point]:
        """The same the other way round."""
        if self._newest is not None and (self._count - 1) % self._stride:
            yield self._newest
        yield from zip(reversed(self._steps), reversed(self._walls), reversed(self._values))

    def pack(self) -> Dict[str, Any]:
        """As JSON holds it."""
        data = b"".join(part.tobytes() for part in (self._steps, self._walls, self._values))
        return {
            "count": self._count,
            "stride": self._stride,
            "newest": self._newest,
            "data": base64.b64encode(zlib.compress(data, 1)).decode("ascii"),
        }


def unpack(body: Any) -> Series:
    """A series as it was packed. Raises ValueError for what none was packed as."""
    made = Series()
    try:
        count, stride, newest = body["count"], body["stride"], body["newest"]
        packed = base64.b64decode(body["data"], validate=True)
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, _MOST_PACKED * _POINT_BYTES)
    except (TypeError, KeyError, zlib.error) as error:
        raise ValueError("no series: %s" % error) from error
    third, odd = divmod(len(data), 3)
    whole = isinstance(count, int) and isinstance(stride, int) and 0 < stride <= 1 << 62
    if odd or third % 8 or not unpacker.eof or not whole or count < 0:
        raise ValueError("no series")
    if newest is not None:
        if not isinstance(newest, list) or [plain.is_number(each) for each in newest] != [True] * 3:
            raise ValueError("no series")
        made._newest = int(newest[0]), float(newest[1]), float(newest[2])
    made._count, made._stride = count, stride
    made._steps.frombytes(data[:third])
    made._walls.frombytes(data[third : 2 * third])
    made._values.frombytes(data[2 * third :])
    if not all(map(math.isfinite, made._walls)) or not all(map(math.isfinite, made._values)):
        raise ValueError("no series")
    return made


def evenly(points: List[Any], most: int) -> List[Any]:
    """So many of them if there are more, the first and the last among them. most: at least 2."""
    if len(points) <= most:
        return points
    last = len(points) - 1
    return [points[number * last // (most - 1)] for number in range(most)]
