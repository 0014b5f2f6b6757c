"""Submit: exactly the runs that the words mean, whatever becomes of this process or of the link.

Before a byte is sent an intent is written down: id, words, drawn values, snapshot, of a sweep also
how its runs differ. It is closed once the ids were printed. The next submit with the same words
finds an open one whose process is gone: with the same snapshot it is taken up, with its ids, and
what is missing is made; with changed code its host is asked, what was accepted is kept, and a new
run or sweep is made. Values of secrets are in no intent: they are read again.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner import states
from runner.app import retrying, runs
from runner.app.asked import (
    check_snapshot,
    code_text,
    is_after_elsewhere,
    resolve_request,
    sent_text,
)
from runner.app.context import Context, queue_text, read_status, seen, worker_of
from runner.app.results import Report
from runner.app.wishes import Wishes, read_wishes, wishes_or_none
from runner.code import tree
from runner.endpoint import Worker
from runner.errors import Conflict, OutcomeUnknown, RunnerError, SpecError
from runner.intents import diff_digest, intent_words, is_readable, make_intent, specs_of
from runner.interrupts import Held
from runner.manifest import Snapshot
from runner.model import Host
from runner.show.units import duration, size
from runner.spec import SubmitRequest
from runner.store import Intent
from runner.transfer import send
from runner.transfer.offer import Contents, Offer, make_offer
from runner.wire import RunStatus, is_number

RETRY_WAITS_S = (1.0, 2.0, 4.0)
_AFTER_MAKING = ("os", "bug")
"""Refusals that may come when the run has been made."""
_BEFORE_LOOKING = ("no-worker", "wrong-state")
"""Those that come before the worker has looked whether it was made earlier."""


@dataclass
class _Order:
    """What is to be handed over, and what of it the worker has taken so far."""

    id: str
    """The run's, or the sweep's."""
    specs: list[dict[str, Any]]
    secrets: Mapping[str, str] = field(repr=False)
    wishes: Wishes = field(repr=False)
    taken_up: bool = False
    """An earlier process may have handed it over."""
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
    frozen: Snapshot | None = None,
    unattended: bool = False,
) -> list[str]:
    """Make the runs that were asked for; `announce` prints their ids before the intent is closed.

    many: a very large sweep is meant. alone: a sweep is refused. frozen: the project's folder as
    it was read before. unattended: no mistake of the operator's own
    notify.toml keeps the runs from being made. Raises SpecError and NotFound
    before anything is touched; HostError when nothing was done there; OutcomeUnknown when the link
    broke for good after the request went out.
    """
    draw = rng or random.SystemRandom()
    asked = resolve_request(ctx, request, many=many, alone=alone)
    host = asked.host
    after = _find_after(ctx, request, host)
    wishes = wishes_or_none(ctx.report) if unattended else read_wishes(ctx.report, [host])
    # the connection is made while the folder is read; nothing is asked over it yet
    with ctx.connect(host, image=image_of(request, host)) as worker:
        snapshot = frozen or read_code(ctx)
        check_snapshot(ctx, request, asked.plan, snapshot)
        words = intent_words(request)
        with contextlib.suppress(RunnerError):  # met again where something is sent
            ctx.greet(host.name, worker.hello.get("worker"))
        intent = _take_up(ctx, host, words, snapshot)
        taken_up = intent is not None
        if intent is None:
            body = make_intent(
                ctx.project, host, asked.plan, snapshot, draw, given=request.params, after=after
            )
            intent = ctx.store.write_intent({**body, "words": words, "at": time.time()})
        order = _Order(intent.id, specs_of(intent.body), asked.secrets, wishes, taken_up)
        with Held() as held:
            try:
                code = _Code(ctx, host, snapshot, order)
                _hand_over(ctx, worker, code, order, held, image_of(request, host))
            except BaseException as error:
                _leave(intent, order, error, held)
                raise
            _tell(ctx, worker, code, order)
            announce(order.ids)
            intent.close()
        code.remember(order)
    return order.ids


def read_code(ctx: Context) -> Snapshot:
    """The project's folder as it is now. Raises SpecError."""
    return tree.read_snapshot(ctx.project.root, limit_bytes=ctx.project.code_limit_bytes)


def image_of(request: SubmitRequest, host: Host) -> str | None:
    """The image whose worker is asked first: without a word that of the host."""
    if host.runtime == "local":
        return None
    return request.images[0] if request.images else host.image


