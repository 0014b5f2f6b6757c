"""Submit: exactly one run from the words typed, whatever becomes of this process or of the link.

Before a byte is sent an intent is written down: id, words, drawn values, snapshot. It is closed
once the id was printed. The next submit with the same words finds an open one whose process is
gone: with the same snapshot it is taken up, with its id; with changed code its host is asked, what
was accepted is kept, and a new run is made.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner import __version__, inventory, sync, tree
from runner.app.context import Context, read_status, seen
from runner.endpoint import LinkLost, Worker
from runner.errors import Conflict, OutcomeUnknown, RunnerError, SpecError
from runner.interrupts import Held
from runner.manifest import Snapshot
from runner.model import Host
from runner.spec import RunPlan, SubmitRequest, resolve
from runner.store import Intent

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Digits and letters without look-alikes."""
ID_LENGTH = 5
RETRY_WAITS_S = (1.0, 2.0, 4.0)
SEED_BITS = 31


def submit(
    ctx: Context,
    request: SubmitRequest,
    announce: Callable[[str], None],
    rng: random.Random | None = None,
) -> list[str]:
    """Make the run that was asked for; `announce` prints its id before the intent is closed.

    Raises SpecError and NotFound before anything is touched; HostError when nothing was done there;
    OutcomeUnknown when the link broke for good after the request went out.
    """
    draw = rng or random.SystemRandom()
    host = ctx.host(request.host)
    job = inventory.read_job(ctx.project, request.job) if request.job else None
    plan = resolve(request, job, host)
    if plan.image is not None:
        inventory.find_image(ctx.images, plan.image)
    # the connection is made while the folder is read; nothing is asked over it yet
    with ctx.connect(host) as worker:
        snapshot = tree.read_snapshot(ctx.project.root)
        _check_entry(plan, snapshot)
        words = intent_words(request)
        intent = _take_up(ctx, host, words, snapshot)
        if intent is None:
            spec = make_spec(ctx, host, plan, snapshot, draw)
            spec["given"] = sorted({*request.params, *_drawn(plan.params)})
            body = {"id": spec["id"], "words": words, "at": time.time(), "host": host.name}
            intent = ctx.store.write_intent({**body, "spec": spec})
        with Held() as held:
            try:
                accepted = _hand_over(ctx, worker, snapshot, intent, held)
            except BaseException as error:
                _leave(intent, error, held)
                raise
            _tell(ctx, host, snapshot, accepted)
            announce(intent.id)
            intent.close()
    return [intent.id]


def _leave(intent: Intent, error: BaseException, held: Held) -> None:
    """Close the intent when surely no run was made, else leave it for the same words again."""
    unsure = isinstance(error, (OutcomeUnknown, LinkLost)) or not isinstance(error, RunnerError)
    if unsure and held.began:
        intent.leave_open()
    else:
        intent.close()


def make_spec(
    ctx: Context, host: Host, plan: RunPlan, snapshot: Snapshot, draw: random.Random
) -> dict[str, Any]:
    """What the worker is told of a run; drawn values (its id, its seed) are settled here."""
    params = dict(plan.params)
    for name in _drawn(params):
        params[name] = draw.getrandbits(SEED_BITS)
    spec: dict[str, Any] = {
        "format": 1,
        "id": draw_id(plan.job or "cmd", draw),
        "project": {"id": ctx.project.id, "name": ctx.project.name},
        "job": plan.job,
        "name": plan.name,
        "tags": list(plan.tags),
        "argv": list(plan.argv),
        "params": params,
        "nproc": plan.nproc,
        "gpus": plan.gpus,
        "launcher": plan.launcher,
        "grace_s": plan.grace_s,
        "metric": plan.metric,
        "env": {**host.env, **plan.env},
        "snapshot": snapshot.digest,
        "code": dict(snapshot.code),
        "image": plan.image,
        "client": __version__,
    }
    if host.runtime == "local":
        spec["python"] = _this_python()
    return spec


def _drawn(params: Mapping[str, Any]) -> list[str]:
    """Parameters whose value is drawn at submit and written in the record."""
    return ["seed"] if params.get("seed") == -1 else []


def draw_id(job: str, draw: random.Random) -> str:
    """`JOB-` and five characters without look-alikes."""
    return job + "-" + "".join(draw.choice(ALPHABET) for _ in range(ID_LENGTH))


def intent_words(request: SubmitRequest) -> list[str]:
    """What makes two submits the same: the words as typed; values of env. only by their digest."""
    words = []
    for word in request.words:
        key, sign, value = word.partition("=")
        if key.startswith("env."):
            digest = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
            word = f"{key}{sign}sha256:{digest}"
        words.append(word)
    return [f"host={request.host}", *words, *(["--", *request.command] if request.command else [])]


def _take_up(ctx: Context, host: Host, words: Sequence[str], snapshot: Snapshot) -> Intent | None:
    """The open intent to go on with; those it cannot be are settled on the way."""
    with ctx.store.intents_locked():
        found = ctx.store.open_intents(list(words))
    for intent in found:
        if not _is_readable(intent):
            intent.leave_open()  # damaged; what it began cannot be known
    found = [intent for intent in found if _is_readable(intent)]
    chosen = None
    for intent in found:
        if chosen is None and intent.body["spec"]["snapshot"] == snapshot.digest:
            chosen = intent
            ctx.report.note(f"take up  {intent.id}, which an earlier submit left open")
            continue
        try:
            accepted = _ask(ctx, host, intent.id)
        except BaseException:
            for each in found[found.index(intent) :]:
                each.leave_open()
            if chosen is not None:
                chosen.leave_open()
            raise
        if accepted is not None:
            ctx.report.note(f"earlier  {intent.id} was accepted with the code of then; kept")
        intent.close()
    return chosen


