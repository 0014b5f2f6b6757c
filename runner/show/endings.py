"""What ended a run, its last words, and the way on from there (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner import states
from runner.app.results import RunOnHost
from runner.show.advice import Advice, Reason, advise, gc, listed, said
from runner.show.readings import elapsed_s, repeated
from runner.show.units import ago, duration
from runner.wire import is_number

if TYPE_CHECKING:
    from runner.app.reports import WhyFacts

_TAKE_GPU_MEMORY = ("batch_size", "minibatch_size", "num_envs", "num_steps", "hidden")
"""Parameters by their usual names, the one that frees most for least harm first."""
_TAKE_MEMORY = ("buffer_size", "num_envs", "batch_size")
_SHAPES = ("buffer_size", "hidden", "num_envs", "num_steps")
"""A checkpoint made with another of these does not fit."""
LAST_LINES = 20
LAST_FRAMES = 3
_TRACEBACK = "Traceback (most recent call last):"
_RANK = re.compile(r"^\[rank\d+\]: ?")
_FRAME = re.compile(r' +File "(.+)", line (\d+)')
_NOT_OWN = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")


def why_ended(run: RunOnHost, facts: WhyFacts, clock: float) -> Reason:
    """The reason of a run that has ended. clock: the worker's."""
    status = run.status
    word = states.shown(status.state, status.outcome)
    cause = status.cause or {}
    kind = str(cause.get("kind") or status.outcome or "ended")
    if status.outcome == states.DONE:
        return Reason("done", _done(run, clock), advice=_pull(run))
    sentence = _sentence(kind, cause)
    step = cause.get("step") if is_number(cause.get("step")) else status.step
    if step is not None and status.started_at is not None:
        sentence += f" at step {step:,.0f}"
    again = repeated(status)
    if again > 1:
        times = "twice" if again == 2 else f"{again} times"
        sentence += f", {times} at the same step" if step is not None else f", {times} alike"
    elif status.attempt > 1:
        sentence += f", in attempt {status.attempt}"
    if status.ended_at is not None:
        sentence += f"; {ago(status.ended_at, clock)}"
    text = f"{word}: {sentence.strip()}" if sentence.strip() else word
    if status.outcome == states.CANCELLED:
        text = f"{word}{sentence.removeprefix('cancelled')}"
    return Reason(kind, text, _detail(run.id, cause, kind, facts), _next(run, facts, kind))


def _done(run: RunOnHost, clock: float) -> str:
    status = run.status
    text = "DONE"
    if status.started_at is not None and status.ended_at is not None:
        text += f" after {duration(elapsed_s(run, clock))}"
    if status.step is not None:
        text += f" at step {status.step:,}"
    if status.ended_at is not None:
        text += f", {ago(status.ended_at, clock)}"
    return f"{text}; {'pulled' if run.pulled else 'not pulled yet'}"


def _sentence(kind: str, cause: Mapping[str, Any]) -> str:
    """What happened, without where and how often."""
    rank: Any = cause.get("rank")
    who = f"rank {rank}" if is_number(rank) else "it"
    text = said(cause.get("text") or kind)
    if kind == "cuda-oom":
        return f"{who} ran out of GPU memory"
    if kind == "oom":
        return f"{who} ran out of memory and was killed by the kernel"
    if kind in ("exit", "nan") and is_number(rank):
        return f"{who}: {text}"
    if kind == "dependency" and cause.get("run"):
        return f"{said(cause['run'])}, which it waited for, did not end done"
    return text


def _detail(run: str, cause: Mapping[str, Any], kind: str, facts: WhyFacts) -> tuple[str, ...]:
    """The last words of what ended."""
    if kind == "stuck":
        return facts.stack[:LAST_LINES]
    if kind not in ("exit", "signal", "oom", "cuda-oom", "nan"):
        return ()
    trace = cause.get("traceback")
    found = [said(line) for line in trace.split("\n")] if isinstance(trace, str) else []
    log = [said(line) for line in facts.log]
    shown = traceback_end(log, run)
    if found and (not shown or shown[-1] != found[-1]):
        # the log has gone on since, or is cut; the cause has the innermost line and the error
        return traceback_end([_TRACEBACK, *(f"  {line}" for line in found[:-1]), found[-1]], run)
    if not shown or shown[-1] not in (_RANK.sub("", line) for line in log[-LAST_LINES:]):
        return tuple(log[-LAST_LINES:])  # an old one, after which it went on
    return shown


