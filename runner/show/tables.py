"""What takes space and what becomes of it, as tables and documents (pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner import states
from runner.show.documents import FORMAT, contact
from runner.show.units import plural, size

if TYPE_CHECKING:
    from runner.app.reports import Drained, Garbage, HostSpace, Removal, RunSpace, SpaceListing

Rows = list[Sequence[Any]]


def run_space_rows(found: SpaceListing, *, everyone: bool = False) -> tuple[Rows, tuple[int, ...]]:
    """Runs by what they take, the largest first, and which columns hold numbers."""
    head = ["RUN", "HOST", "CODE", "CHECKPOINTS", "LOGS", "TOTAL", "NOTE"]
    if everyone:
        head.insert(1, "PROJECT")
    rows: Rows = [head]
    for run in sorted(found.runs, key=lambda run: (-run.total, run.run)):
        sizes = (run.code, run.checkpoints, run.logs, run.total)
        row = [run.run, run.host, *map(size, sizes), _note(run)]
        if everyone:
            row.insert(1, str(run.project.get("name", "-")))
        rows.append(row)
    first = head.index("CODE")
    return rows, tuple(range(first, first + 4))


def _note(run: RunSpace) -> str:
    if run.state != states.ENDED:
        return run.state
    if run.pulled:
        return "pulled"
    return "not pulled" if run.begun else "never started"


def host_space_rows(found: SpaceListing) -> tuple[Rows, tuple[int, ...]]:
    """Hosts that answered: what their runs share, and what is left of the disk."""
    names = ("contents", "bundles", "packages", "home")
    head = ("HOST", *map(str.upper, names), "LEFTOVERS", "OTHERS", "FREE")
    rows: Rows = [head]
    for host in found.hosts:
        if host.contact.state != "ok":
            continue
        shared = [size(host.shared.get(name)) for name in names]
        leftovers = host.shared.get("leftovers")
        rows.append(
            (
                host.contact.host,
                *shared,
                size(leftovers) if leftovers else "",
                f"{plural(host.others_runs, 'run')}, {size(host.others_bytes)}"
                if host.others_runs
                else "",
                f"{size(host.disk_free)} of {size(host.disk_total)}",
            )
        )
    return rows, (1, 2, 3, 4, 5)


def space_document(found: SpaceListing) -> dict[str, Any]:
    """What `du` prints."""
    return {
        "format": FORMAT,
        "runs": [_run_document(run) for run in found.runs],
        "hosts": [_host_document(host) for host in found.hosts],
    }


def _run_document(run: RunSpace) -> dict[str, Any]:
    body = dataclasses.asdict(run)
    sizes = {f"{name}_bytes": body.pop(name) for name in ("code", "checkpoints", "logs", "records")}
    return {"id": body.pop("run"), **body, **sizes, "total_bytes": run.total}


def _host_document(host: HostSpace) -> dict[str, Any]:
    return {
        "name": host.contact.host,
        "contact": contact(host.contact),
        "error": host.contact.error,
        "clock_skew_s": host.contact.clock_skew_s,
        "shared": {f"{name}_bytes": count for name, count in host.shared.items()},
        "others": {"runs": host.others_runs, "bytes": host.others_bytes},
        "disk": {
            "total_bytes": host.disk_total,
            "free_bytes": host.disk_free,
            "free_inodes": host.files_free,
        },
    }


def removal_rows(found: Sequence[Removal], *, dry: bool) -> Rows:
    """What became of each run that could be reached."""
    rows: Rows = []
    for row in found:
        if row.error is not None:
            continue
        word = "would go" if dry else "deleted"
        if row.gone:
            word = "was gone already"
        elif dry and not row.pulled:
            word = "not fully pulled: with --unpulled only"
        rows.append((row.run, row.host, "" if row.gone else size(row.bytes), word))
    return rows


def removal_document(found: Sequence[Removal], *, dry: bool) -> dict[str, Any]:
    """What `rm` prints."""
    return {"format": FORMAT, "dry_run": dry, "runs": [dataclasses.asdict(row) for row in found]}


def garbage_rows(found: Garbage) -> tuple[Rows, tuple[int, ...]]:
    """What was removed, or would be, and how much in all."""
    rows: Rows = [("WHAT", "SIZE", "WHY")]
    rows += [(what, size(count), why) for what, count, why in found.items]
    free = f"; {size(found.disk_free)} free" if found.disk_free is not None else ""
    rows.append(("in all", size(found.bytes), ("would go" if found.dry else "removed") + free))
    return rows, (1,)


def garbage_document(found: Garbage) -> dict[str, Any]:
    """What `gc` prints."""
    items = [{"what": what, "bytes": count, "why": why} for what, count, why in found.items]
    return {
        "format": FORMAT,
        "host": found.host,
        "dry_run": found.dry,
        "items": items,
        "bytes": found.bytes,
        "kept": list(found.kept),
        "free_bytes": found.disk_free,
    }


def drained_line(found: Drained) -> str:
    """`gpu1 drained: 2 runs go on, 3 wait`."""
    on = "1 run goes on" if found.live == 1 else f"{found.live} runs go on"
    waiting = "1 waits" if found.waiting == 1 else f"{found.waiting} wait"
    state = "drained" if found.drained else "takes runs up again"
    return f"{found.host} {state}: {on}, {waiting}"


def drained_document(found: Drained) -> dict[str, Any]:
    """What `drain` and `undrain` print."""
    return {"format": FORMAT, **dataclasses.asdict(found)}
