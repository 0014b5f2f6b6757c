"""What is wrong with a file of the project, in words."""

from __future__ import annotations

from runner.errors import SpecError

RUNNERIGNORE = ".runnerignore"
LEAVE_OUT = f"leave it out by a line in {RUNNERIGNORE}; nothing was sent"


def shown(path: str) -> str:
    """A name on one line, whatever bytes it has."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def unreadable(path: str, error: OSError) -> SpecError:
    """The refusal of what is there and cannot be read, or was there a moment ago."""
    if isinstance(error, FileNotFoundError):
        return SpecError(f"{shown(path or '.')} vanished meanwhile; type the same words again")
    return SpecError(f"{shown(path or '.')} cannot be read: {error.strerror}", LEAVE_OUT)


def size_text(count: int) -> str:
    """A size as people read it, in powers of ten."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            value = count / unit
            return f"{value:.1f} {name}" if value < 10 else f"{value:.0f} {name}"
    return f"{count} byte{'' if count == 1 else 's'}"