class _Code:
    """The code that is handed over, and what its host is believed to have of it."""

    def __init__(self, ctx: Context, host: Host, snapshot: Snapshot, order: _Order) -> None:
        """Reads and packs what will be sent unasked, while the connection is made.

        Raises SpecError for a file that is not any more what it was.
        """
        self.snapshot = snapshot
        self.diff = diff_digest(snapshot)
        if order.specs[0].get("code", {}).get("diff") != self.diff:
            self.diff = None  # of an intent that was taken up: that one is not here any more
        self.contents = Contents.of(ctx.project.root, snapshot, self.diff)
        self._store = ctx.store
        self._host = host.name
        self._known = ctx.store.known_tree(host.name)
        self._offer = make_offer(snapshot, self.contents, self.diff, self._known)

    @property
    def changed(self) -> int | None:
        """Files that differ from what the host is believed to have; None: it has nothing."""
        return self._offer.changed

    def offer_to(self, worker: Worker) -> Offer:
        """What to send to this worker unasked."""
        if self._known is not None and self._known.worker != worker.hello.get("worker"):
            self._known = None
            self._offer = make_offer(self.snapshot, self.contents, self.diff, None)
        return self._offer

    def remember(self, order: _Order) -> None:
        """What the worker has now, for the next submit; that may fail, and costs it time alone."""
        worker = order.accepted[order.ids[0]].worker
        now = (worker, self.snapshot.digest, self.diff)
        known = self._known
        if worker is None or (
            known is not None and now == (known.worker, known.digest, known.diff)
        ):
            return
        with contextlib.suppress(SpecError):
            self._store.put_tree(self._host, worker, *now[1:], self.snapshot.rows)


