"""What `top` shows of hosts and runs, on any width."""

from __future__ import annotations

import itertools
import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from runner.app.reports import Card, HostFacts, HostNow, RunNow, Top
from runner.app.results import Contact, RunOnHost
from runner.show import documents
from runner.show.live import (
    Place,
    cards_text,
    document,
    left_s,
    owner,
    page_lines,
    run_lines,
    screen_lines,
    silence,
)
from runner.show.screen import Paint, width
from runner.wire import RunStatus

NOW = 1_800_000_000.0
NASTY = "\x1b[2J\x1b]0;x\x07\u202egnp\x00\n" + "日" * 8
A10 = Card(0, "GPU-0", "NVIDIA A10", 23040.0, 20583.0, 97.0, run="dqn-9x2mp.1")
IDLE = Card(1, "GPU-1", "NVIDIA A10", 23040.0, 3.0, 0.0)
FACTS = HostFacts((A10, IDLE), 0.5, None, 8, 1, 9e11, 8.12e11, 1e10, 1, 3)
PLAIN = Paint()


def run(run_id: str = "dqn-7k3fa", /, contact: Contact | None = None, **status: Any) -> RunNow:
    body: dict[str, Any] = {"state": "running", "project": {"id": "p-1", "name": "p"}}
    body.update(attempt=1, submitted_at=NOW - 700, started_at=NOW - 600, job="dqn")
    rate = status.pop("rate", None)
    told = RunStatus(id=run_id, **{**body, **status})
    return RunNow(RunOnHost(told, contact or Contact("gpu1", at=NOW)), rate)


def host(name: str = "gpu1", facts: HostFacts | None = FACTS, **contact: Any) -> HostNow:
    return HostNow(Contact(name, at=NOW, **contact), facts)


def page(found: Top, columns: int | None = None, everyone: bool = False) -> list[str]:
    return page_lines(found, NOW, everyone=everyone, columns=columns, paint=PLAIN)


def test_hosts_and_runs() -> None:
    going = run(
        step=31_000,
        params={"steps": 50_000},
        metrics={"reward": 212.0},
        rate=38.0,
        gpus=[{"index": 0}],
        name="base",
    )
    waiting = run(
        "dqn-b2x7m", state="queued", attempt=0, started_at=None, reason="next after dqn-7k3fa"
    )
    silent = host("gpu3", None, state="unreachable", error="gpu3: the link was lost")
    assert page(Top((host(), silent), (going, waiting))) == [
        "HOST  RUNS  QUEUE  SLOTS    FREE  GPUS",
        "gpu1     1      3    1/8  812 GB  0 97% 20.1/22.5 GiB dqn-9x2mp.1  1 0% 0.0/22.5 GiB free",
        "gpu3     -      -      -       -  no answer since "
        f"{time.strftime('%H:%M', time.localtime(NOW))} (the link was lost)",
        "",
        "RUN        STATE    HOST  GPU    STEPS       RETURN  STEPS/S  LEFT  TIME  NOTE",
        "dqn-7k3fa  RUNNING  gpu1  0    31k/50k  62%     212     38.0    8m   10m  base",
        "dqn-b2x7m  QUEUED   gpu1                                             11m  "
        "next after dqn-7k3fa",
    ]


def test_projects_are_named_where_all_are_shown() -> None:
    for columns in (80, None):
        lines = page(Top((), (run(),)), columns, everyone=True)
        assert lines[2].split()[:2] == ["RUN", "PROJECT"] and lines[3].split()[1] == "p"


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (None, "0 97% 20.1/22.5 GiB dqn-9x2mp.1  1 0% 0.0/22.5 GiB free"),
        (60, "0 97% 20.1/22.5 GiB dqn-9x2mp.1  1 0% 0.0/22.5 GiB free"),
        (54, "0 97% dqn-9x2mp.1  1 0% free"),
        (20, "0 97%  1 0%"),
        (10, "1 of 2 in use, 48%"),
    ],
)
def test_cards_are_told_as_long_as_there_is_room(room: int | None, text: str) -> None:
    assert cards_text(FACTS, room) == text