def traceback_end(lines: Sequence[str], run: str) -> tuple[str, ...]:
    """The end of the last Python traceback in a text: own frames as `file:line  code`, the error.

    Nothing where there is none. Files of the run's own copy of the code are named from its root.
    """
    plain = [_RANK.sub("", line) for line in lines]
    begins = [i for i, line in enumerate(plain) if line.startswith(_TRACEBACK)]
    if not begins:
        return ()
    frames: list[tuple[bool, str]] = []
    error: list[str] = []
    for line in plain[begins[-1] + 1 :]:
        frame = _FRAME.match(line)
        if frame:
            path = frame[1].partition(f"/code/{run}/")[2] or frame[1]
            own = not any(mark in frame[1] for mark in _NOT_OWN)
            frames.append((own, f"{path}:{frame[2]}"))
        elif line.startswith(" "):
            if frames and "  " not in frames[-1][1]:  # the code, and not the marks below it
                frames[-1] = (frames[-1][0], f"{frames[-1][1]}  {line.strip()}")
        elif line:
            error.append(line)
            break
    shown = [text for own, text in frames if own] or [text for _, text in frames]
    return (*shown[-LAST_FRAMES:], *error)


def _pull(run: RunOnHost) -> tuple[Advice, ...]:
    return () if run.pulled else advise("", "pull", run.id, names=[run.id])


def _next(run: RunOnHost, facts: WhyFacts, kind: str) -> tuple[Advice, ...]:
    """What to type after a run that did not end done."""
    ours = {"names": [run.id]}
    where = "go on from its last checkpoint" if run.status.checkpoints else "begin it anew"
    if kind in ("oom", "cuda-oom"):
        return _smaller(run, _TAKE_GPU_MEMORY if kind == "cuda-oom" else _TAKE_MEMORY)
    if kind in ("exit", "signal"):
        rank = ["--rank", str(facts.log_rank)] if facts.log_rank else []
        look = advise("all of its last words:", "tail", run.id, *rank, "-n", "100", **ours)
        if run.contact.state == "ok" and not any(line.strip() for line in facts.log):
            look = ()  # it printed nothing
        text = "mend the code and submit it anew; or, were it not the code, go on:"
        return look + (_again(run, text, "fork") if run.status.checkpoints else ())
    if kind == "nan":
        return advise("when it began:", "plot", run.id, **ours) + _slower(run)
    if kind == "disk-full":
        return gc(run) + _again(run, f"then {where}:", "resume")
    if kind == "dependency":
        others = [status for status in facts.others.values() if status.outcome != states.DONE]
        other = str((run.status.cause or {}).get("run") or (others[0].id if others else ""))
        return advise("", "why", other, names=[other])
    if kind == "setup":
        # said by a rank it is about what the job was told, which a resume does not change
        if run.status.job and is_number((run.status.cause or {}).get("rank")):
            return _again(run, "with NAME=VALUE for what is to change:", "fork", *_fresh(run))
        return _again(run, "when that is mended:", "resume")
    if kind == "time-limit" and not run.status.checkpoints:
        # the same limit would end it at the same place
        limit: Any = run.status.time_limit_s
        longer = f"time_limit={int(2 * limit)}s" if is_number(limit) else "time_limit=24h"
        return _again(run, "from zero, with more time:", "fork", longer, "--fresh")
    return _again(run, f"{where}:", "resume")


def _again(run: RunOnHost, text: str, command: str, *words: str) -> tuple[Advice, ...]:
    """A resume or fork; a run's secrets are gone with its end, so they are named again."""
    secrets = run.status.secrets
    names = [f"secret.{name}" for name in secrets]
    return advise(text, command, run.id, *words, *names, names=[run.id, *secrets])


def _smaller(run: RunOnHost, names: Sequence[str]) -> tuple[Advice, ...]:
    """A fork that needs less memory, where the parameters tell how. names: most effective first."""
    params = run.status.params
    found = [(name, params[name]) for name in names if _can_be_halved(params.get(name))]
    if found:
        (name, value), *others = found
        text = f"lower {name} ({value})"
        text += f", or {listed([f'{n} ({v})' for n, v in others])}" if others else ""
        fresh = ["--fresh"] if name in _SHAPES else _fresh(run)
        return _again(run, f"{text}, then:", "fork", f"{name}={value // 2}", *fresh)
    if run.status.job:
        return advise("what could be smaller:", "jobs", run.status.job, names=[run.status.job])
    return ()


def _fresh(run: RunOnHost) -> list[str]:
    """What a fork needs where there is no checkpoint to go on from."""
    return [] if run.status.checkpoints else ["--fresh"]


def _can_be_halved(value: object) -> bool:
    return isinstance(value, int) and is_number(value) and value > 1


def _slower(run: RunOnHost) -> tuple[Advice, ...]:
    """A fork with a lower learning rate, where there is one and a checkpoint to go on from."""
    rate: Any = run.status.params.get("lr")
    if not (isinstance(rate, float) and is_number(rate) and rate > 0 and run.status.checkpoints):
        return ()
    text = f"a lower lr ({rate:g}), from its last good checkpoint:"
    return _again(run, text, "fork", f"lr={rate / 2:g}")