def _is_readable(intent: Intent) -> bool:
    spec = intent.body.get("spec")
    return isinstance(spec, dict) and spec.get("id") == intent.id and "snapshot" in spec


def _ask(ctx: Context, host: Host, run: str) -> Any:
    with ctx.connect(host) as worker:
        _, rows = worker.call("runs", ids=[run])
        return seen(ctx, worker, rows[0]) if rows else None


def _hand_over(
    ctx: Context, worker: Worker, snapshot: Snapshot, intent: Intent, held: Held
) -> sync.Accepted:
    """Send until the worker has answered; a lost link is made again, with the same id."""
    host = worker.host
    for number, wait_s in enumerate((*RETRY_WAITS_S, None)):
        try:
            if number == 0:
                return _send(ctx, worker, snapshot, intent, held)
            with ctx.connect(host) as again:
                return _send(ctx, again, snapshot, intent, held)
        except LinkLost as error:
            if wait_s is None and not held.began:
                raise
            if wait_s is None:
                raise OutcomeUnknown(
                    f"{host.name}: the link broke; {intent.id} may or may not have been accepted",
                    "the same words again find out, and make no second run",
                ) from error
            ctx.report.step(f"{error}; trying again")
            time.sleep(wait_s)
        except SpecError as error:
            if getattr(error, "code", None) != "no-gpu":
                raise
            raise SpecError(
                error.message,
                "gpus=0 runs without; nothing was sent",
                f"runner version host={host.name}",
            ) from error
        except Conflict as error:
            if getattr(error, "code", None) != "conflict":
                raise
            raise Conflict(
                f"{host.name}: there is another run {intent.id}", "type the same words again"
            ) from error
    raise AssertionError("unreachable")


def _send(
    ctx: Context, worker: Worker, snapshot: Snapshot, intent: Intent, held: Held
) -> sync.Accepted:
    _check_image(worker, intent.body["spec"].get("image"))
    last = ctx.store.last_snapshot(worker.host.name)
    holds = last is not None and last[1] == snapshot.digest
    ctx.report.step("sending the code")
    accepted = sync.submit(
        worker,
        ctx.project.root,
        snapshot,
        intent.body["spec"],
        holds_snapshot=holds,
        on_sent=lambda done, whole: ctx.report.step(f"code  {done / 1e6:.1f}/{whole / 1e6:.1f} MB"),
        on_handed=held.begin,
    )
    ctx.store.put_snapshot(worker.host.name, str(worker.hello.get("worker")), snapshot.digest)
    ctx.store.put(worker.host.name, accepted.run, time.time())
    return accepted


def _check_image(worker: Worker, wanted: str | None) -> None:
    """A run that names an image does not start in another one."""
    there = worker.hello.get("image")
    if wanted is not None and there != wanted:
        name = worker.host.name
        raise SpecError(
            f"{name}: its worker has image {there}, not {wanted}",
            f"runner provision host={name} image={wanted}",
            "nothing was sent",
        )


def _tell(ctx: Context, host: Host, snapshot: Snapshot, accepted: sync.Accepted) -> None:
    ctx.report.done()
    ctx.report.note(f"code   {_code_text(snapshot, accepted)}")
    status = read_status(dict(accepted.run), host.name)
    gpus = f", {accepted.gpus} GPU{'s' if accepted.gpus > 1 else ''}" if accepted.gpus else ""
    place = ""
    if status.state == "queued" and status.reason and (status.position or 0) > 1:
        place = f", {status.reason}"
    ctx.report.note(f"queue  {host.name}{gpus}{place}")


def _code_text(snapshot: Snapshot, accepted: sync.Accepted) -> str:
    count = int(snapshot.code.get("files", 0))
    parts = [f"{count} file{'' if count == 1 else 's'}"]
    if accepted.sent_files:
        parts[0] += f", {accepted.sent_files} new, {_size(accepted.sent_bytes)} sent"
    else:
        parts[0] += ", unchanged"
    commit = snapshot.code.get("commit")
    if commit:
        edited = int(snapshot.code.get("edited") or 0)
        text = f"{snapshot.code.get('branch')}@{str(commit)[:7]}"
        parts.append(
            text + (f" + {edited} edited file{'' if edited == 1 else 's'}" if edited else "")
        )
    if snapshot.skipped:
        parts.append("left out: " + ", ".join(snapshot.skipped))
    return "; ".join(parts)


def _size(count: int) -> str:
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def _check_entry(plan: RunPlan, snapshot: Snapshot) -> None:
    """A job's own file must travel: a rule that leaves it out would be found only there."""
    if plan.job is None or len(plan.argv) < 2 or plan.argv[0] != "python":
        return
    entry = plan.argv[1]
    if entry.startswith("agents/") and all(row[0] != entry for row in snapshot.rows):
        raise SpecError(f"{entry} is left out by an ignore rule; nothing was sent")


def _this_python() -> str:
    import sys

    return sys.executable
