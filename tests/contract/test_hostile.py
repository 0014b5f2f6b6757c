"""A worker that lies: every command says so in a line, writes nothing where it must not, and ends.

What a real worker told each command is told again with one lie in it. Which words a command finds
is its own affair; what is promised is an exit status of the list, no bug, no traceback, nothing
that plays with a terminal, nothing outside the run's own folder of results, and an end.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import resource
import shutil
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner import wire
from tests.helpers.hostile_worker import Act, frame_act, hello_act, put_hostile
from tests.helpers.local_worker import LocalWorker
from tests.helpers.told import HEAD, HOST, Told, changed, make_told, paths_in
from tests.helpers.typed import Said, typed

SEED = 6
SAMPLE = 4
"""Changed answers of each command that are always tried."""
MANY = 400
"""Drawn of all, for each seed, with --slow."""
LIMIT_S = 20.0
STATUSES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
SCARE = "\x1b[31mred\x1b]0;title\x07 \u202egnp.exe \u200bzero\u2028line \r\x9b2J \x00"
PAINT = re.compile(r"\x1b\[[0-9;]*m|\r?\x1b\[K")
"""What the commands themselves send to a terminal."""
VALUES: tuple[Any, ...] = (
    None,
    [],
    {},
    True,
    -1,
    2**63,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "../x",
    "/etc/passwd",
    SCARE,
    "\udc80\ud800",
    "x" * 100_000,
    [None],
    [{}],
    [[]],
    {"": None},
    {SCARE: SCARE},
)


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    with pytest.MonkeyPatch.context() as patch:
        found = make_told(patch.setenv, patch.chdir)
    try:
        yield found
    finally:
        shutil.rmtree(found.project, ignore_errors=True)


@dataclass
class Stage:
    """A copy of the project, and the worker behind its host."""

    told: Told
    top: Path
    set_env: Callable[[str, str], None]

    @property
    def project(self) -> Path:
        return self.top / "project"

    def set_up(self) -> None:
        """Everything as it was."""
        shutil.rmtree(self.project, ignore_errors=True)
        shutil.copytree(self.told.project, self.project)
        kept = self.project / "results" / self.told.done / "work" / "mine"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("mine")
        os.chdir(self.project)

    def right(self, command: str) -> dict[str, list[list[Act]]]:
        """What the real worker answered."""
        return {
            verb: [[_act(kind, payload) for kind, payload in answer] for answer in answers]
            for verb, answers in self.told.answers[command].items()
        }

    def type(
        self,
        command: str,
        plays: dict[str, list[list[Act]]],
        opening: list[Act] | None = None,
        *,
        terminal: bool = False,
        json: bool = False,
    ) -> Said:
        """The command, typed to a worker that does this; what always holds is checked."""
        put_hostile(self.top, self.set_env, plays, opening)
        before = _everything(self.top, self.told.done)
        words = (*self.told.commands[command], *(["--json"] if json else []))
        said = typed(*words, terminal=terminal, limit_s=LIMIT_S)
        check(said, is_log=command.startswith("tail"))
        assert _everything(self.top, self.told.done) == before, "something was written elsewhere"
        return said


@pytest.fixture
def stage(
    told: Told,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Stage:
    made = Stage(told, tmp_path, monkeypatch.setenv)
    monkeypatch.chdir(tmp_path)  # back to where we were in the end
    made.set_up()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("runner.app.submit.RETRY_WAITS_S", (0.01,), raising=False)
    monkeypatch.setattr("runner.app.tail.RETRY_WAITS_S", (0.01,), raising=False)
    # as often as ever, but at once
    monkeypatch.setattr("runner.app.pull.RETRY_WAITS_S", (0.01,) * 4)
    monkeypatch.setattr("runner.app.retrying.LOOK_WAITS_S", (0.01,) * 2)
    monkeypatch.setattr("runner.app.retrying.ACT_WAITS_S", (0.01,) * 3)
    return made


def _act(kind: int, payload: bytes) -> Act:
    return frame_act(kind, payload)


def _everything(top: Path, run: str) -> dict[str, object]:
    """Every file that no command has to do with: what it is and holds."""
    found: dict[str, object] = {}
    for path in top.rglob("*"):
        name = str(path.relative_to(top))
        parts = path.relative_to(top).parts
        of_ours = parts[0] == "bin" or parts[:2] == ("project", ".runner")
        of_pull = parts[:3] == ("project", "results", run)
        if of_ours or (of_pull and not name.endswith("/mine")):
            continue
        found[name] = path.read_bytes() if path.is_file() else path.is_symlink()
    return found


def check(said: Said, *, is_log: bool = False) -> None:
    """What holds whatever a worker says."""
    assert said.status in STATUSES, said
    assert "Traceback" not in said.err and "this is a bug" not in said.err, said.err
    assert len(said.err) < 20_000, f"{len(said.err)} characters of error"
    for text in (said.err, *([] if is_log else [said.text])):
        bad = {char for char in PAINT.sub("", text).replace("\n", "") if not _is_plain(char)}
        assert not bad, f"{sorted(map(ascii, bad))} on a terminal: {text[:500]!r}"
    if said.status in (3, 4, 5, 8, 9):
        assert HOST in said.err, said.err


def _is_plain(char: str) -> bool:
    return char.isprintable() and unicodedata.category(char) not in ("Cf", "Cc", "Zl", "Zp")


# -- every value of every answer, changed ---------------------------------------------------------


def _lies(told: Told) -> Iterator[tuple[str, str, int, int, tuple[Any, ...], Any]]:
    """(command, verb, which time, which frame, path in it, value): in a fixed order."""
    for command, verbs in told.answers.items():
        for verb, answers in verbs.items():
            for time_, answer in enumerate(answers[:2]):
                for number, (kind, payload) in enumerate(answer):
                    body = _table(kind, payload)
                    for path in paths_in(body) if body is not None else ():
                        for value in VALUES:
                            yield command, verb, time_, number, path, value


def _table(kind: int, payload: bytes) -> Any:
    """What a frame holds, if it is a table or rows."""
    try:
        return json.loads(zlib.decompress(payload) if kind == wire.DATA else payload)
    except (ValueError, zlib.error):
        return None


def _tell(stage: Stage, lie: tuple[str, str, int, int, tuple[Any, ...], Any], draw: Any) -> None:
    command, verb, time_, number, path, value = lie
    kind, payload = stage.told.answers[command][verb][time_][number]
    body = changed(_table(kind, payload), path, value)
    plays = stage.right(command)
    plays[verb][time_][number] = frame_act(kind, body)
    try:
        stage.type(command, plays, terminal=draw.random() < 0.5)
    except AssertionError as error:
        text = f"{command}: {verb}[{time_}] frame {number} {path} = {value!r:.80}: {error!s:.600}"
        raise AssertionError(text) from None


def _tell_all(stage: Stage, lies: list[Any]) -> None:
    draw = random.Random(SEED)
    wrong = []
    for lie in lies:
        try:
            _tell(stage, lie, draw)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, f"{len(wrong)} of {len(lies)}:\n" + "\n".join(wrong[:30])


def test_any_value_of_any_answer_may_be_a_lie(stage: Stage) -> None:
    draw = random.Random(SEED)
    lies: dict[str, list[Any]] = {}
    for lie in _lies(stage.told):
        lies.setdefault(lie[0], []).append(lie)
    chosen = [lie for found in lies.values() for lie in draw.sample(found, min(SAMPLE, len(found)))]
    _tell_all(stage, chosen)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_values_of_answers_may_be_lies(stage: Stage, seed: int) -> None:
    _tell_all(stage, random.Random(seed).sample(list(_lies(stage.told)), MANY))


# -- frames that are none, or come when they must not ---------------------------------------------


def frame(kind: int, payload: bytes = b"", stream: int = 1, size: int | None = None) -> bytes:
    return HEAD.pack(len(payload) if size is None else size, kind, stream) + payload


DEEP = b"[" * 100_000
FLOOD = 50_000
BROKEN: dict[str, list[Act]] = {
    "a frame of 4 GB": [["raw", frame(wire.REP, size=2**32 - 1).hex()]],
    "a frame of 16 MiB and one byte": [["raw", frame(wire.REP, size=(16 << 20) + 1).hex()]],
    "kind 0": [["raw", frame(0).hex()]],
    "kind 255": [["raw", frame(255).hex()]],
    "half a head": [["raw", frame(wire.REP)[:5].hex()], ["end"]],
    "half a frame": [["raw", frame(wire.REP, b"{", size=10).hex()], ["end"]],
    "nothing": [["end"]],
    "no JSON": [frame_act(wire.REP, b"\xff")],
    "an empty answer": [frame_act(wire.REP, b"")],
    "no table": [frame_act(wire.REP, b"[]")],
    "an empty table": [frame_act(wire.REP, {})],
    "deep JSON": [frame_act(wire.REP, b'{"run":' + DEEP)],
    "a long table": [frame_act(wire.REP, b'{"run":"' + b"x" * 15_000_000 + b'"}')],
    "a huge number": [frame_act(wire.REP, b'{"run":' + b"9" * 10_000 + b"}")],
    "a key twice": [frame_act(wire.REP, b'{"run":{},"run":[]}')],
    "deep rows": [frame_act(wire.DATA, zlib.compress(DEEP)), frame_act(wire.REP, {})],
    "rows that are no rows": [frame_act(wire.DATA, zlib.compress(b"{}")), frame_act(wire.REP, {})],
    "rows that are no zlib": [frame_act(wire.DATA, b"PK\3\4"), frame_act(wire.REP, {})],
    "half of zlib": [frame_act(wire.DATA, zlib.compress(b"[]")[:5]), frame_act(wire.REP, {})],
    "an event that is no table": [frame_act(wire.EVENT, b"[]"), frame_act(wire.REP, {})],
    "an event and an end": [frame_act(wire.EVENT, {}), ["end"]],
    "an end without an answer": [frame_act(wire.END), ["end"]],
    "a refusal that is no table": [frame_act(wire.ERR, b"7")],
    "an empty refusal": [frame_act(wire.ERR, {})],
    "a refusal that scares": [frame_act(wire.ERR, {"code": SCARE, "text": SCARE})],
    "a refusal of other types": [frame_act(wire.ERR, {"code": [1], "text": {"a": [SCARE]}})],
    "a long refusal": [frame_act(wire.ERR, {"code": "bug", "text": "x" * 5_000_000})],
    "a refusal of many lines": [frame_act(wire.ERR, {"code": "bug", "text": "line\n" * 5_000})],
    "a refusal for all": [frame_act(wire.ERR, {"code": "no-worker", "text": SCARE}, 0)],
    **{
        f"refused: {code}": [frame_act(wire.ERR, {"code": code, "text": SCARE, "errno": "x"})]
        for code in ("conflict", "changed", "no-space", "unknown-run", "no-gpu", "os", "version")
    },
}
HARMLESS = ("an empty table", "a key twice", "a huge number", "an event that is no table")
"""To a command that does not read it."""
SOME = ("ps", "status", "pull", "tail", "submit", "why", "du", "version", "cancel", "wait")


@pytest.mark.parametrize("lie", BROKEN)
def test_answers_that_are_none(stage: Stage, lie: str) -> None:
    draw = random.Random(f"{SEED} {lie}")
    ends = ["end"] in BROKEN[lie]
    for command in draw.sample([name for name in SOME if not (ends and name == "wait")], 3):
        plays = stage.right(command)
        verb = next(iter(plays))
        plays[verb] = [BROKEN[lie]]
        said = stage.type(command, plays, terminal=draw.random() < 0.5)
        assert said.status or lie in HARMLESS, said


@pytest.mark.parametrize("command", SOME)
def test_noise_around_the_right_answer_changes_nothing(stage: Stage, command: str) -> None:
    right = stage.type(command, stage.right(command))
    stage.set_up()
    noise: list[Act] = [
        ["often", FLOOD, frame_act(wire.PING, b"", 0)],
        ["often", 50, frame_act(wire.DATA, b"x" * 100_000, 77)],
        frame_act(wire.PING, b"x" * 1000, 5),
        frame_act(wire.REP, b"{}", 99),
        frame_act(wire.EVENT, {"wire": 1}, 0),
        frame_act(wire.REP, {}, 0),
    ]
    plays = stage.right(command)
    for answers in plays.values():
        for answer in answers:
            answer[:0] = noise
            answer += [frame_act(wire.REP, {}), frame_act(wire.DATA, b"late"), frame_act(wire.END)]
            noise = []
    said = stage.type(command, plays)
    assert said.status == right.status, said.err
    if not command.startswith("submit"):
        assert _timeless(said.text) == _timeless(right.text)


def _timeless(text: str) -> str:
    # columns are as wide as the times in them
    return re.sub(r" +", " ", re.sub(r"\b[0-9.]+ ?(s|m|h|ms|MB/s)\b", "", text))


HELLOS: dict[str, list[Act]] = {
    "no JSON": [frame_act(wire.EVENT, b"hello", 0)],
    "an answer": [frame_act(wire.REP, {}, 0)],
    "bytes": [frame_act(wire.DATA, b"hello", 0)],
    "empty": [frame_act(wire.EVENT, {}, 0)],
    "none": [],
    "wire 2": [hello_act(wire=2)],
    "wire of another type": [hello_act(wire=[SCARE])],
    "twice": [hello_act(), hello_act(worker="w-other")],
    "a time that is none": [["frame", wire.EVENT, 0, b'{"now":1e999,"wire":1}'.hex()]],
    "a time of a string": [hello_act(now=SCARE)],
    "everything scares": [
        hello_act(version=SCARE, worker=SCARE, runtime=SCARE, image=SCARE, python=SCARE)
    ],
    "everything is a list": [hello_act(version=[1], worker=[2], runtime={}, image=[3], python=[])],
    "long": [hello_act(worker="w" * 1_000_000, version="v" * 1_000_000)],
}


@pytest.mark.parametrize("lie", HELLOS)
def test_hellos(stage: Stage, lie: str) -> None:
    for command in ("version", "submit", "ps"):
        opening = [["raw", wire.MAGIC.hex()], *HELLOS[lie]]
        if lie == "none":
            opening.append(["end"])
        stage.type(command, stage.right(command), opening, terminal=command == "version")


JUNK: dict[str, list[Act]] = {
    "too much": [["often", 400, ["raw", (b"junk " * 200).hex()]]],
    "that scares, and an end": [["raw", SCARE.encode("utf-8", "surrogatepass").hex()], ["end"]],
    "one long line, and an end": [["raw", (b"x" * 200_000).hex()], ["end"]],
    "and an end": [["end"]],
    "asking for the program for ever": [["often", -1, ["raw", b"runner-boot/1 need\n".hex()]]],
}


@pytest.mark.parametrize("lie", JUNK)
def test_junk_before_the_worker_speaks(stage: Stage, lie: str) -> None:
    said = stage.type("status", stage.right("status"), JUNK[lie])
    assert said.status in (0, 3, 4, 5)
    said = stage.type("cancel", stage.right("cancel"), JUNK[lie], terminal=True)
    assert said.status in (3, 4, 5)


def test_bytes_that_drip(stage: Stage) -> None:
    """One byte now and then is no sign of life: a frame has to get on."""
    plays = {"runs": [[["slow", frame(wire.REP, b"{}" + b" " * 1000).hex(), 0.9]]]}
    assert "no answer" in stage.type("status", plays).err


@pytest.mark.parametrize(("command", "verb"), [("ps", "runs"), ("du", "usage"), ("pull", "list")])
def test_what_never_ends_is_given_up(stage: Stage, command: str, verb: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    big = frame_act(wire.DATA, random.Random(1).randbytes(1 << 18))
    plays = {**stage.right(command), verb: [[["often", -1, big]]]}
    said = stage.type(command, plays)
    assert "without end" in said.err
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 700_000, f"{grown} kB more"


def test_events_that_never_end(stage: Stage) -> None:
    event = frame_act(wire.EVENT, {"x": "y" * 100_000})
    plays = {**stage.right("ps"), "runs": [[["often", -1, event]]]}
    assert "without end" in stage.type("ps", plays).err


def test_rows_that_are_a_bomb(stage: Stage) -> None:
    zipper = zlib.compressobj(9)
    bomb = b"".join(zipper.compress(bytes(1 << 20)) for _ in range(400)) + zipper.flush()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plays = {**stage.right("ps"), "runs": [[frame_act(wire.DATA, bomb), frame_act(wire.REP, {})]]}
    said = stage.type("ps", plays)
    assert "cannot be read" in said.err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 900_000


# -- another run ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "why", "tail", "pull", "wait", "cancel", "submit"])
def test_an_answer_for_another_run(stage: Stage, command: str) -> None:
    told = stage.told
    own, other = told.done, "zzz-99999"
    if command == "cancel":
        own = told.running
    plays = stage.right(command)
    for answers in plays.values():
        for answer in answers:
            for act in answer:
                kind, payload = act[1], bytes.fromhex(act[3])
                if kind == wire.DATA and _table(kind, payload) is not None:
                    text = json.dumps(_table(kind, payload)).replace(own, other)
                    act[3] = zlib.compress(text.encode()).hex()
                elif kind != wire.DATA:
                    act[3] = payload.replace(own.encode(), other.encode()).hex()
    said = stage.type(command, plays)
    records = {path.stem for path in (stage.project / ".runner" / "runs").glob("*.json")}
    assert said.status in (5, 9), said
    assert other not in records


def test_a_host_takes_over_no_run_of_another(stage: Stage) -> None:
    """Whatever it tells of it: what is asked of the run goes on to the host that has it."""
    hosts = stage.project / "hosts"
    (hosts / "a.toml").write_text((hosts / f"{HOST}.toml").read_text())
    record = stage.project / ".runner" / "runs" / f"{stage.told.done}.json"
    before = record.read_bytes()
    put_hostile(stage.top, stage.set_env, stage.right("ps"))
    said = typed("ps", "host=a", terminal=True)
    check(said)
    assert stage.told.done not in said.text
    assert record.read_bytes() == before


# -- names and sizes of files ---------------------------------------------------------------------

NAMES: tuple[Any, ...] = (
    *("../x", "a/../../x", "/etc/x", "", ".", "..", "a/.", "./a", "a//b", "a/", "/", "a\0b"),
    *("a/" * 3000 + "b", "x" * 300, "ü" * 200, "\ud800", 7, None, ["a"], {"a": 1}, True),
)
KINDS: tuple[Any, ...] = ("", ".", "..", ".parts", "results", "work/..", "/", 7, None, ["work"])
SIZES: tuple[Any, ...] = (-1, 2**63, 2**70, 10**400, 1.5, "3", None, [], True, float("nan"))


def listing(*rows: Any) -> list[Act]:
    body = {"spec": "{}", "state": "{}", "skipped": []}
    return [frame_act(wire.DATA, list(rows)), frame_act(wire.REP, body)]


def row_of(stage: Stage, kind: Any, path: Any, size: Any = 3, mtime: Any = 1) -> list[Any]:
    """A row of a listing as the real worker sends them, of another file."""
    frames = stage.told.answers["pull"]["list"][0]
    rows = [row for frame in frames if frame[0] == wire.DATA for row in _table(*frame)]
    like = next(row for row in rows if row[:2] == ["work", "out/result"])
    changed_row = [kind, path, size, mtime, *like[4:]]
    # what else it says of the size must not be what gives it away
    return [size if value == like[2] else value for value in changed_row]


def lists_alone(stage: Stage, *rows: list[Any]) -> Said:
    """A pull of these, to a worker that sends none."""
    plays = {**stage.right("pull"), "list": [listing(*rows)], "files": [[frame_act(wire.REP, {})]]}
    return stage.type("pull", plays)


def test_rows_as_they_must_be_are_taken(stage: Stage) -> None:
    """Else the tests below would find any row refused."""
    good = row_of(stage, "work", "out/result", 9)
    plays = {**stage.right("pull"), "list": [listing(good)]}
    assert "names" not in stage.type("pull", plays).err


def results(stage: Stage) -> set[str]:
    top = stage.project / "results" / stage.told.done
    found = {str(path.relative_to(top)) for path in top.rglob("*") if not path.is_dir()}
    return found - {"work/mine", "spec.json", "state.json"}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_names_that_are_none(stage: Stage, name: Any) -> None:
    said = lists_alone(stage, row_of(stage, "work", "good"), row_of(stage, "work", name))
    assert said.status in (2, 5, 8), said
    assert HOST in said.err or stage.told.done in said.err
    assert not results(stage)


@pytest.mark.parametrize("kind", KINDS, ids=ascii)
def test_kinds_that_are_none(stage: Stage, kind: Any) -> None:
    assert lists_alone(stage, row_of(stage, kind, "a")).status == 5
    assert not results(stage)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: ascii(size)[:20])
def test_sizes_that_are_none(stage: Stage, size: Any) -> None:
    assert lists_alone(stage, row_of(stage, "work", "a", size)).status in (2, 5)
    assert lists_alone(stage, row_of(stage, "work", "a", 3, size)).status in (2, 5)
    assert not results(stage)


def test_more_than_fits_on_this_disk(stage: Stage) -> None:
    """What is said to be larger than the disk is not even asked for."""
    said = lists_alone(stage, [*row_of(stage, "work", "a", 2**45)[:-1], 2**45])
    assert said.status == 2, said
    assert "room" in said.err or "space" in said.err.lower(), said.err


COLLIDING = (
    (["work", "a"], ["work", "a"]),
    (["work", "a"], ["work", "a/b"]),
    (["work", "a/b"], ["work", "a"]),
    (["work", "a/b/c"], ["work", "a/b"]),
    (["work", "a"], ["work", "a/"]),
)


@pytest.mark.parametrize("pair", COLLIDING, ids=str)
def test_names_that_collide(stage: Stage, pair: Any) -> None:
    said = lists_alone(stage, *(row_of(stage, *row) for row in pair))
    assert said.status == 5, said
    assert not results(stage)


def test_names_of_our_own_files_are_below_their_kind(stage: Stage) -> None:
    """The kind comes first, so no name reaches what a pull keeps for itself."""
    names = (".parts/x", "spec.json", "state.json", "code.diff", "../work/x")
    said = lists_alone(stage, *(row_of(stage, "work", name, 0) for name in names))
    assert said.status in (5, 8)
    top = stage.project / "results" / stage.told.done
    assert not (top / ".parts" / "x").exists()


def test_what_is_in_the_way_here_stays(stage: Stage) -> None:
    """A folder where a file is to be, a file where a folder is to be, a link anywhere."""
    top = stage.project / "results" / stage.told.done / "work"
    outside = stage.project / "outside"
    outside.mkdir()
    for name, make in {
        "folder": lambda path: path.mkdir(),
        "file": lambda path: path.write_text("mine"),
        "link": lambda path: path.symlink_to(outside),
        "loop": lambda path: path.symlink_to(path),
    }.items():
        make(top / name)  # type: ignore[no-untyped-call]
    for name in ("folder", "file/x", "link/x", "loop/x", "loop", "link"):
        said = lists_alone(stage, row_of(stage, "work", name, 0))
        assert said.status in (0, 2, 5, 8), (name, said)
    assert not list(outside.iterdir())
    assert (top / "file").read_text() == "mine"
    assert (top / "folder").is_dir() and not list((top / "folder").iterdir())
    assert (top / "link").is_symlink() and (top / "loop").is_symlink()


# -- what a submit is asked for -------------------------------------------------------------------


def own_digest(stage: Stage) -> str:
    return hashlib.sha256((stage.project / "job.py").read_bytes()).hexdigest()


NEEDS: dict[str, Callable[[str], Any]] = {
    "a content that is not there": lambda own: ["0" * 64],
    "one content many times": lambda own: [own] * 20_000,
    "a path": lambda own: ["/etc/passwd"],
    "a number": lambda own: [7],
    "tables": lambda own: [{}],
    "text": lambda own: own,
    "other words": lambda own: "everything",
    "nothing it knows": lambda own: None,
}


@pytest.mark.parametrize("lie", NEEDS)
def test_a_submit_is_asked_for_what_it_has_not(stage: Stage, lie: str) -> None:
    event = frame_act(wire.EVENT, {"need": NEEDS[lie](own_digest(stage))})
    for before in ([], [frame_act(wire.EVENT, {"need": "list"})]):
        said = stage.type("submit", {"submit": [[*before, event]]})
        assert said.status in (5, 9), said
        assert HOST in said.err
        stage.set_up()


def test_a_submit_is_asked_for_the_same_for_ever(stage: Stage) -> None:
    for body in ({"need": "list"}, {"need": []}, {"need": [own_digest(stage)]}):
        said = stage.type("submit", {"submit": [[["often", -1, frame_act(wire.EVENT, body)]]]})
        assert said.status in (5, 9), said
        stage.set_up()


# -- files that a job makes -----------------------------------------------------------------------

TRAPS = """
import os
c, l = os.environ["RUNNER_CHECKPOINTS"], os.environ["RUNNER_LOGS"]
os.makedirs(c + "/step-1")
open(c + "/step-1/model.pt", "w").write("weights")
for top in (c, c + "/step-1", l, "."):
    os.symlink("/etc/passwd", top + "/link")
    os.symlink("/etc", top + "/folder")
    os.symlink("/dev/zero", top + "/zero")
    os.symlink(".", top + "/loop")
    os.mkfifo(top + "/pipe")
