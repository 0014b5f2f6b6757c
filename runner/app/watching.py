"""Hosts that are asked again and again, each over a conversation of its own that stays open.

A host that is lost is connected to anew, after ever longer pauses; none waits for another.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from runner.app.context import Context, Slow
from runner.app.many import ANSWER_S
from runner.app.top import Answer, Told, ask
from runner.children import end_new_at_exit
from runner.endpoint import Worker
from runner.errors import AuthRefused, HostKeyError, RunnerError, SpecError
from runner.model import Host

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Between two tries to reach a host that is silent."""
CLOSE_S = 1.0


class Watch:
    """All hosts, each asked by a thread of its own while the context lasts."""

    def __init__(
        self,
        ctx: Context,
        hosts: Sequence[Host],
        *,
        everyone: bool,
        every_s: float,
        on_news: Callable[[], None],
    ) -> None:
        """on_news: called in a thread of ours whenever there is something new."""
        self._asked = [
            _Asked(ctx, host, everyone, every_s, len(hosts) > 1, on_news) for host in hosts
        ]

    def __enter__(self) -> Watch:
        end_new_at_exit()
        for each in self._asked:
            each.start()
        return self

    def __exit__(self, *raised: object) -> None:
        for each in self._asked:
            each.stop()

    def answers(self) -> list[Answer]:
        """What is known of each now. Raises whatever bug a thread ran into."""
        return [each.answer() for each in self._asked]

    def again(self) -> None:
        """Ask all now, also those that refused."""
        for each in self._asked:
            each.again()


class _Asked:
    """One host. What its thread and others share is changed under `_lock` alone."""

    def __init__(
        self,
        ctx: Context,
        host: Host,
        everyone: bool,
        every_s: float,
        many: bool,
        on_news: Callable[[], None],
    ) -> None:
        self._ctx = ctx
        self._host = host
        self._everyone = everyone
        self._every_s = every_s
        self._many = many
        self._on_news = on_news
        self._lock = threading.Lock()
        self._told: Told | None = None
        self._error: RunnerError | None = None
        self._bug: BaseException | None = None
        self._asking_since: float | None = None
        self._worker: Worker | None = None
        self._wake = threading.Event()
        self._over = False

    def start(self) -> None:
        # a daemon: one that hangs keeps no process alive
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        with self._lock:
            self._over = True
            worker = self._worker
        self._wake.set()
        if worker is not None:
            threading.Thread(target=worker.close, daemon=True).start()

    def again(self) -> None:
        self._wake.set()

    def answer(self) -> Answer:
        with self._lock:
            if self._bug is not None:
                raise self._bug
            error, since = self._error, self._asking_since
            if error is None and since is not None and time.monotonic() - since > ANSWER_S:
                error = Slow(f"{self._host.name}: it is there, but gives no answer")
            connecting = self._told is None and error is None
            return Answer(self._host, self._told, error, connecting)

    def _run(self) -> None:
        tries = 0
        while not self._over:
            try:
                with self._open() as worker:
                    while not self._over:
                        self._look(worker)
                        tries = 0
                        self._pause(self._every_s)
            except RunnerError as error:
                if self._over:
                    return
                with self._lock:
                    self._error, self._asking_since = error, None
                self._on_news()
                self._pause(_pause_s(error, tries))
                tries += 1
            except BaseException as bug:  # the edge of a thread: whoever waits must hear of it
                with self._lock:
                    self._bug = bug
                self._on_news()
                return

    @contextlib.contextmanager
    def _open(self) -> Iterator[Worker]:
        with self._ctx.connect(self._host, many=self._many) as worker:
            with self._lock:
                self._worker = worker
            try:
                if not self._over:
                    yield worker
            finally:
                with self._lock:
                    self._worker = None

    def _look(self, worker: Worker) -> None:
        worker.hello  # noqa: B018 - waits for it: connecting has a limit of its own
        with self._lock:
            self._asking_since = time.monotonic()
        told = ask(self._ctx, worker, self._everyone)
        with self._lock:
            self._told, self._error, self._asking_since = told, None, None
        self._on_news()

    def _pause(self, seconds: float | None) -> None:
        self._wake.wait(seconds)
        if not self._over:
            self._wake.clear()


def _pause_s(error: RunnerError, tries: int) -> float | None:
    """How long to leave a host alone; None: until somebody asks. A key that was refused would be
    so again, and servers shut out who tries too often.
    """
    if isinstance(error, (AuthRefused, HostKeyError, SpecError)):
        return None
    return PAUSES_S[min(tries, len(PAUSES_S) - 1)]
