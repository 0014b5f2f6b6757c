"""A submit is one round trip when it guesses right, and as right when it does not."""

from __future__ import annotations

import hashlib
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from runner import wire
from runner.app import submit as use
from runner.errors import HostError, SpecError
from runner.spec import parse_submit
from runner.transfer import offer
from tests.contract.test_submit import LINKED, intents, named, spec_of
from tests.helpers.link import Link, make_link, program_size
from tests.helpers.local_worker import LocalWorker, read

KINDS = {wire.REQ: "REQ", wire.REP: "REP", wire.DATA: "DATA", wire.END: "END", wire.EVENT: "EVENT"}
ONE_TRIP = ["REP"]


@pytest.fixture
def far(
    shared_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[LocalWorker, Link]:
    """A worker that is up, as host `far` behind a link, with a project that it knows."""
    worker = shared_worker
    if not worker.dispatcher:
        worker.submit("true")
    worker.file("hosts/far.toml", LINKED)
    for number in range(30):
        worker.file(f"lib/m{number}.py", f"VALUE = {number}\n")
    link = make_link(tmp_path / "link", monkeypatch.setenv)
    worker.submit("true", words=("host=far",))
    link.forget()
    worker.report.notes.clear()
    return worker, link


def frames(data: bytes) -> list[tuple[str, Any]]:
    """What went one way on the streams of requests: (kind, table or bytes)."""
    found = []
    for kind, stream, payload in wire.FrameReader().feed(data):
        if kind == wire.PING or stream == 0:
            continue
        is_table = kind in (wire.REQ, wire.REP, wire.EVENT, wire.ERR)
        found.append((KINDS.get(kind, str(kind)), wire.read_json(payload) if is_table else payload))
    return found


def trip(link: Link) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """(what the client sent, what the worker answered) in the one conversation there was."""
    ((up, down),) = link.talks
    start = down.index(wire.MAGIC) + len(wire.MAGIC)
    return frames(up[program_size(up) :]), frames(down[start:])


def kinds(found: list[tuple[str, Any]]) -> list[str]:
    return [kind for kind, _ in found]


def submit(far: tuple[LocalWorker, Link], *command: str) -> str:
    return far[0].submit(*(command or ("true",)), words=("host=far",))


def code(worker: LocalWorker, run: str) -> dict[str, str]:
    """A run's copy of the library."""
    top = worker.workspace / "code" / run / "lib"
    return {path.name: path.read_text() for path in top.iterdir()}


def here(worker: LocalWorker) -> dict[str, str]:
    return {path.name: path.read_text() for path in (worker.project / "lib").iterdir()}


def test_unchanged_is_one_round_trip(far: tuple[LocalWorker, Link]) -> None:
    submit(far)
    sent, answered = trip(far[1])
    assert kinds(sent) == ["REQ", "END"]
    assert kinds(answered) == ONE_TRIP
    assert far[0].report.notes[0].split(";")[0].endswith(" files, unchanged")


def test_one_file_changed_is_one_round_trip(far: tuple[LocalWorker, Link]) -> None:
    worker, link = far
    worker.file("lib/m3.py", f"VALUE = 'new' # {random.random()}\n")
    (worker.project / "lib/m4.py").unlink()
    run = submit(far)
    sent, answered = trip(link)
    assert kinds(sent) == ["REQ", "DATA", "END", "DATA", "END"]
    assert kinds(answered) == ONE_TRIP
    assert len(sent[1][1]) + len(sent[3][1]) < 400
    assert code(worker, run) == here(worker)
    assert "2 changed, " in worker.report.notes[0]
    link.forget()
    submit(far)
    assert kinds(trip(link)[0]) == ["REQ", "END"], "what was sent is known to be there"


def test_the_first_of_a_small_project_is_one_round_trip(far: tuple[LocalWorker, Link]) -> None:
    worker, link = far
    (worker.project / ".runner/trees/far.tree").unlink()
    worker.file("lib/first.py", f"{random.random()}\n")
    run = submit(far)
    assert kinds(trip(link)[1]) == ONE_TRIP
    assert code(worker, run) == here(worker)
    (worker.project / "lib/first.py").unlink()


def test_a_snapshot_that_is_gone_is_asked_for(far: tuple[LocalWorker, Link]) -> None:
    worker, link = far
    for path in worker.workspace.glob(".runner/trees/*"):
        path.unlink()
    run = submit(far)
    sent, answered = trip(link)
    assert kinds(answered) == ["EVENT", "EVENT", "REP"]
    assert [table.get("need") for _, table in answered[:2]] == ["list", []]
    assert kinds(sent) == ["REQ", "END", "DATA", "END", "END"]
    assert code(worker, run) == here(worker)


def test_a_base_that_is_gone_is_asked_for(far: tuple[LocalWorker, Link]) -> None:
    worker, link = far
    worker.file("lib/m5.py", f"{random.random()}\n")
    for path in worker.workspace.glob(".runner/trees/*"):
        path.unlink()
    run = submit(far)
    answered = trip(link)[1]
    assert kinds(answered) == ["EVENT", "EVENT", "REP"]
    assert len(answered[1][1]["need"]) == 1, "what was packed before is asked for again"
    assert code(worker, run) == here(worker)


def test_contents_that_are_gone_are_asked_for(far: tuple[LocalWorker, Link]) -> None:
    """The base is there, and a content of it, which the new snapshot has too, is not."""
    worker, link = far
    worker.file("lib/m6.py", f"{random.random()}\n")
    for path in worker.workspace.glob(".runner/blobs/*/*"):
        path.unlink()
    run = submit(far)
    answered = trip(link)[1]
    assert kinds(answered) == ["EVENT", "REP"]
    assert len(answered[0][1]["need"]) > 25
    assert code(worker, run) == here(worker)


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_contents_of_an_unchanged_snapshot_heal(far: tuple[LocalWorker, Link], how: str) -> None:
    """The list is there, which promises its contents; they are not what it says any more."""
    worker, link = far
    spoilt = [blob_of(worker, worker.project / f"lib/m{number}.py") for number in (7, 8)]
    for blob in spoilt:
        spoil(blob, how)
    run = submit(far)
    answered = trip(link)[1]
    assert kinds(answered) == ["EVENT", "REP"]
    assert len(answered[0][1]["need"]) == 2
    assert code(worker, run) == here(worker)


def test_a_list_that_is_damaged_is_asked_for(far: tuple[LocalWorker, Link]) -> None:
    worker, link = far
    for path in worker.workspace.glob(".runner/trees/*"):
        path.write_text(path.read_text().replace("lib/m9.py", "lib/x9.py"))
    run = submit(far)
    assert kinds(trip(link)[1]) == ["EVENT", "EVENT", "REP"]
    assert code(worker, run) == here(worker)


def test_a_run_of_damaged_contents_does_not_start(far: tuple[LocalWorker, Link]) -> None:
    """Copies of a sweep's code are made when it starts: nobody can be asked for contents then."""
    worker, _ = far
    spoil(blob_of(worker, worker.project / "lib/m9.py"), "damaged")
    words = ("host=far", "each.N=1..2")
    first = worker.submit("true", "{N}", words=words)
    ended = worker.wait(first).status
    assert ended.outcome == "failed"
    assert ended.cause is not None and "of lib/m9.py was damaged" in str(ended.cause)
    again = worker.submit("true", "{N}", words=words)
    assert worker.wait(again).status.outcome == "done", "the same words brought it anew"
    assert code(worker, again) == here(worker)


def blob_of(worker: LocalWorker, path: Path) -> Path:
    """Where the worker keeps what a file holds."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return worker.workspace / ".runner/blobs" / digest[:2] / digest[2:]


def spoil(blob: Path, how: str) -> None:
    if how == "gone":
        blob.unlink()
        return
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[::-1])
    blob.chmod(0o444)


@pytest.mark.parametrize("how", ["torn", "other rows", "other digest", "other worker", "no file"])
def test_what_is_remembered_may_be_damaged(far: tuple[LocalWorker, Link], how: str) -> None:
    worker, _ = far
    path = worker.project / ".runner/trees/far.tree"
    head, _, rest = path.read_bytes().partition(b"\n")
    if how == "torn":
        path.write_bytes(head + b"\n" + rest[:-9])
    elif how == "other rows":
        path.write_bytes(head + b"\n" + zlib.compress(b'[["lib/zzz.py","f",420,1,"00"]]'))
    elif how == "other digest":
        digest = spec_of(worker, submit(far))["snapshot"]
        assert digest.encode() in head
        path.write_bytes(head.replace(digest.encode(), b"0" * 64) + b"\n" + rest)
    elif how == "other worker":
        path.write_bytes(head.replace(b'"w-', b'"w-other') + b"\n" + rest)
    else:
        path.unlink()
    worker.file("lib/m7.py", f"{random.random()}\n")
    run = submit(far)
    assert code(worker, run) == here(worker)
    assert intents(worker) == []


def test_much_is_asked_for_before_it_is_sent(
    far: tuple[LocalWorker, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, link = far
    monkeypatch.setattr(offer, "UNASKED_BYTES", 100_000)
    (worker.project / ".runner/trees/far.tree").unlink()
    rng = random.Random(random.random())
    for number in range(60):
        worker.file(f"lib/big{number}.py", f"x = '{rng.randbytes(6000).hex()}'\n")
    run = submit(far)
    sent, answered = trip(link)
    assert kinds(answered) == ["EVENT", "REP"]
    assert kinds(sent).count("END") == 2
    need = set(answered[0][1]["need"])
    unasked, *rest = [each for _, each in sent[kinds(sent).index("END") + 1 :]]
    asked = b"".join(rest)
    assert heads(unasked) & need, "some of it was under way already"
    assert not heads(unasked) & heads(asked), "and was not sent twice"
    assert need <= heads(unasked) | heads(asked)
    assert code(worker, run) == here(worker)
    for path in (worker.project / "lib").glob("big*"):
        path.unlink()


def heads(pack: bytes) -> set[str]:
    """The contents in a pack."""
    unpacker, found = wire.Unpacker(), set()
    while pack:
        unzip = zlib.decompressobj()
        for head, _ in unpacker.feed(unzip.decompress(pack)):
            found |= {head[0]} if head else set()
        pack = unzip.unused_data
    assert unpacker.idle
    return found


def test_what_does_not_shrink_travels_as_it_is(far: tuple[LocalWorker, Link]) -> None:
    worker, _ = far
    data = random.Random(random.random()).randbytes(300_000)
    (worker.project / "lib").mkdir(exist_ok=True)
    (worker.project / "lib/noise.bin").write_bytes(data)
    worker.file("lib/text.py", "x = 1\n" * 50_000)
    run = submit(far)
    lib = worker.workspace / "code" / run / "lib"
    assert (lib / "noise.bin").read_bytes() == data
    assert (lib / "text.py").read_text() == "x = 1\n" * 50_000
    for name in ("noise.bin", "text.py"):
        (worker.project / "lib" / name).unlink()


def test_a_large_file_that_changes_under_way_is_refused(
    far: tuple[LocalWorker, Link], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It comes after what was sent unasked: no run was made, the intent is closed."""
    worker, _ = far
    big = worker.project / "lib/large.bin"
    big.write_bytes(random.Random(random.random()).randbytes(offer.LARGEST_UNASKED + 1))

    class Meddling:
        def note(self, text: str) -> None: ...
        def done(self) -> None: ...
        def warn(self, text: str) -> None: ...
        def trouble(self, text: str) -> None: ...
        def step(self, text: str) -> None:
            if text == "sending the code":
                big.write_bytes(b"new")

    monkeypatch.setattr(worker, "report", Meddling())
    with pytest.raises(SpecError, match=r"large\.bin changed while it was sent"):
        worker.submit("true", words=("host=far", "name=changes"))
    big.unlink()
    assert named(worker, "changes") == set()
    assert intents(worker) == []


def test_an_intent_taken_up_stays_open_when_its_host_does_not_answer(
    far: tuple[LocalWorker, Link],
) -> None:
    """The process that left it may have handed it over: nobody can know, so nothing is closed."""
    worker, link = far
    words = ("host=far", "name=stays")
    begun: dict[str, Any] = {}

    def dies(ids: list[str]) -> None:
        (path,) = intents(worker)
        begun.update(read(path))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use.submit(worker.ctx, parse_submit(list(words), ["true"]), dies)
    worker.ctx.store.write_intent(begun).leave_open()
    first = str(begun["id"])
    link.take_down()
    with pytest.raises(HostError):
        worker.submit("true", words=words)
    assert [path.stem for path in intents(worker)] == [first]
    link.bring_up()
    assert worker.submit("true", words=words) == first
    assert named(worker, "stays") == {first}


def test_of_a_sweep_each_is_one_round_trip(far: tuple[LocalWorker, Link]) -> None:
    worker, link = far
    request = parse_submit(["host=far", "each.n=1..20"], ["true", "{n}"])
    use.submit(worker.ctx, request, lambda ids: None)
    sent, answered = trip(link)
    assert kinds(sent)[:4] == ["REQ", "END", "REQ", "END"]
    assert kinds(answered)[:20] == ["REP"] * 20