os.makedirs("made"); open("made/a\\nb \\x1b[2J", "w").write("odd")
open(b"made/\\xff\\xfe", "w").write("bytes")
"""
SWAPS = """
import os, time
os.makedirs("swap.real"); open("swap.real/passwd", "w").write("own")
os.rename("swap.real", "swap")
print("begun", flush=True)
while True:
    os.rename("swap", "swap.real")
    os.symlink("/etc", "swap")
    time.sleep(0.001)
    os.unlink("swap")
    os.rename("swap.real", "swap")
    time.sleep(0.001)
"""


def below(top: Path) -> dict[bytes, bytes]:
    """Every file there, links not followed."""
    found = {}
    for folder, _, names in os.walk(os.fsencode(top)):
        for name in names:
            path = os.path.join(folder, name)
            assert not os.path.islink(path), path
            assert os.path.isfile(path), path
            with open(path, "rb") as file:
                found[os.path.relpath(path, os.fsencode(top))] = file.read()
    return found


def test_traps_that_a_job_lays(local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(local_worker.project)
    run = local_worker.python(TRAPS)
    assert local_worker.wait(run).status.outcome == "done", local_worker.log(run)
    said = typed("pull", run, terminal=True)
    check(said)
    assert said.status == 0, said
    found = below(local_worker.project / "results" / run)
    assert found.pop(b"work/made/a\nb \x1b[2J") == b"odd"
    assert found.pop(b"work/made/\xff\xfe") == b"bytes"
    assert found.pop(b"checkpoints/step-1/model.pt") == b"weights"
    assert set(found) == {b"logs/rank-0.log", b"spec.json", b"state.json"}


def test_a_folder_that_becomes_a_link_while_it_is_pulled(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(local_worker.project)
    run = local_worker.python(SWAPS)
    local_worker.until_logged(run, "begun")
    for _ in range(10):
        check(typed("pull", run))
        found = below(local_worker.project / "results" / run / "work")
        assert set(found.values()) <= {b"own"}
        shutil.rmtree(local_worker.project / "results")
    local_worker.cancel(run, now=True)