class _Progress:
    """`code  12.3/200 MB  4.1 MB/s  46s left`, while contents travel."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._began = self._told = time.monotonic()

    def __call__(self, done: int, whole: int) -> None:
        now = time.monotonic()
        # the first line of a terminal is drawn once it has stood for a second
        if now - self._told < (0.2 if now - self._began > 2.5 else 1.1):
            return
        self._told = now
        rate = done / (now - self._began)
        left = f"  {duration((whole - done) / rate)} left" if rate else ""
        self._report.step(f"code  {size(done)} of {size(whole)}  {size(rate)}/s{left}")


def _find_after(ctx: Context, request: SubmitRequest, host: Host) -> list[str]:
    """The runs that must be done first; they are on the same host. Raises SpecError, NotFound."""
    found = runs.find_all(ctx, request.after)
    for ref in found:
        if ref.host != host.name:
            raise is_after_elsewhere(ref.id, ref.host, host)
    return [ref.id for ref in found]


def _leave(intent: Intent, order: _Order, error: BaseException, held: Held) -> None:
    """Close the intent when surely no run was made, else leave it for the same words again."""
    began = held.began or order.taken_up
    if (began and not _is_refusal(error)) or (order.accepted and order.missing):
        intent.leave_open()
    else:
        intent.close()


def _is_refusal(error: BaseException) -> bool:
    """Whether the worker said itself that there is no such run."""
    return (
        isinstance(error, RunnerError) and _made_none(error) and error.code not in _BEFORE_LOOKING
    )


def _made_none(error: RunnerError) -> bool:
    """Whether the worker said itself that it made no run of this request."""
    return error.code is not None and error.code not in _AFTER_MAKING


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
            _tell_replaced(ctx, host, intent)
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
        else:
            _tell_replaced(ctx, host, intent)
        intent.close()
    return chosen


def _tell_replaced(ctx: Context, host: Host, intent: Intent) -> None:
    """Where the worker that was asked then is gone, what it accepted cannot be known any more."""
    at: Any = intent.body.get("at")
    known = ctx.since_replaced(host.name, float(at) if is_number(at) else None)
    if known is not None:
        ctx.report.warn(
            f"{host.name}: {intent.id} may have been accepted by the worker of then "
            f"({known.before[0]}), which answers here no more"
        )


def _ask(ctx: Context, host: Host, ids: list[str]) -> int:
    """How many of these runs the host has."""
    with ctx.connect(host) as worker:
        _, rows = worker.call("runs", ids=ids)
        return len([seen(ctx, worker, row, ids) for row in rows])


def _hand_over(
    ctx: Context, worker: Worker, code: _Code, order: _Order, held: Held, image: str | None
) -> None:
    """Send until the worker has answered for all; a lost link is made again, with the same ids."""
    host = worker.host
    unsure = OutcomeUnknown(
        f"{host.name}: the link broke; {order.id} may or may not have been accepted",
        "the same words again find out, and make no second run",
    )
    try:
        retrying.act(
            ctx.report,
            lambda: ctx.connect(host, image=image),
            lambda link: _send(ctx, link, code, order, held),
            unsure,
            first=worker,
            went_out=lambda: held.began,
            waits_s=RETRY_WAITS_S,
        )
    except OutcomeUnknown:
        raise
    except RunnerError as error:
        told = _explained(error, host, order)
        if told is error:
            raise
        raise told from error


def _explained(error: RunnerError, host: Host, order: _Order) -> RunnerError:
    """A refusal with what it means here: what was made, and what to do."""
    told = error
    if order.accepted:
        done = f"{len(order.accepted)} of {len(order.specs)} runs of {order.id} were made"
        advice = (*error.advice, f"{done}; the same words again make the rest")
        told = type(error)(error.message, *advice)
    elif error.code == "no-gpu":
        advice = ("gpus=0 runs without; nothing was sent", f"runner version host={host.name}")
        told = SpecError(error.message, *advice)
    elif error.code == "conflict":
        told = Conflict(
            f"{host.name}: there is another run {order.ids[0]}", "type the same words again"
        )
    told.code = error.code
    return told


def _send(ctx: Context, worker: Worker, code: _Code, order: _Order, held: Held) -> None:
    with contextlib.ExitStack() as opened:
        # all that are needed are there before anything is sent to one of them
        workers = {
            image: opened.enter_context(worker_of(ctx, worker, image))
            for image in dict.fromkeys(spec.get("image") for spec in order.missing)
        }
        _send_to(ctx, workers, code, order, held)


def _send_to(
    ctx: Context, workers: Mapping[Any, Worker], code: _Code, order: _Order, held: Held
) -> None:
    """To the worker of each run's image; all of them have the same workspace, and its contents."""
    worker = workers[order.missing[0].get("image")]
    offer = code.offer_to(worker)
    ctx.report.step("sending the code")
    # over a link that was lost it may have been handed over: a worker that asks proves nothing then
    first_time = not held.began and not order.taken_up
    first, *others = order.missing
    try:
        accepted = send.submit(
            worker,
            code.snapshot,
            code.contents,
            offer,
            first,
            secrets=order.secrets,
            notify=order.wishes.request(worker.host),
            on_sent=_Progress(ctx.report),
            on_handed=held.begin,
            on_asked=held.withdraw if first_time else lambda: None,
        )
    except RunnerError as error:
        if first_time and _made_none(error):
            held.withdraw()
        raise
    order.accepted[str(first["id"])] = accepted
    for image, there in workers.items():
        more = [spec for spec in others if spec.get("image") == image]
        # in one workspace they are told once
        told = order.wishes.request(there.host, again=True)
        for accepted in send.submit_more(there, more, secrets=order.secrets, notify=told):
            order.accepted[str(accepted.run["id"])] = accepted
            ctx.report.step(f"{order.id}  {len(order.accepted)} of {len(order.specs)} runs")
    if len(order.specs) == 1:
        _remember(ctx, worker, accepted.run)


def _tell(ctx: Context, worker: Worker, code: _Code, order: _Order) -> None:
    ctx.report.done()
    host = worker.host.name
    first = order.accepted[order.ids[0]]
    for text in code.snapshot.warnings:
        ctx.report.note(text)
    sent = sent_text(code.changed, first.sent_bytes)
    ctx.report.note(f"code   {code_text(code.snapshot, sent)}")
    if len(order.specs) > 1:
        ctx.report.note(f"sweep  {order.id}: {_sweep_text(_look_again(ctx, worker, order))}")
        return
    status = read_status(dict(first.run), host)
    ctx.report.note(f"queue  {queue_text(status, host, first.gpus)}")


def _remember(ctx: Context, worker: Worker, run: Mapping[str, Any]) -> None:
    """Keep it in our records; where that fails it is made all the same, and its host knows it."""
    try:
        ctx.store.put(worker.host.name, run, time.time())
    except SpecError as error:
        ctx.report.warn(f"{run['id']} is made, but not in our records: {error.message}")


def _look_again(ctx: Context, worker: Worker, order: _Order) -> list[RunStatus]:
    """The runs of a sweep now that all are there; as they were answered where that fails."""
    try:
        _, rows = worker.call("runs", ids=order.ids)
        return [seen(ctx, worker, row, order.ids).status for row in rows]
    except RunnerError:
        # all were accepted: what cannot be told now does not undo that
        found = [accepted.run for accepted in order.accepted.values()]
        for run in found:
            _remember(ctx, worker, run)
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
