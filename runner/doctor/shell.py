"""The account's login shell and what its start-up files print (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from runner.doctor.answers import Seen
from runner.doctor.findings import Check, note, ok

_MOST_SHOWN = 60


def judge(seen: Seen) -> Iterator[Check]:
    """Noise stops no run of ours, but scp, rsync and sftp."""
    shell = next(iter(seen.lines("shell")), "")
    if shell:
        yield ok("login-shell", "shell", f"shell ({shell.rpartition('/')[2]})")
    said = [line.strip() for line in seen.lines("noise") if line.strip()]
    if said:
        file = next(iter(seen.lines("prints")), None)
        where = f"~/{file}" if file and not file.startswith("/") else file
        yield note(
            "shell-noise", "shell",
            f"{where or 'a start-up file of its shell'} prints at each login:"
            f" {said[0][:_MOST_SHOWN]}",
            "the runner passes over it, scp and rsync do not; put what prints behind:",
            "  case $- in *i*) ;; *) return ;; esac",
        )  # fmt: skip
    elif "noise" in seen.parts:
        yield ok("shell-noise", "shell", "start-up files")
