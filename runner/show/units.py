"""How times, sizes and numbers are written for people, and times for programs (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone

DAY_S = 86_400


def duration(seconds: float | None) -> str:
    """`42s`, `17m`, `6h12m`, `3d04h`; `-` when unknown, never below 0."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < DAY_S:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // DAY_S}d{whole % DAY_S // 3600:02d}h"


def took(seconds: float) -> str:
    """A short wait with a tenth of a second: `6.2s`; from a minute on as `duration`."""
    return f"{max(0.0, seconds):.1f}s" if seconds < 60 else duration(seconds)


def moment(at: float | None, now: float) -> str:
    """When it was, in local time: `02:30` today, `Tue 02:30` this week, then `2026-11-03`."""
    if at is None or not _has_date(at):
        return "-"
    then, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)
    if then.date() == today.date():
        return then.strftime("%H:%M")
    if abs(now - at) < 6 * DAY_S:
        return then.strftime("%a %H:%M")
    return then.strftime("%Y-%m-%d")


def ago(at: float | None, now: float) -> str:
    """How long ago: `17m ago`; from a day on, when."""
    if at is None:
        return "-"
    return f"{duration(now - at)} ago" if now - at < DAY_S else f"on {moment(at, now)}"


def rfc3339(at: float | None) -> str | None:
    """A time for programs: UTC with milliseconds."""
    if at is None or not _has_date(at):
        return None
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")[:-6] + "Z"


def _has_date(at: float) -> bool:
    return math.isfinite(at) and 0 <= at < 253_402_300_800  # the year 10000


def steps(count: float | None) -> str:
    """`812`, `31k`, `4.1M`, `12M`."""
    if count is None:
        return "-"
    if count < 1000:
        return str(int(count))
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            value = count / size
            short = f"{math.floor(value * 10) / 10:.1f}" if value < 10 else f"{math.floor(value)}"
            return short.removesuffix(".0") + letter
    return str(int(count))


def size(count: float | None) -> str:
    """Bytes on disk or on the way, in powers of ten: `812 B`, `18 kB`, `2.1 GB`."""
    if count is None:
        return "-"
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    short = f"{value:.1f}" if value < 9.95 and unit in ("GB", "TB", "MB") else f"{value:.0f}"
    return f"{short.removesuffix('.0')} {unit}"


def memory(mebibytes: float | None) -> str:
    """Memory of a machine or GPU: `312 MiB`, `22.5 GiB`."""
    if mebibytes is None:
        return "-"
    return f"{mebibytes:.0f} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"


def number(value: float | None) -> str:
    """A metric: three or four digits that matter, `-` when there is none."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
        return f"{value:.{digits}f}"
    return f"{value:.2e}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """`1 file`, `14 files`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def some(names: Sequence[str], most: int = 3) -> str:
    """The first few, and how many there are besides: `a, b, c and 2 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
