"""Runs from runs: `resume` goes on with one, `fork` and `reproduce` make a new one from one.

The host tells the run's spec, what was typed is checked against it, and the worker acts: the code
and the checkpoints are there, nothing of them travels. A new run has an intent, as with submit,
closed once its id was printed: the same words after a cut make no second one.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner import __version__, states
from runner.app import retrying
from runner.app.context import Context, queue_text, read_status, seen, worker_of
from runner.app.results import RunOnHost
from runner.app.runs import RunRef
from runner.app.wishes import read_wishes
from runner.endpoint import Worker
from runner.errors import OutcomeUnknown, RunnerError, WorkerError, WrongState
from runner.grammar.changes import (
    Changes,
    check_resumable,
    check_secrets,
    line,
    more_steps,
    told,
    typed_params,
)
from runner.grammar.secret import read_secrets
from runner.ids import draw_id
from runner.interrupts import Held
from runner.model import Param
from runner.store import Intent
from runner.wire import RunStatus

SEED_BITS = 31


@dataclass(frozen=True)
class Source:
    """A run that is to go on, or to be the source of a new one."""

    status: RunStatus
    spec: Mapping[str, Any]
    """As it stands, with what resumes changed; of its variables the names alone."""
    image: str | None
    """The image it ran in, where that is known."""

    @property
    def id(self) -> str:
        """The id users type."""
        return self.status.id

    @property
    def params(self) -> Mapping[str, Param]:
        """Its parameters, as the next attempt would have them."""
        return dict(self.spec.get("params") or {})

    @property
    def secrets(self) -> list[str]:
        """Names alone."""
        return [str(name) for name in self.spec.get("secrets") or ()]

    @property
    def newest(self) -> str | None:
        """Its newest checkpoint, not verified here."""
        names = [str(item.get("name")) for item in self.status.checkpoints]
        return names[-1] if names else None


@dataclass(frozen=True)
class Resumed:
    """A run that goes on."""

    run: RunOnHost
    checkpoint: str | None
    """From where; None: from zero."""
    log_bytes: int
    """What its log held before."""


@dataclass(frozen=True)
class Made:
    """A run that was made from another one."""

    run: RunOnHost
    checkpoint: str | None


def resume(ctx: Context, ref: RunRef, changes: Changes, announce: Callable[[str], None]) -> Resumed:
    """Go on with an ended run: same id, next attempt, from its newest checkpoint.

    Raises WrongState when it has not ended, or is done and no more steps are asked for; SpecError
    for what cannot change; OutcomeUnknown when the link broke after the request went out.
    """
    host = ctx.host(ref.host)
    values = read_secrets(changes.secrets)
    wishes = read_wishes(ctx.report, [host])
    with ctx.connect(host) as worker, Held() as held:
        source = _look(ctx, worker, ref.id)
        params = _resumed_params(source, changes)
        check_secrets("resume", source.id, source.secrets, list(values))
        request = {
            "run": source.id,
            "params": params,
            "env": dict(changes.env),
            "secrets": values,
            "notify": wishes.request(host),
            # one resume, however often its request is sent
            "token": secrets.token_hex(8),
        }
        unsure = OutcomeUnknown(
            f"{host.name}: the link broke; {source.id} may or may not go on",
            line("status", source.id),
        )
        with worker_of(ctx, worker, source.spec.get("image")):
            pass  # else it would wait for ever
        reply = _until_answered(ctx, worker, None, "resume", request, held, unsure)
        run = seen(ctx, worker, reply.get("run"), [source.id])
        _tell(ctx, source, run, source.newest, params)
        announce(source.id)
    return Resumed(run, source.newest, source.status.log_bytes)


def _resumed_params(source: Source, changes: Changes) -> dict[str, Param]:
    """The changed parameters of a run that may go on with them. Raises SpecError, WrongState."""
    resumable = [str(name) for name in source.spec.get("resumable") or ()]
    params = typed_params(source.id, changes.params, source.params)
    check_resumable(source.id, list(params), resumable)
    status = source.status
    if status.state != states.ENDED:
        number = status.attempt + (status.state == states.QUEUED)
        raise WrongState(
            f"{source.id} is {status.state} (attempt {number}); there is nothing to resume",
            line("tail", source.id),
        )
    if status.outcome == states.DONE and not more_steps(source.params, params):
        advice = [f"a new run from its end: runner fork {source.id} steps=…"]
        if "steps" not in source.params:
            advice = [f"a new run of it: runner reproduce {source.id}"]
        if "steps" in resumable and "steps" in source.params:
            known = source.params["steps"]
            advice.insert(0, f"more steps than its {known}: runner resume {source.id} steps=…")
        raise WrongState(f"{source.id} is done; only more steps resume it", *advice)
    return params


def _say_if_at_its_end(ctx: Context, source: Source, params: Mapping[str, Param]) -> None:
    """A fork from the end of a finished training, with no more steps, would train nothing."""
    known = source.params.get("steps")
    done = source.status.outcome == states.DONE and source.status.state == states.ENDED
    if done and isinstance(known, (int, float)) and not more_steps(source.params, params):
        text = f"steps  {source.id} is at the last of its {known:,}"
        ctx.report.note(f"{text}: steps=… lets the fork train on, --fresh begins it anew")


def fork(
    ctx: Context,
    ref: RunRef,
    changes: Changes,
    announce: Callable[[str], None],
    *,
    fresh: bool = False,
) -> Made:
    """A new run with the code of one that is there, changed, from its newest good checkpoint.

    fresh: from zero. Raises NotFound where there is no checkpoint, and what submit raises.
    """

    def plan(source: Source) -> dict[str, Any]:
        params = typed_params(source.id, changes.params, source.params)
        options = ["--fresh"] if fresh else []
        check_secrets("fork", source.id, source.secrets, list(changes.secrets), *options)
        if not fresh:
            _say_if_at_its_end(ctx, source, params)
        return {
            "kind": "fork",
            "checkpoint": None if fresh else "last",
            "params": params,
            "env": dict(changes.env),
            "changes": dict(changes.settings),
        }

    words = ["fork", ref.id, *changes.words, *(["--fresh"] if fresh else [])]
    return _make(ctx, ref, words, changes, plan, announce)


def reproduce(ctx: Context, ref: RunRef, changes: Changes, announce: Callable[[str], None]) -> Made:
    """The same run once more, from zero: its spec, code and image, under a new id."""

    def plan(source: Source) -> dict[str, Any]:
        check_secrets("reproduce", source.id, source.secrets, list(changes.secrets))
        return {"kind": "reproduce", "checkpoint": None, "params": {}, "env": {}, "changes": {}}

    return _make(ctx, ref, ["reproduce", ref.id, *changes.words], changes, plan, announce)


def _make(
    ctx: Context,
    ref: RunRef,
    words: list[str],
    changes: Changes,
    plan: Callable[[Source], dict[str, Any]],
    announce: Callable[[str], None],
) -> Made:
    host, draw = ctx.host(ref.host), random.SystemRandom()
    values = read_secrets(changes.secrets)
    wishes = read_wishes(ctx.report, [host])
    with contextlib.ExitStack() as opened:
        asked = opened.enter_context(ctx.connect(host))
        source = _look(ctx, asked, ref.id)
        request = plan(source)
        image = source.image if words[0] == "reproduce" else source.spec.get("image")
        worker = opened.enter_context(worker_of(ctx, asked, image, source.id))
        intent = _take_up(ctx, words)
        if intent is None:
            if request["params"].get("seed") == -1:
                request["params"]["seed"] = draw.getrandbits(SEED_BITS)
            request.update(
                id=draw_id(source.status.job, draw), source=source.id, client=__version__
            )
            body = {"id": request["id"], "words": words, "at": time.time(), "host": host.name}
            intent = ctx.store.write_intent({**body, "request": request})
        request = {**intent.body["request"], "secrets": values, "notify": wishes.request(host)}
        with Held() as held:
            try:
                unsure = OutcomeUnknown(
                    f"{host.name}: the link broke; {intent.id} may or may not have been accepted",
                    "the same words again find out, and make no second run",
                )
                reply = _until_answered(ctx, worker, image, "again", request, held, unsure)
                made = _read_reply(ctx, worker, intent.id, reply)
            except BaseException as error:
                _leave(intent, error, held)
                raise
            _tell(ctx, source, made.run, made.checkpoint, request["params"])
            announce(intent.id)
            intent.close()
    return made


def _take_up(ctx: Context, words: list[str]) -> Intent | None:
    """The oldest open intent of these words; others of them wait for their own turn."""
    with ctx.store.intents_locked():
        found = ctx.store.open_intents(words)
    chosen = None
    for intent in found:
        request = intent.body.get("request")
        good = isinstance(request, dict) and request.get("id") == intent.id
        if chosen is None and good:
            chosen = intent
            ctx.report.note(f"take up  {intent.id}, which an earlier {words[0]} left open")
        else:
            intent.leave_open()
    return chosen


def _leave(intent: Intent, error: BaseException, held: Held) -> None:
    """Close the intent when surely no run was made, else leave it for the same words again."""
    unsure = isinstance(error, OutcomeUnknown) or not isinstance(error, RunnerError)
    if unsure and held.began:
        intent.leave_open()
    else:
        intent.close()


def _until_answered(
    ctx: Context,
    worker: Worker,
    image: str | None,
    verb: str,
    request: Mapping[str, Any],
    held: Held,
    unsure: OutcomeUnknown,
) -> dict[str, Any]:
    """The worker's reply; over a link that broke the same is asked again, then `unsure` raised."""

    def ask(link: Worker) -> dict[str, Any]:
        held.begin()
        return link.call(verb, **request)[0]

    host = worker.host
    try:
        return retrying.act(
            ctx.report,
            lambda: ctx.connect(host, image=image),
            ask,
            unsure,
            first=worker,
            went_out=lambda: held.began,
        )
    except RunnerError as error:
        error.advice = (*error.advice, *_ways_out(error, request))
        raise


