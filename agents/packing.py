"""State of environments as bytes: the same ones for an equal state, also after a resume.

Pickle writes an object it has met as a reference. What can change must stay shared where it is
shared (a generator that two layers draw from), but whether two equal texts are one object differs
between a training that was left alone and a resumed one, whose texts come from a file. So what
never changes, texts and numpy's types, is referred to by its value.
"""

from __future__ import annotations

import io
import pickle
import zlib
from typing import Any

import numpy as np


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=4)
        self._met: dict[Any, Any] = {}

    def persistent_id(self, value: Any) -> Any:
        """The one object that stands for all that are equal."""
        # not bytes: numpy makes an array upon them, and equal arrays would become one memory
        if type(value) is str or isinstance(value, np.dtype):
            return self._met.setdefault((type(value), value), value)
        return None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, value: Any) -> Any:
        """The value itself."""
        return value


def packed(value: Any) -> bytes:
    """The same bytes for an equal value, whichever objects its texts are."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return zlib.compress(buffer.getvalue(), 1)


def unpacked(data: bytes) -> Any:
    """What `packed` was given. data: only ever from a file this agent wrote."""
    return _Unpickler(io.BytesIO(zlib.decompress(data))).load()
