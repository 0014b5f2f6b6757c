from __future__ import annotations

import dataclasses
import json

from runner.app.reports import Drained, Garbage, HostSpace, Removal, RunSpace, SpaceListing
from runner.app.results import Contact
from runner.show import tables
from runner.show.screen import table

SMALL = RunSpace("a-1", "gpu1", {"name": "p"}, "ended", "done", True, 10, 0, 2000, 0)
LARGE = RunSpace("b-1", "gpu2", {"name": "q"}, "ended", "failed", False, 10, 3 * 10**9, 0, 0)
LIVE = RunSpace("c-1", "gpu2", {}, "running", None, False, 0, 10, 0, 0)
HOST = HostSpace(
    Contact("gpu1", "ok", 1.0, None, 0.5),
    {"contents": 2 * 10**7, "bundles": 10**6, "packages": 3 * 10**6, "home": 0, "leftovers": 0},
    others_runs=2,
    others_bytes=4 * 10**9,
    disk_total=938 * 10**9,
    disk_free=412 * 10**9,
)
SILENT = HostSpace(Contact("gpu3", "unreachable", error="gpu3: no answer for 20 s"))
FOUND = SpaceListing((SMALL, LIVE, LARGE), (HOST, SILENT))


def test_the_largest_run_comes_first_and_says_whether_it_was_pulled() -> None:
    rows, right = tables.run_space_rows(FOUND)
    assert table(rows, right=right) == [
        "RUN  HOST  CODE  CHECKPOINTS  LOGS  TOTAL  NOTE",
        "b-1  gpu2  10 B         3 GB   0 B   3 GB  not pulled",
        "a-1  gpu1  10 B          0 B  2 kB   2 kB  pulled",
        "c-1  gpu2   0 B         10 B   0 B   10 B  running",
    ]
    rows, right = tables.run_space_rows(FOUND, everyone=True)
    assert table(rows, right=right)[1].startswith("b-1  q        gpu2")
    unbegun = dataclasses.replace(LARGE, outcome="cancelled", begun=False)
    rows, _ = tables.run_space_rows(SpaceListing((unbegun,), ()))
    assert rows[1][-1] == "never started"


def test_a_silent_host_has_no_row() -> None:
    rows, right = tables.host_space_rows(FOUND)
    assert table(rows, right=right) == [
        "HOST  CONTENTS  BUNDLES  PACKAGES  HOME  LEFTOVERS  OTHERS        FREE",
        "gpu1     20 MB     1 MB      3 MB   0 B             2 runs, 4 GB  412 GB of 938 GB",
    ]


def test_the_document_of_du_names_every_number_with_its_unit() -> None:
    body = tables.space_document(FOUND)
    assert json.loads(json.dumps(body)) == body
    assert body["format"] == 1
    run = body["runs"][2]
    assert (run["id"], run["checkpoints_bytes"]) == ("b-1", 3 * 10**9)
    assert run["total_bytes"] == LARGE.total
    here, silent = body["hosts"]
    assert here["shared"]["contents_bytes"] == 2 * 10**7
    assert here["disk"] == {
        "total_bytes": 938 * 10**9,
        "free_bytes": 412 * 10**9,
        "free_inodes": None,
    }
    assert silent["contact"]["state"] == "unreachable" and silent["error"]
    assert silent["disk"]["free_bytes"] is None


def test_what_became_of_each_run_that_was_to_go() -> None:
    found = [
        Removal("a-1", "gpu1", 5000, pulled=True),
        Removal("b-1", "gpu1", 5000),
        Removal("c-1", "gpu1", gone=True),
        Removal("d-1", "gpu3", error="gpu3: no answer; d-1 was NOT deleted"),
    ]
    assert table(tables.removal_rows(found, dry=False)) == [
        "a-1  gpu1  5 kB  deleted",
        "b-1  gpu1  5 kB  deleted",
        "c-1  gpu1        was gone already",
    ]
    dry = [line.split("  ")[-1] for line in table(tables.removal_rows(found, dry=True))]
    assert dry == ["would go", "not fully pulled: with --unpulled only", "was gone already"]
    body = tables.removal_document(found, dry=True)
    assert body["dry_run"] is True and len(body["runs"]) == 4


def test_what_was_collected_ends_with_its_sum() -> None:
    items = (("code/a-1", 20_000_000, "its run has ended and was pulled"),)
    found = Garbage("gpu1", items, 20_000_000, ("x",), 412 * 10**9, False)
    rows, right = tables.garbage_rows(found)
    assert table(rows, right=right) == [
        "WHAT       SIZE  WHY",
        "code/a-1  20 MB  its run has ended and was pulled",
        "in all    20 MB  removed; 412 GB free",
    ]
    body = tables.garbage_document(found)
    assert body["items"][0]["what"] == "code/a-1" and body["kept"] == ["x"]
    rows, _ = tables.garbage_rows(dataclasses.replace(found, dry=True, disk_free=None))
    assert rows[-1][-1] == "would go"


def test_a_drained_host_is_told_in_a_line() -> None:
    assert tables.drained_line(Drained("gpu1", True, 2, 3)) == "gpu1 drained: 2 runs go on, 3 wait"
    assert (
        tables.drained_line(Drained("gpu1", False, 1, 1))
        == "gpu1 takes runs up again: 1 run goes on, 1 waits"
    )
    assert tables.drained_document(Drained("gpu1", True, 2, 3)) == {
        "format": 1,
        "host": "gpu1",
        "drained": True,
        "live": 2,
        "waiting": 3,
    }