def _ways_out(error: RunnerError, request: Mapping[str, Any]) -> tuple[str, ...]:
    """What to type next after a refusal."""
    source = str(request.get("source") or request.get("run"))
    ways = {
        "no-checkpoint": (f"from zero: runner fork {source} --fresh",),
        "no-code": ("submit runs the code that is here now: runner submit --help",),
        "no-gpu": ("gpus=0 runs without; nothing was sent",),
        "conflict": ("type the same words again",),
        "wrong-state": (line("status", source),),
    }
    return ways.get(str(error.code), ())


def _look(ctx: Context, worker: Worker, run: str) -> Source:
    """The run as its worker tells it."""
    ctx.report.step(f"looking at {run}")
    reply, _ = worker.call("again", source=run, look=True)
    name = worker.host.name
    spec, image = reply.get("spec"), reply.get("image")
    status = read_status(reply.get("run"), name)
    if status.id != run or not isinstance(spec, dict):
        raise WorkerError(f"{name}: the worker's answer cannot be read")
    tables = isinstance(spec.get("params", {}), dict)
    if not tables or not all(
        isinstance(spec.get(key) or [], list) for key in ("resumable", "secrets")
    ):
        raise WorkerError(f"{name}: the spec of {run} cannot be read")
    return Source(status, spec, image if isinstance(image, str) else None)


def _read_reply(ctx: Context, worker: Worker, run: str, reply: Mapping[str, Any]) -> Made:
    made = seen(ctx, worker, reply.get("run"), [run])
    checkpoint = reply.get("checkpoint")
    return Made(made, checkpoint if isinstance(checkpoint, str) else None)


def _tell(
    ctx: Context,
    source: Source,
    run: RunOnHost,
    checkpoint: str | None,
    params: Mapping[str, Param],
) -> None:
    ctx.report.done()
    ctx.report.note(f"from   {checkpoint or 'zero'}, {source.id}")
    changes = told(source.params, params)
    if changes:
        ctx.report.note(f"with   {changes}")
    ctx.report.note(f"queue  {queue_text(run.status, run.host, len(run.status.gpus))}")