def test_cards_of_which_little_is_known() -> None:
    assert cards_text(HostFacts(), None) == "-"
    assert cards_text(HostFacts(cards_age_s=0.1), None) == "none"
    mute = Card(None, None, None, None, None, None)
    assert cards_text(HostFacts((mute,), 65.0), None) == "? - free (1m ago)"
    assert cards_text(HostFacts((replace(mute, index=1, used_mib=500.0),), 1.0), None) == (
        "1 - 500 MiB in use"
    )


def test_whose_a_card_is() -> None:
    assert owner(IDLE) == "free"
    assert owner(replace(IDLE, worker="cu124")) == "a run (cu124)"
    assert owner(replace(A10, worker="cu124")) == "dqn-9x2mp.1 (cu124)"
    assert owner(replace(IDLE, stranger="ann's python3")) == "ann's python3"
    assert owner(replace(IDLE, used_mib=3000.0)) == "in use"


def test_what_is_wrong_with_a_host_is_said() -> None:
    broken = replace(FACTS, cards=(), cards_problem="nvidia-smi exits 9", drained=True)
    lines = page(Top((host(facts=broken), HostNow(Contact("new"), connecting=True)), ()))
    assert lines[1].endswith("  drained; nvidia-smi exits 9")
    assert lines[2].endswith("  connecting")
    gone = Contact("b", "no-worker", NOW, "b: there is no worker there yet")
    assert silence(gone, NOW) == "there is no worker there yet"
    assert silence(Contact("c", "unreachable"), NOW) == "no answer"
    refused = Contact("d", "unreachable", None, "d: key refused for drl", refused=True)
    assert silence(refused, NOW) == "key refused for drl"


def test_a_disk_below_its_reserve_is_yellow() -> None:
    low = host(facts=replace(FACTS, disk_free=5e9))
    line = page_lines(Top((low,), ()), NOW, everyone=False, columns=None, paint=Paint(True))[1]
    assert re.search("\x1b\\[33m *5 GB\x1b", line)


@pytest.mark.parametrize(
    ("status", "rate", "left"),
    [
        ({"step": 31_000, "params": {"steps": 50_000}}, 38.0, 500.0),
        ({"step": 31_000}, 38.0, None),
        ({"step": 60_000, "params": {"steps": 50_000}}, 38.0, 0.0),
        # without a speed of now: as `ps` reckons
        ({"step": 25_000, "params": {"steps": 50_000}, "progress_at": NOW}, None, 600.0),
        ({"step": 10, "params": {"steps": 50}, "state": "ended", "outcome": "failed"}, 1.0, None),
    ],
)
def test_time_left(status: dict[str, Any], rate: float | None, left: float | None) -> None:
    assert left_s(run(rate=rate, **status)) == left


def test_nothing_is_left_of_a_run_that_is_not_heard() -> None:
    silent = Contact("gpu1", "unreachable", NOW - 720)
    old = run(contact=silent, step=1, params={"steps": 5}, rate=1.0)
    assert left_s(old) is None
    assert page(Top((), (old,)))[-1].endswith("seen 12m ago")


def test_runs_of_a_sweep_say_in_what_they_differ() -> None:
    runs = [
        run(f"dqn-9x2mp.{seed}", sweep="dqn-9x2mp", params={"seed": seed, "lr": 0.1})
        for seed in (1, 2)
    ]
    lines = page(Top((), tuple(runs)))
    assert lines[-1].endswith("seed=2")
    typed = [run(f"cmd-9x2mp.{n}", sweep="cmd-9x2mp", job=None, argv=["a", str(n)]) for n in (1, 2)]
    assert page(Top((), tuple(typed)))[-1].count("a 2") == 1


