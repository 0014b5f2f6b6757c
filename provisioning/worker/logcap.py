"""A log that may not take more room than its limit: its middle is given back to the disk.

A hole is punched into the file behind its first tenth, which holds the first error, up to the
newest half of the limit. The writer is not disturbed and every offset stays what it was; a line in
front of the hole says how much is missing. Where the file system knows no holes nothing is cut.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Optional, Tuple

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK = 4096
_LARGEST_BLOCK = 1 << 20
_NO_HOLES = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class NoHoles(OSError):
    """This file system cannot punch holes."""


def cut(fd: int, limit_bytes: int) -> Optional[Tuple[int, int]]:
    """Bring a log that occupies more than the limit below it: (from, to) of what is gone, or None.

    fd: open to read and write, not to append: the line in front of the hole has its place. Raises
    NoHoles; the log is then as it was.
    """
    found = os.fstat(fd)
    if found.st_blocks * 512 <= limit_bytes:
        return None
    block = min(max(found.st_blksize, _BLOCK), _LARGEST_BLOCK)
    begin = -(-(limit_bytes // 10) // block) * block or block
    end = (found.st_size - limit_bytes // 2) // block * block
    if end - begin < block:
        return None  # a limit of less than a few blocks
    _punch(fd, begin, end - begin)
    start = begin
    for _ in range(2):  # its own length counts, too
        line = b"\nrunner: %d bytes cut here (log_limit)\n" % (end - start)
        start = max(0, begin - len(line))
    # it ends where the hole begins: what a reader finds between two ends is all text
    os.pwrite(fd, line, start)
    return start, end


def _punch(fd: int, start: int, length: int) -> None:
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(fd, _PUNCH_HOLE | _KEEP_SIZE, start, length) != 0:
        number = ctypes.get_errno()
        if number in _NO_HOLES:
            raise NoHoles(number, os.strerror(number))
        raise OSError(number, os.strerror(number))
