"""What an attempt left to judge its end by: exit codes, its own words, the last lines of its logs.

Only what this attempt wrote counts: logs and progress files go on over attempts, so `Marks` holds
where they stood at its beginning.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Any, Dict, List, Optional, Tuple

import plain
import progress
import records
from paths import RunPaths

LOG_TAIL_BYTES = 64 * 1024
FRONT_TEXT_BYTES = 2000
FEW_FILES = 8
"""Fewer inodes are none: what a program had open for a moment is back once it has ended."""
TEXT_BYTES = 500
TRACEBACK_BYTES = 2000
"""Of a record, where one character may take twelve bytes: it must fit into the spare."""

_OOM_COUNTERS = (
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
    "/proc/vmstat",
)
_CUDA_OOM = ("torch.OutOfMemoryError", "CUDA out of memory")
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(:|\Z)")


class Marks:
    """Where an attempt's logs and progress files began."""

    def __init__(self, paths: RunPaths, nproc: int) -> None:
        self.paths = paths
        self.nproc = nproc
        self.progress = [plain.size(paths.progress(n)) or 0 for n in range(nproc)]
        self.logs = [plain.size(paths.log(n)) or 0 for n in range(nproc)]

    def fault(self) -> Optional[Dict[str, Any]]:
        """What the job itself named as its fault: {"fault", "step", "text"}."""
        for number in range(self.nproc):
            fault = progress.last_fault(self.paths.progress(number), self.progress[number])
            if fault is not None:
                return fault
        return None

    def step(self) -> Optional[int]:
        """The last step that this attempt said, by rank 0."""
        path = self.paths.progress(0)
        size = plain.size(path) or 0
        step = None
        for _, row in records.read_lines(path, max(self.progress[0], size - LOG_TAIL_BYTES)):
            if plain.is_number(row.get("step")):
                step = int(row["step"])
        return step

    def log_tail(self, rank: Optional[int]) -> str:
        """The last text of a rank's log."""
        if rank is None or not 0 <= rank < self.nproc:
            return ""
        try:
            with open(plain.open_file(self.paths.log(rank)), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                # a log that got shorter was begun anew
                begin = self.logs[rank] if self.logs[rank] <= size else 0
                file.seek(max(begin, size - LOG_TAIL_BYTES))
                return file.read(LOG_TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""


def cuda_oom(text: str) -> Optional[str]:
    """The last line that tells of a card without memory, or None."""
    for line in reversed(text.splitlines()):
        if any(word in line for word in _CUDA_OOM):
            return _shortened(line.strip(), TEXT_BYTES)
    return None


def last_traceback(text: str) -> Optional[str]:
    """The innermost file line and the exception of the last Python traceback, or None."""
    _, found, after = text.rpartition(_TRACEBACK)
    if not found:
        return None
    # a rank may print every line of it behind a prefix
    lead = text[: text.rindex(_TRACEBACK)].rpartition("\n")[2]
    where, said = "", ""
    for line in after.splitlines()[1:]:
        line = line[len(lead) :] if lead and line.startswith(lead) else line
        if line.startswith("  File "):
            where, said = line.strip(), ""
        elif where and not said and not line.startswith(" ") and _EXCEPTION.match(line):
            said = line.rstrip()
    if not said:
        return None
    return _shortened(where + "\n" + said, TRACEBACK_BYTES)


def first_end(
    report: Optional[Dict[str, Any]], front_code: Optional[int]
) -> Tuple[Optional[int], Optional[int]]:
    """(code, rank) of the first rank that failed, from what torchrun's front wrote down.

    (0, 0): none did. Code None: none could be started; rank None: the front itself was killed.
    """
    if report is None:
        killed = front_code is not None and front_code < 0
        return (front_code if killed else None), None
    failed = [
        (float(end.get("t", 0)), int(number), int(end["code"]))
        for number, end in report.items()
        if end.get("code")
    ]
    if not failed:
        return 0, 0
    _, number, code = min(failed)
    return code, number


def exit_facts(code: Optional[int], rank: Optional[int]) -> Dict[str, Any]:
    """{"code", "signal", "rank"} as the record has it."""
    if code is None:
        return {"code": None, "signal": None, "rank": rank}
    if code < 0:
        return {"code": None, "signal": -code, "rank": rank}
    return {"code": code, "signal": None, "rank": rank}


def absent_program(argv: List[str], code: str, path: Optional[str]) -> Optional[str]:
    """The program, when there is none of that name in the code's folder or on the path."""
    name = argv[0] if argv else ""
    if os.sep in name:
        found = os.path.exists(os.path.join(code, name))
    else:
        found = shutil.which(name, path=path) is not None
    return None if found else name


def front_text(log: str) -> str:
    """The last line that torchrun's front wrote."""
    try:
        with open(log, "rb") as file:
            text = file.read()[-FRONT_TEXT_BYTES:].decode("utf-8", "replace")
    except OSError:
        return ""
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def count_oom_kills() -> int:
    """Kernel kills for lack of memory: the container's own count, else the host's."""
    for path in _OOM_COUNTERS:
        try:
            with open(path) as file:
                for line in file:
                    words = line.split()
                    if len(words) == 2 and words[0] == "oom_kill":
                        return int(words[1])
        except OSError:
            continue
    return 0


def disk_free(path: str) -> int:
    """Bytes that this account may still write; none where there is no room for more files."""
    found = os.statvfs(path)
    if found.f_files and found.f_favail < FEW_FILES:
        return 0
    return found.f_bavail * found.f_frsize


def _shortened(text: str, most_bytes: int) -> str:
    """Its beginning, as far as it takes so many bytes in a record."""
    while len(json.dumps(text)) > most_bytes:
        text = text[: len(text) * 7 // 8]
    return text