def nasty() -> Top:
    facts = HostFacts(
        tuple(replace(A10, index=n, run=NASTY, worker=NASTY, stranger=NASTY) for n in range(3)),
        cards_problem=NASTY,
    )
    runs = [
        run(NASTY, name=NASTY, reason=NASTY, gpus=[{"index": NASTY}], project={"name": NASTY}),
        run("b", state="queued", reason=NASTY),
        run("c", state="ended", outcome="failed", cause={"text": NASTY}, ended_at=NOW),
    ]
    silent = host("h", None, state="unreachable", error=NASTY)
    return Top((host(facts=facts), silent), tuple(runs))


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 99, 100, 200, 1000])
def test_any_screen_is_filled_and_none_is_left(columns: int) -> None:
    found, place = nasty(), Place()
    keys = ("", "down", "page-down", "end", "end", "page-up", "home", "h", "h")
    for rows, key in itertools.product((4, 8, 24, 100), keys):
        place.press(key)
        lines = screen_lines(
            found, place, NOW, everyone=True, columns=columns, rows=rows, paint=PLAIN, said=NASTY
        )
        assert len(lines) == rows
        assert all(width(line) <= columns for line in lines), lines
        assert all(line.isprintable() and "\u202e" not in line for line in lines)


def screen(found: Top, place: Place, rows: int = 12) -> list[str]:
    return screen_lines(found, place, NOW, everyone=False, columns=80, rows=rows, paint=PLAIN)


def test_what_is_below_can_be_reached_and_the_head_of_the_table_stays() -> None:
    found = Top((host(),), tuple(run(f"dqn-{n:05d}") for n in range(30)))
    place = Place()
    first = screen(found, place)
    assert first[0].startswith("runner top  ") and first[0].endswith(
        "  1 of 1 host answer  30 live  0 queued"
    )
    assert first[2].startswith("HOST ") and first[-1].endswith("  25 more below")
    seen = set()
    for _ in range(40):
        seen |= {line.split()[0] for line in screen(found, place) if line.startswith("dqn-")}
        place.press("down")
    assert len(seen) == 30
    last = screen(found, place)
    assert last[2].startswith("RUN ") and last[-2].startswith("dqn-00029")
    assert "below" not in last[-1]
    place.press("page-up")
    assert screen(found, place)[-2].startswith("dqn-00021")
    place.press("home")
    assert screen(found, place) == first


def test_help_is_shown_until_any_key() -> None:
    found, place = Top((host(),), ()), Place()
    assert screen(found, place)[5] == "no run goes on or waits"
    place.press("h")
    assert screen(found, place)[2].startswith("q, Ctrl-C ")
    place.press("down")
    assert screen(found, place)[2].startswith("HOST ")


def test_a_warning_is_said_in_place_of_the_keys() -> None:
    lines = screen_lines(
        Top((), ()), Place(), NOW, everyone=False, columns=40, rows=9, paint=PLAIN, said="a\nb" * 40
    )
    assert lines[-1].startswith("a\\nba\\nb") and lines[-1].endswith("…")


def test_the_document_names_runs_as_ps_does() -> None:
    item = run(step=5, params={"steps": 10}, rate=2.5, metrics={"x": float("nan")})
    silent = host("gpu3", None, state="unreachable", error="gone")
    body = json.loads(documents.text(document(Top((host(), silent), (item,)))))
    (told,) = body["runs"]
    assert set(documents.run(item.run)) == set(told) - {"steps_per_s", "left_s"}
    assert (told["steps_per_s"], told["left_s"]) == (2.5, 2.0)
    first, second = body["hosts"]
    assert first["gpus"][0]["run"] == "dqn-9x2mp.1" and first["gpus"][0]["load_percent"] == 97
    assert first["disk"] == {
        "total_bytes": 9e11,
        "free_bytes": 8.12e11,
        "reserve_bytes": 1e10,
    }
    assert (first["slots"], first["live"], first["queued"]) == ({"total": 8, "used": 1}, 1, 3)
    assert (second["gpus"], second["drained"], second["live"]) == (None, None, None)
    assert second["contact"]["state"] == "unreachable" and second["error"] == "gone"


def test_a_table_without_gpus_has_no_room_for_them() -> None:
    lines = run_lines([run()], NOW, everyone=False, columns=80, paint=PLAIN)
    assert lines[0].split() == ["RUN", "STATE", "HOST", "NOTE"]
