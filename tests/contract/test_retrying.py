"""A request that changes something and whose answer is lost: done once, or said to be unknown."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.app import again, cancel, drain, retrying, runs, space, stack, status, submit, why
from runner.app.reports import CancelReport, Removal
from runner.app.runs import RunRef
from runner.cli import main
from runner.endpoint import LinkLost
from runner.errors import OutcomeUnknown, Unreachable
from runner.grammar.changes import parse_changes
from runner.spec import parse_submit
from tests.helpers.link import KILL, LINGER, Link, make_link
from tests.helpers.local_worker import LocalWorker, Notes

FAR = 'runtime = "docker"\nssh = "local"\n'
SLEEP = "import time; time.sleep(600)"


@dataclass
class Far:
    """A worker as `local` and, behind a link, as `far`."""

    worker: LocalWorker
    link: Link

    def ref(self, run: str) -> RunRef:
        return RunRef(run, "far")

    def live(self) -> str:
        run = self.worker.python(SLEEP)
        self.worker.until(run, "running")
        return run

    def failed(self) -> str:
        run = self.worker.submit("false")
        self.worker.wait(run)
        return run

    def failed_alone(self) -> str:
        """The only one whose leftovers nobody has removed."""
        space.collect(self.worker.ctx, "local")
        return self.failed()

    def specs(self) -> list[Path]:
        return list(self.worker.workspace.glob("runs/[!.]*/spec.json"))

    def made_from(self, run: str) -> list[str]:
        found = [json.loads(path.read_bytes()) for path in self.specs()]
        return [spec["id"] for spec in found if (spec.get("origin") or {}).get("run") == run]


@pytest.fixture
def far(
    shared_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Far]:
    monkeypatch.setattr(retrying, "ACT_WAITS_S", (0.1, 0.3))
    monkeypatch.setattr(retrying, "LOOK_WAITS_S", (0.0, 0.1))
    worker = shared_worker
    if not worker.dispatcher:
        worker.host(slots=4)
        worker.wait(worker.submit("true"))
        worker.file("hosts/far.toml", FAR)
    worker.report.notes.clear()
    made = Far(worker, make_link(tmp_path / "link", monkeypatch.setenv))
    yield made
    drain.drain(worker.ctx, "local", False)
    for path in made.specs():  # an answer about all of them has the same length twice
        worker.until(path.parent.name, "ended")


Do = Callable[[Far, str], Any]


def do_cancel(far: Far, run: str) -> Any:
    (report,) = cancel.cancel(far.worker.ctx, [far.ref(run)])
    return report


def do_drain(far: Far, run: str) -> Any:
    return drain.drain(far.worker.ctx, "far", True)


def do_rm(far: Far, run: str) -> Any:
    (row,) = space.remove(far.worker.ctx, [far.ref(run)], unpulled=True)
    return row


def do_gc(far: Far, run: str) -> Any:
    return space.collect(far.worker.ctx, "far")


def do_resume(far: Far, run: str) -> Any:
    return again.resume(far.worker.ctx, far.ref(run), parse_changes("x", []), lambda run: None)


def do_reproduce(far: Far, run: str) -> Any:
    return again.reproduce(far.worker.ctx, far.ref(run), parse_changes("x", []), lambda run: None)


def do_fork(far: Far, run: str) -> Any:
    changes = parse_changes("fork", [])
    return again.fork(far.worker.ctx, far.ref(run), changes, lambda run: None, fresh=True)


NAMES = (f"n{number}" for number in itertools.count())


def do_submit(far: Far, name: str) -> Any:
    request = parse_submit(["host=far", f"name={name}"], ["true"])
    return submit.submit(far.worker.ctx, request, lambda ids: None)


def warm_name(far: Far) -> str:
    """A new name, the host having the code already."""
    do_submit(far, next(NAMES))
    return next(NAMES)


def is_submitted_once(far: Far, name: str) -> bool:
    specs = [json.loads(path.read_bytes()) for path in far.specs()]
    return [spec.get("name") for spec in specs].count(name) == 1


def is_cancelled(far: Far, run: str) -> bool:
    state = far.worker.state(run)
    return (state["outcome"], state["attempt"]) == ("cancelled", 1)


def is_drained(far: Far, run: str) -> bool:
    return (far.worker.workspace / ".runner/drained").exists()


def is_gone(far: Far, run: str) -> bool:
    return not far.worker.run_folder(run).exists()


def is_resumed_once(far: Far, run: str) -> bool:
    far.worker.wait(run)
    resumes = list((far.worker.run_folder(run) / "resumes").iterdir())
    return [path.name for path in resumes] == ["1.json"] and far.worker.state(run)["attempt"] == 2


def is_made_once(far: Far, run: str) -> bool:
    return len(far.made_from(run)) == 1


def is_there(far: Far, run: str) -> bool:
    return far.worker.run_folder(run).exists()


VERBS: dict[str, tuple[Do, Callable[[Far], str], Callable[[Far, str], bool]]] = {
    "submit": (do_submit, warm_name, is_submitted_once),
    "cancel": (do_cancel, Far.live, is_cancelled),
    "drain": (do_drain, Far.failed, is_drained),
    "rm": (do_rm, Far.failed, is_gone),
    "gc": (do_gc, Far.failed_alone, is_there),
    "resume": (do_resume, Far.failed, is_resumed_once),
    "fork": (do_fork, Far.failed, is_made_once),
    "reproduce": (do_reproduce, Far.failed, is_made_once),
}
"""What is done, to what, and how it looks when it was done exactly once."""


def breaks_at_the_answer(far: Far, verb: str, how: str) -> tuple[int, list[dict[str, Any]]]:
    """(how many conversations it takes, done once to see; the breaks of a link that loses the end
    of the last one's answer)
    """
    do, make, _ = VERBS[verb]
    run = make(far)
    far.link.forget()
    do(far, run)
    replies = far.link.replies
    if verb == "drain":
        drain.drain(far.worker.ctx, "local", False)
    return len(replies), [*({} for _ in replies[:-1]), {"reply": replies[-1], "how": how}]


@pytest.mark.parametrize("how", [KILL, LINGER])
@pytest.mark.parametrize("verb", VERBS)
def test_an_answer_that_is_lost_is_asked_for_once_more(far: Far, verb: str, how: str) -> None:
    do, make, is_done = VERBS[verb]
    talks, cuts = breaks_at_the_answer(far, verb, how)
    run = make(far)
    far.link.forget()
    far.link.plan(*cuts)
    found = do(far, run)
    assert is_done(far, run)
    assert len(far.link.talks) == talks + 1, "it was not cut, or asked for more than once more"
    if isinstance(found, CancelReport):
        assert (found.outcome, found.ended_before, found.error) == ("cancelled", False, None)
    if isinstance(found, Removal):
        assert (found.error, found.gone) == (None, False)


@pytest.mark.parametrize("verb", VERBS)
def test_what_cannot_be_asked_again_is_called_unknown_and_the_same_settles_it(
    far: Far, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    do, make, is_done = VERBS[verb]
    _, cuts = breaks_at_the_answer(far, verb, LINGER)
    run = make(far)
    # and then the host is not even reached any more
    far.link.plan(*cuts, *({"down": 0} for _ in range(8)))
    try:
        found = do(far, run)
        status_of = found.status
        said = str(found.error)
    except OutcomeUnknown as error:
        status_of, said = error.status, error.message
    assert status_of == OutcomeUnknown.status
    assert "the link broke" in said
    far.link.plan()
    if verb not in ("submit", "fork", "reproduce", "resume"):
        do(far, run)
    elif verb != "resume":
        assert far.worker.report.notes
        do(far, run)
        assert any(note.startswith("take up") for note in far.worker.report.notes)
    assert is_done(far, run)


def test_a_host_that_was_never_reached_is_no_unknown_outcome(
    far: Far, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = far.failed()
    far.link.plan(*({"down": 0} for _ in range(40)))
    for do in (do_drain, do_gc, do_resume, do_fork):
        with pytest.raises(Exception) as caught:
            do(far, run)
        assert not isinstance(caught.value, OutcomeUnknown), do
    assert do_cancel(far, run).status != OutcomeUnknown.status
    assert far.made_from(run) == []


LOOKS: dict[str, Do] = {
    "status": lambda far, run: status.status(far.worker.ctx, far.ref(run)),
    "why": lambda far, run: why.why(far.worker.ctx, far.ref(run)).run,
    "ps": lambda far, run: next(
        row for row in runs.list_runs(far.worker.ctx, "far").runs if row.id == run
    ),
    "plot": lambda far, run: runs.curves(far.worker.ctx, [far.ref(run)])[0],
    "du": lambda far, run: space.usage(far.worker.ctx, "far").runs[-1],
    "stack": lambda far, run: stack.stack(far.worker.ctx, far.ref(run)),
}


@pytest.mark.parametrize("verb", LOOKS)
def test_a_look_that_is_cut_is_taken_again(far: Far, verb: str) -> None:
    run = far.live()
    far.link.forget()
    LOOKS[verb](far, run)
    cut = {"reply": far.link.replies[-1]}
    far.link.forget()
    far.link.plan(cut, cut)
    found = LOOKS[verb](far, run)
    assert len(far.link.talks) == 3
    contact = getattr(found, "contact", None)
    assert contact is None or contact.state == "ok"
    far.worker.cancel(run, now=True)


def test_only_a_link_that_was_lost_is_made_again() -> None:
    """A host that does not answer at all has cost its 20 s; nobody wants them three times."""
    tries = []

    def connect() -> Any:
        tries.append(1)
        raise Unreachable("gpu1: no answer for 20 s")

    with pytest.raises(Unreachable):
        retrying.look(Notes(), connect, lambda worker: None)
    with pytest.raises(Unreachable):
        retrying.act(Notes(), connect, lambda worker: None, OutcomeUnknown("x"))
    assert len(tries) == 2
    assert issubclass(LinkLost, Unreachable)


def test_the_command_says_9_and_what_settles_it(
    far: Far, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(far.worker.project)
    far.link.forget()
    assert main(["drain", "host=far"]) == 0
    cut = {"reply": far.link.replies[-1], "how": LINGER}
    assert main(["undrain", "host=far"]) == 0
    capsys.readouterr()
    far.link.plan(cut, *({"down": 0} for _ in range(5)))
    assert main(["drain", "host=far"]) == 9
    said = capsys.readouterr().err
    assert said.startswith("far: the link broke; it may or may not be drained\n")
    assert "runner drain host=far" in said
