from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import strangers

AT = 1_700_000_000.0


def card(index: int, used_mib: int | None = 3) -> dict[str, Any]:
    return {"index": index, "uuid": f"GPU-{index}", "used_mib": used_mib}


class Looks:
    """One watch of cards; each look is a moment later."""

    def __init__(self, before: tuple[dict[str, Any], ...] = ()) -> None:
        self.watch = strangers.Strangers(before)

    def look(
        self,
        now: float,
        *cards: dict[str, Any],
        apps: Any = (),
        held: Any = (),
        touched: Any = (),
    ) -> None:
        self.watch.look(cards, apps, set(held), set(touched), now, AT + now)

    @property
    def strangers(self) -> list[tuple[int, int, float]]:
        return [
            (row["index"], row["used_mib"], round(row["since"] - AT, 1))
            for row in self.watch.rows()
        ]

    @property
    def going(self) -> list[tuple[int, int]]:
        return [(row["index"], row["used_mib"]) for row in self.watch.going()]


def test_memory_on_a_card_that_nobody_leases_is_a_strangers() -> None:
    looks = Looks()
    looks.look(0, card(0, 201), card(1, 200), card(2, None))
    assert looks.strangers == [(0, 201, 0)]
    assert [looks.watch.blocks(f"GPU-{n}") for n in range(3)] == [True, False, False]
    looks.look(7, card(0, 5000), card(1), card(2))
    assert looks.strangers == [(0, 5000, 0)]


def test_who_computes_there_is_a_stranger_though_he_holds_little() -> None:
    looks = Looks()
    app = {"uuid": "GPU-1", "pid": None, "used_mib": None, "program": "python3"}
    looks.look(0, card(0), card(1, None), apps=[app])
    (row,) = looks.watch.rows()
    assert (row["index"], row["used_mib"], row["left"]) == (1, None, False)
    assert row["pids"] == [{"pid": None, "program": "python3", "user": None, "used_mib": None}]


def test_on_a_leased_card_memory_is_the_runs_own() -> None:
    looks = Looks()
    looks.look(0, card(0, 9000), held=["GPU-0"])
    assert not looks.watch.blocks("GPU-0")


def test_a_strangers_card_is_offered_again_only_after_it_looked_free_for_long() -> None:
    looks = Looks()
    looks.look(0, card(0, 3000))
    looks.look(1, card(0))
    looks.look(5.9, card(0))
    assert looks.strangers == [(0, 3, 0)]
    assert looks.watch.rows()[0]["left"] is True
    # the next epoch
    looks.look(6.1, card(0, 3000))
    assert looks.watch.rows()[0]["left"] is False
    looks.look(7, card(0))
    looks.look(11.9, card(0))
    assert looks.watch.blocks("GPU-0")
    looks.look(12.1, card(0))
    assert not looks.watch.blocks("GPU-0")
    # a new one is another one
    looks.look(20, card(0, 400))
    assert looks.strangers == [(0, 400, 20)]


def test_one_look_is_not_enough_however_late() -> None:
    looks = Looks()
    looks.look(0, card(0, 3000))
    looks.look(60, card(0))
    assert looks.watch.blocks("GPU-0")
    looks.look(66, card(0))
    assert not looks.watch.blocks("GPU-0")


def test_memory_that_a_run_left_is_going_and_then_a_strangers() -> None:
    looks = Looks()
    looks.look(0, card(0, 2000), touched=["GPU-0"])
    assert (looks.strangers, looks.going) == ([], [(0, 2000)])
    assert looks.watch.blocks("GPU-0")
    looks.look(9.9, card(0, 900))
    assert looks.going == [(0, 900)]
    looks.look(10.1, card(0, 900))
    assert (looks.strangers, looks.going) == ([(0, 900, 10.1)], [])


def test_memory_that_is_back_makes_the_card_free_at_once() -> None:
    looks = Looks()
    looks.look(0, card(0, 2000), touched=["GPU-0"])
    looks.look(0.2, card(0))
    assert not looks.watch.blocks("GPU-0")


def test_what_a_dispatcher_knew_the_next_one_knows() -> None:
    first = Looks()
    first.look(0, card(0, 3000))
    second = Looks(tuple(first.watch.rows()))
    second.look(3, card(0, 3100))
    assert second.strangers == [(0, 3100, 0)]
    third = Looks(tuple(second.watch.rows()))
    third.look(4, card(0))
    assert third.watch.blocks("GPU-0")


def test_a_card_that_is_gone_is_forgotten() -> None:
    looks = Looks()
    looks.look(0, card(0, 3000), card(1, 3000), card(2, 900), touched=["GPU-2"])
    looks.look(1, card(1, 3000))
    assert (looks.strangers, looks.going) == ([(1, 3000, 0)], [])


def app(pid: int, program: str | None = None) -> dict[str, Any]:
    return {"uuid": "GPU-0", "pid": pid, "used_mib": 7, "program": program}


def test_a_process_has_its_user_and_program() -> None:
    me = Path(f"/proc/{os.getpid()}/cmdline").read_bytes().split(b"\0")[0]
    name = os.path.basename(os.fsdecode(me))
    found = strangers.describe(app(os.getpid(), name))
    import pwd

    user = pwd.getpwuid(os.getuid()).pw_name
    assert found == {"pid": os.getpid(), "program": name, "user": user, "used_mib": 7}


def proc_of(folder: Path, pid: int, program: str, uid: int, is_first: bool) -> str:
    """A /proc with one process; is_first: as outside all containers."""
    place = folder / str(pid)
    place.mkdir()
    (place / "cmdline").write_bytes(f"/opt/{program}\0-x".encode())
    (place / "status").write_text(f"Name:\tx\nUid:\t{uid}\t0\t0\t0\n")
    own = folder / "self" / "ns"
    own.mkdir(parents=True)
    if is_first:
        (own / "pid").symlink_to("/proc/1/ns/pid")
    else:
        (own / "pid").touch()
    return str(folder)


def test_an_account_without_name_is_its_number(tmp_path: Path) -> None:
    proc = proc_of(tmp_path, 12, "train", 987654, is_first=False)
    assert strangers.describe(app(12, "train"), proc)["user"] == "uid 987654"


def test_another_process_of_that_number_in_a_container_is_not_taken_for_it(tmp_path: Path) -> None:
    proc = proc_of(tmp_path, 12, "sshd", 0, is_first=False)
    assert strangers.describe(app(12, "train"), proc) == {
        "pid": 12,
        "program": "train",
        "user": None,
        "used_mib": 7,
    }
    assert strangers.describe(app(12), proc)["user"] is None


def test_a_process_that_cannot_be_seen_is_still_one(tmp_path: Path) -> None:
    proc = proc_of(tmp_path, 12, "train", 0, is_first=False)
    assert strangers.describe(app(13, "train"), proc)["program"] == "train"
