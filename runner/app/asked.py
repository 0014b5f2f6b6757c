"""What a submit asks for, as far as it can be known without its host; `--dry-run` ends there."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from runner import inventory
from runner.app.context import Context
from runner.errors import SpecError
from runner.fields import said
from runner.grammar.secret import files_inside, read_secrets
from runner.grammar.values import NOTHING_SENT
from runner.manifest import Snapshot
from runner.model import Host
from runner.show.units import plural, size
from runner.spec import RunPlan, SubmitRequest, resolve


@dataclass(frozen=True)
class Asked:
    """What was asked for, found to be possible here."""

    host: Host
    plan: RunPlan
    secrets: Mapping[str, str] = field(repr=False)


def resolve_request(
    ctx: Context, request: SubmitRequest, *, many: bool = False, alone: bool = False
) -> Asked:
    """What the words mean. Raises SpecError and NotFound before anything is touched.

    many: a very large sweep is meant. alone: a sweep is refused.
    """
    host = ctx.host(request.host)
    job = inventory.read_job(ctx.project, request.job) if request.job else None
    plan = resolve(request, job, host, many=many)
    if alone and plan.members:
        raise SpecError(f"--tail follows one run; this is a sweep of {plan.count}", NOTHING_SENT)
    for image in request.images:
        inventory.find_image(ctx.images, image)
    return Asked(host, plan, read_secrets(request.secrets))


def check_snapshot(ctx: Context, request: SubmitRequest, plan: RunPlan, snapshot: Snapshot) -> None:
    """Refuse a snapshot that cannot be right for what was asked. Raises SpecError."""
    _check_entry(ctx, plan, snapshot)
    _check_secret_files(ctx, request, snapshot)


def is_after_elsewhere(run: str, where: str, host: Host) -> SpecError:
    """That a run cannot wait for one of another host."""
    text = f"after: {run} is on {where}; a run on {host.name} cannot wait for it"
    return SpecError(text, NOTHING_SENT)


def code_text(snapshot: Snapshot, sent: str) -> str:
    """`214 files, 3 changed, 18 kB sent; main@4f2c91a + 2 edited files; left out: 3 by .gitignore`.

    sent: what is said of what travels.
    """
    parts = [f"{plural(int(snapshot.code.get('files', 0)), 'file')}, {sent}"]
    commit = snapshot.code.get("commit")
    if commit:
        edited = int(snapshot.code.get("edited") or 0)
        text = f"{snapshot.code.get('branch')}@{str(commit)[:7]}"
        parts.append(text + (f" + {plural(edited, 'edited file')}" if edited else ""))
    if snapshot.skipped:
        parts.append("left out: " + ", ".join(snapshot.skipped))
    return "; ".join(parts)


def sent_text(changed: int | None, sent_bytes: int) -> str:
    """`3 changed, 18 kB sent`, `unchanged`, or without what was there before: `1.9 MB sent`."""
    if changed == 0 and not sent_bytes:
        return "unchanged"
    return (f"{changed} changed, " if changed else "") + f"{size(sent_bytes)} sent"


def _check_entry(ctx: Context, plan: RunPlan, snapshot: Snapshot) -> None:
    """A job's own file must travel: a rule that leaves it out would be found only there."""
    if plan.job is None or len(plan.argv) < 2 or plan.argv[0] != "python":
        return
    entry = posixpath.normpath(plan.argv[1])
    inside = not entry.startswith(("/", "../", "-"))
    ours = entry.startswith("agents/") or (inside and (ctx.project.root / entry).is_file())
    if ours and all(row[0] != entry for row in snapshot.rows):
        raise SpecError(f"{entry} is left out by an ignore rule; nothing was sent")


def _check_secret_files(ctx: Context, request: SubmitRequest, snapshot: Snapshot) -> None:
    """A file that holds a secret does not travel with the code."""
    inside = files_inside(request.secrets, ctx.project.root)
    for row in snapshot.rows if inside else ():
        if row[0] in inside:
            raise SpecError(
                f"secret.{inside[row[0]]}: {said(row[0])} would travel with the code",
                "keep it outside the project, or name it in .runnerignore",
                NOTHING_SENT,
            )
