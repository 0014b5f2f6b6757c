"""Submit: exactly the runs that the words mean, whatever becomes of this process or of the link.

Before a byte is sent an intent is written down: id, words, drawn values, snapshot, of a sweep also
how its runs differ. It is closed once the ids were printed. The next submit with the same words
finds an open one whose process is gone: with the same snapshot it is taken up, with its ids, and
what is missing is made; with changed code its host is asked, what was accepted is kept, and a new
run or sweep is made. Values of secrets are in no intent: they are read again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner import inventory, states
from runner.app import runs
from runner.app.context import Context, check_image, queue_text, read_status, seen
from runner.code import tree
from runner.endpoint import LinkLost, Worker
from runner.errors import Conflict, OutcomeUnknown, RunnerError, SpecError
from runner.fields import said
from runner.grammar.secret import files_inside, read_secrets
from runner.grammar.values import NOTHING_SENT
from runner.intents import intent_words, is_readable, make_intent, specs_of
from runner.interrupts import Held
from runner.manifest import Snapshot
from runner.model import Host
from runner.spec import RunPlan, SubmitRequest, resolve
from runner.store import Intent
from runner.transfer import send
from runner.wire import RunStatus

RETRY_WAITS_S = (1.0, 2.0, 4.0)


@dataclass
class _Order:
    """What is to be handed over, and what of it the worker has taken so far."""

    id: str
    """The run's, or the sweep's."""
    specs: list[dict[str, Any]]
    secrets: Mapping[str, str] = field(repr=False)
    accepted: dict[str, send.Accepted] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        """Every run of it, in order."""
        return [str(spec["id"]) for spec in self.specs]

    @property
    def missing(self) -> list[dict[str, Any]]:
        """What the worker has not answered for."""
        return [spec for spec in self.specs if spec["id"] not in self.accepted]


def submit(
    ctx: Context,
    request: SubmitRequest,
    announce: Callable[[list[str]], None],
    rng: random.Random | None = None,
    *,
    many: bool = False,
    alone: bool = False,
) -> list[str]:
    """Make the runs that were asked for; `announce` prints their ids before the intent is closed.

    many: a very large sweep is meant. alone: a sweep is refused. Raises SpecError and NotFound
    before anything is touched; HostError when nothing was done there; OutcomeUnknown when the link
    broke for good after the request went out.
    """
    draw = rng or random.SystemRandom()
    host = ctx.host(request.host)
    job = inventory.read_job(ctx.project, request.job) if request.job else None
    plan = resolve(request, job, host, many=many)
    if alone and plan.members:
        raise SpecError(f"--tail follows one run; this is a sweep of {plan.count}", NOTHING_SENT)
    for image in request.images:
        inventory.find_image(ctx.images, image)
    secrets = read_secrets(request.secrets)
    after = _find_after(ctx, request, host)
    # the connection is made while the folder is read; nothing is asked over it yet
    with ctx.connect(host) as worker:
        snapshot = tree.read_snapshot(ctx.project.root)
        _check_entry(plan, snapshot)
        _check_secret_files(ctx, request, snapshot)
        words = intent_words(request)
        intent = _take_up(ctx, host, words, snapshot)
        if intent is None:
            body = make_intent(
                ctx.project, host, plan, snapshot, draw, given=request.params, after=after
            )
            intent = ctx.store.write_intent({**body, "words": words, "at": time.time()})
        order = _Order(intent.id, specs_of(intent.body), secrets)
        with Held() as held:
            try:
                _hand_over(ctx, worker, snapshot, order, held)
            except BaseException as error:
                _leave(intent, order, error, held)
                raise
            _tell(ctx, worker, snapshot, order)
            announce(order.ids)
            intent.close()
    return order.ids


def _find_after(ctx: Context, request: SubmitRequest, host: Host) -> list[str]:
    """The runs that must be done first; they are on the same host. Raises SpecError, NotFound."""
    found = runs.find_all(ctx, request.after)
    for ref in found:
        if ref.host != host.name:
            raise SpecError(
                f"after: {ref.id} is on {ref.host}; a run on {host.name} cannot wait for it",
                NOTHING_SENT,
            )
    return [ref.id for ref in found]


def _leave(intent: Intent, order: _Order, error: BaseException, held: Held) -> None:
    """Close the intent when surely no run was made, else leave it for the same words again."""
    unsure = isinstance(error, (OutcomeUnknown, LinkLost)) or not isinstance(error, RunnerError)
    if (unsure and held.began) or (order.accepted and order.missing):
        intent.leave_open()
    else:
        intent.close()


def _take_up(ctx: Context, host: Host, words: Sequence[str], snapshot: Snapshot) -> Intent | None:
    """The open intent to go on with; those it cannot be are settled on the way."""
    with ctx.store.intents_locked():
        found = ctx.store.open_intents(list(words))
    for intent in found:
        if not is_readable(intent.body):
            intent.leave_open()  # damaged; what it began cannot be known
    found = [intent for intent in found if is_readable(intent.body)]
    chosen = None
    for intent in found:
        if chosen is None and intent.body["spec"]["snapshot"] == snapshot.digest:
            chosen = intent
            ctx.report.note(f"take up  {intent.id}, which an earlier submit left open")
            continue
        try:
            accepted = _ask(ctx, host, [str(spec["id"]) for spec in specs_of(intent.body)])
        except BaseException:
            for each in found[found.index(intent) :]:
                each.leave_open()
            if chosen is not None:
                chosen.leave_open()
            raise
        if accepted:
            of_sweep = f" ({accepted} of its runs)" if intent.body.get("members") else ""
            ctx.report.note(
                f"earlier  {intent.id}{of_sweep} was accepted with the code of then; kept"
            )
        intent.close()
    return chosen


def _ask(ctx: Context, host: Host, ids: list[str]) -> int:
    """How many of these runs the host has."""
    with ctx.connect(host) as worker:
        _, rows = worker.call("runs", ids=ids)
        return len([seen(ctx, worker, row) for row in rows])


def _hand_over(ctx: Context, worker: Worker, snapshot: Snapshot, order: _Order, held: Held) -> None:
    """Send until the worker has answered for all; a lost link is made again, with the same ids."""
    host = worker.host
    for number, wait_s in enumerate((*RETRY_WAITS_S, None)):
        try:
            if number == 0:
                _send(ctx, worker, snapshot, order, held)
                return
            with ctx.connect(host) as again:
                _send(ctx, again, snapshot, order, held)
                return
        except LinkLost as error:
            if wait_s is None and not held.began:
                raise
            if wait_s is None:
                raise OutcomeUnknown(
                    f"{host.name}: the link broke; {order.id} may or may not have been accepted",
                    "the same words again find out, and make no second run",
                ) from error
            ctx.report.step(f"{error}; trying again")
            time.sleep(wait_s)
        except RunnerError as error:
            told = _explained(error, host, order)
            if told is error:
                raise
            raise told from error
    raise AssertionError("unreachable")


def _explained(error: RunnerError, host: Host, order: _Order) -> RunnerError:
    """A refusal with what it means here: what was made, and what to do."""
    code = getattr(error, "code", None)
    if order.accepted:
        done = f"{len(order.accepted)} of {len(order.specs)} runs of {order.id} were made"
        advice = (*error.advice, f"{done}; the same words again make the rest")
        return type(error)(error.message, *advice)
    if code == "no-gpu":
        advice = ("gpus=0 runs without; nothing was sent", f"runner version host={host.name}")
        return SpecError(error.message, *advice)
    if code == "conflict":
        return Conflict(
            f"{host.name}: there is another run {order.ids[0]}", "type the same words again"
        )
    return error


def _send(ctx: Context, worker: Worker, snapshot: Snapshot, order: _Order, held: Held) -> None:
    for image in {spec.get("image") for spec in order.specs}:
        check_image(worker, image)
    last = ctx.store.last_snapshot(worker.host.name)
    holds = last is not None and last[1] == snapshot.digest
    ctx.report.step("sending the code")
    first, *others = order.missing
    accepted = send.submit(
        worker,
        ctx.project.root,
        snapshot,
        first,
        secrets=order.secrets,
        holds_snapshot=holds,
        on_sent=lambda done, whole: ctx.report.step(f"code  {done / 1e6:.1f}/{whole / 1e6:.1f} MB"),
        on_handed=held.begin,
    )
    order.accepted[str(first["id"])] = accepted
    ctx.store.put_snapshot(worker.host.name, str(worker.hello.get("worker")), snapshot.digest)
    for accepted in send.submit_more(worker, others, secrets=order.secrets):
        order.accepted[str(accepted.run["id"])] = accepted
        ctx.report.step(f"{order.id}  {len(order.accepted)} of {len(order.specs)} runs")
    if len(order.specs) == 1:
        ctx.store.put(worker.host.name, accepted.run, time.time())


def _tell(ctx: Context, worker: Worker, snapshot: Snapshot, order: _Order) -> None:
    ctx.report.done()
    host = worker.host.name
    first = order.accepted[order.ids[0]]
    ctx.report.note(f"code   {_code_text(snapshot, first)}")
    if len(order.specs) > 1:
        ctx.report.note(f"sweep  {order.id}: {_sweep_text(_look_again(ctx, worker, order))}")
        return
    status = read_status(dict(first.run), host)
    ctx.report.note(f"queue  {queue_text(status, host, first.gpus)}")


def _look_again(ctx: Context, worker: Worker, order: _Order) -> list[RunStatus]:
    """The runs of a sweep now that all are there; as they were answered where that fails."""
    try:
        _, rows = worker.call("runs", ids=order.ids)
        return [seen(ctx, worker, row).status for row in rows]
    except RunnerError:
        # all were accepted: what cannot be told now does not undo that
        found = [accepted.run for accepted in order.accepted.values()]
        for run in found:
            ctx.store.put(worker.host.name, run, time.time())
        return [read_status(dict(run), worker.host.name) for run in found]


def _sweep_text(found: Sequence[RunStatus]) -> str:
    """`5 runs, 3 wait for a GPU`, as far as the worker has looked at them."""
    waiting = [run for run in found if run.state == states.QUEUED and run.waits]
    parts = [f"{len(found)} runs"]
    if waiting:
        kinds = {str((run.waits or {}).get("kind")) for run in waiting}
        what = {"after": " for others", "drained": " until undrain", "pause": ""}
        known = [text for kind, text in what.items() if kinds == {kind}]
        lines = {"gpus": " for a GPU", "slot": " for a slot"}
        known += [text for kind, text in lines.items() if kind in kinds]
        what_for = known[0] if known else ""
        parts.append(f"{len(waiting)} wait{'s' if len(waiting) == 1 else ''}{what_for}")
    return ", ".join(parts)


def _code_text(snapshot: Snapshot, accepted: send.Accepted) -> str:
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
