"""Waiting for runs to end; a host that does not answer is waited through."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from runner import states, wire
from runner.app.context import Context, seen
from runner.app.results import RunOnHost
from runner.app.runs import RunRef, by_host
from runner.children import end_new_at_exit
from runner.endpoint import wire_json
from runner.errors import TimedOut, Unreachable
from runner.model import Host

RETRY_WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
Found = tuple[list[RunOnHost], Exception | None]


def wait(ctx: Context, refs: Sequence[RunRef], timeout_s: float | None) -> list[RunOnHost]:
    """All of these runs once they have ended, in the order asked for.

    Raises TimedOut; NotFound when a host does not know one.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    answers: queue.SimpleQueue[Found] = queue.SimpleQueue()
    groups = by_host(ctx, refs)
    end_new_at_exit()
    for host, ids in groups:
        # daemons: a wait that ends early leaves no one to join
        threading.Thread(target=_wait_on, args=(ctx, host, ids, answers), daemon=True).start()
    found: dict[str, RunOnHost] = {}
    for _ in groups:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            runs, error = answers.get(timeout=left)
        except queue.Empty:
            open_runs = [ref.id for ref in refs if ref.id not in found]
            raise TimedOut(f"{', '.join(open_runs)}: not ended after {timeout_s:g} s") from None
        if error is not None:
            raise error
        found.update({run.id: run for run in runs})
    ctx.report.done()
    return [found[ref.id] for ref in refs]


def _wait_on(ctx: Context, host: Host, ids: list[str], answers: queue.SimpleQueue[Found]) -> None:
    done: dict[str, RunOnHost] = {}
    tries = 0
    while True:
        try:
            with ctx.connect(host) as worker:
                request = worker.open("wait", ids=[run for run in ids if run not in done])
                for kind, payload in request.frames():
                    tries = 0
                    if kind != wire.EVENT:
                        continue
                    run = seen(ctx, worker, wire_json(payload, host.name).get("run"), ids)
                    ctx.report.step(f"{run.id}  {run.status.state}")
                    if run.status.state == states.ENDED:
                        done[run.id] = run
            gone = [run for run in ids if run not in done]
            if gone:
                raise ctx.no_run(host.name, gone[0])
            answers.put(([done[run] for run in ids], None))
            return
        except Unreachable as error:
            pause = RETRY_WAITS_S[min(tries, len(RETRY_WAITS_S) - 1)]
            tries += 1
            ctx.report.trouble(f"{error}; its runs may well be running; asking again")
            time.sleep(pause)
        except Exception as error:  # the edge of a thread: whoever waits must hear of it
            answers.put(([], error))
            return
