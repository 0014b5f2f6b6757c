"""What the benchmarks compute from what they saw."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# they are programs: each finds its neighbours beside it
sys.path.insert(0, str(ROOT / "benchmarks"))

import batch_queues  # noqa: E402
import bench_cancel  # noqa: E402
import bench_cut  # noqa: E402
import bench_hosts  # noqa: E402
import bench_memory  # noqa: E402
import bench_pull  # noqa: E402
import bench_queue  # noqa: E402
import bench_submit  # noqa: E402
import bench_tail  # noqa: E402
import bench_views  # noqa: E402
import far  # noqa: E402
import figures  # noqa: E402
import kill_dqn  # noqa: E402
import over_ssh  # noqa: E402
import pairs  # noqa: E402
import readings  # noqa: E402
import submits  # noqa: E402


def use(card: str, began: float, ended: float, owners: Sequence[str] = ("me",)) -> submits.Use:
    return submits.Use(card, began, ended, "me", owners)


@pytest.mark.parametrize(
    ("uses", "seconds"),
    [
        ([], 0),
        ([use("a", 0, 2), use("a", 2, 3), use("b", 1, 3)], 0),
        ([use("a", 0, 2), use("a", 1, 3)], 1),
        # one that began long before and lasts longer than all
        ([use("a", 0, 10), use("a", 1, 2), use("a", 5, 6)], 2),
        ([use("b", 1, 3), use("a", 0, 9), use("b", 2, 4)], 1),
    ],
)
def test_the_time_a_card_has_two_uses(uses: list[submits.Use], seconds: float) -> None:
    assert submits.overlap_s(uses) == seconds
    assert submits.overlap_s(reversed(uses)) == seconds


def test_a_lease_that_names_another_run_at_either_end_counts() -> None:
    uses = [use("a", 0, 1), use("a", 1, 2, ("me", "you")), use("a", 2, 3, ("you", "me"))]
    assert submits.foreign(uses) == 2


def test_kills_come_in_the_order_of_their_steps_and_meet_every_target() -> None:
    for seed in range(50):
        kills = kill_dqn.draw_kills(random.Random(seed), 10, 6000, kill_dqn.TARGETS)
        assert sorted(Counter(kill.target for kill in kills).values()) == [2, 2, 3, 3]
        steps = [kill.step for kill in kills if kill.step is not None]
        assert steps == sorted(steps) and max(steps) < 6000 * kill_dqn.LATE
        # a rank's own death is drawn among steps only
        assert {k.target for k in kills if k.step is None} <= set(kill_dqn.OUTSIDE)
    assert kill_dqn.draw_kills(random.Random(1), 4, 9, kill_dqn.TARGETS) == kill_dqn.draw_kills(
        random.Random(1), 4, 9, kill_dqn.TARGETS
    )


def test_cpu_and_memory_of_a_process_are_read() -> None:
    fields = ["S", *map(str, range(4, 53))]
    fields[11:15] = ["100", "50", "20", "30"]
    line = f"7 (odd) name) {' '.join(fields)}"
    assert bench_queue.cpu_s(line) == 200 / os.sysconf("SC_CLK_TCK")
    own = bench_queue.cpu_s(bench_queue.proc(os.getpid(), "stat"))
    assert own == pytest.approx(sum(os.times()[:4]), abs=0.1)
    assert bench_queue.rss_mib("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t  2048 kB\n") == 2.0
    assert bench_queue.rss_mib(bench_queue.proc(os.getpid(), "status")) > 1


def queued(**numbers: float) -> bench_queue.Found:
    table = dict.fromkeys(bench_queue.Found.__dataclass_fields__, 1.0)
    return bench_queue.Found(**{**table, "waiting": 10, **numbers})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("numbers", "missed"),
    [
        ({"cpu_ms": 1.4, "dispatcher_mib": 30.0, "idle_share": 0.005}, []),
        ({"cpu_ms": 1.6, "idle_share": 0.0}, ["CPU of a dispatch, times"]),
        ({"wall_ms": 1.6, "idle_share": 0.0}, ["wall of a dispatch, times"]),
        ({"dispatcher_mib": 31.0, "idle_share": 0.0}, ["dispatcher, MiB"]),
        ({"idle_share": 0.006}, ["dispatcher idle, of a core"]),
    ],
)
def test_a_long_queue_is_held_against_a_short_one(
    numbers: dict[str, float], missed: list[str]
) -> None:
    found = bench_queue.verdicts([(queued(), queued(**numbers))])
    assert [what for what, _, _, met in found if not met] == missed


@pytest.mark.parametrize(
    ("gone_s", "returned_s", "left", "same", "right"),
    [
        (2.1, 2.9, 0, True, True),
        (2.1, 3.1, 0, True, False),
        (3.1, 2.9, 0, True, False),
        (2.1, 2.2, 1, True, False),
        (2.1, 2.2, 0, False, False),
    ],
)
def test_a_cancel_is_right_when_nothing_is_left_in_time(
    gone_s: float, returned_s: float, left: int, same: bool, right: bool
) -> None:
    found = bench_cancel.Found("tree", 2.0, gone_s, returned_s, left, same)
    assert found.is_right is right
    assert "+0.10 (0.10 to 0.10)" in bench_cancel.row([found]) or gone_s > 3


def test_free_ports_differ() -> None:
    first, second = batch_queues.free_ports(2)
    assert first != second


def test_nothing_is_fetched_without_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(batch_queues.Missing, match="as root"):
        batch_queues.fetch()


def test_a_reading_is_held_against_its_goal_by_its_median() -> None:
    good = readings.Reading("late", "ms", [1.0, 20.0, 90.0], 20.0)
    bad = readings.Reading("late", "ms", [1.0, 20.1, 20.2], 20.0, "loaded")
    assert good.is_met is True and bad.is_met is False
    assert readings.Reading("late", "ms", [1.0]).is_met is None
    shown = readings.lines("title", [good, bad])
    assert "20 (1 to 90) ms" in shown[1] and shown[1].endswith("at most 20 ms: reached")
    assert shown[2].endswith("at most 20 ms: MISSED; loaded")


@pytest.mark.parametrize(
    ("count", "share", "found"), [(1, 0.99, 1), (2, 0.5, 1), (100, 0.99, 99), (300, 0.99, 297)]
)
def test_a_percentile_is_one_of_the_numbers(count: int, share: float, found: int) -> None:
    assert readings.percentile(list(range(count, 0, -1)), share) == found


def of_walls(**walls: float) -> pairs.Pairs:
    return pairs.Pairs("name", {side: [pairs.Sample(wall)] for side, wall in walls.items()})


def test_round_trips_are_told_from_two_links() -> None:
    short, long = of_walls(hand=1.0, ours=0.3), of_walls(hand=3.4, ours=0.38)
    found = bench_submit.round_trips(short, long, apart_s=0.08)
    assert [(each.what, round(each.values[0], 6)) for each in found] == [("hand", 30), ("ours", 1)]


def test_what_is_kept_of_a_cut_pull_is_counted_without_its_holes(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    (place / ".parts").mkdir(parents=True)
    (place / "whole").write_bytes(bytes(9000))
    (place / ".parts" / "a").write_bytes(os.urandom(8192))
    with (tmp_path / ".b.part").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(512 * 1024)
        file.write(os.urandom(4096))
    assert 8192 + 4096 <= bench_pull.kept_bytes(tmp_path) <= 8192 + 4096 + 2 * 4096


def test_a_cut_is_told_from_progress() -> None:
    for text in (b"gpu1: no answer for 3.5 s; trying again", b"Timed out", b"the link was lost"):
        assert bench_cut.NOTICED.search(text)
    assert not bench_cut.NOTICED.search(b"checkpoints/a  45%  0.5/1.0 GB  20 MB/s  25s left")


def test_each_of_many_hosts_gets_an_address(tmp_path: Path) -> None:
    class Operator:
        ssh_config = tmp_path / "config"
        known_hosts = tmp_path / "known_hosts"

    class Host:
        host_key = "ssh-ed25519 AAAA"

    blocks = [f"Host many-h0{n}\n    HostName 10.0.0.1\n    Port 22" for n in (1, 2)]
    Operator.ssh_config.write_text("\n\n".join(blocks))
    bench_hosts.spread_out(Operator, Host, ["h01", "h02"], ["10.0.0.7", "10.0.0.8"])  # type: ignore[arg-type]
    text = Operator.ssh_config.read_text()
    assert text == "\n\n".join(blocks).replace(".1\n", ".7\n", 1).replace(".1\n", ".8\n", 1)
    assert Operator.known_hosts.read_text().splitlines()[1] == "10.0.0.8 ssh-ed25519 AAAA"


def test_a_process_is_looked_at_while_it_lives() -> None:
    program = "import time; x = bytearray(40 << 20); print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with far.ended(child):
        assert child.stdout is not None and child.stdout.readline()
        assert far.peak_mib(child.pid) > 40 and far.cpu_s(child.pid) >= 0
        assert child.pid in far.family(os.getpid()) and far.family(child.pid) == {child.pid}
    assert child.returncode == -9
    assert far.peak_mib(child.pid) == 0 and far.cpu_s(child.pid) == 0


def test_lines_are_late_by_what_they_say() -> None:
    program = "import time\nwhile True: print(time.time_ns() - 10**7, flush=True); time.sleep(.001)"
    argv = [sys.executable, "-c", program]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_tail, "LINES", 20)
        patch.setattr(bench_tail, "WARM_UP_S", 0.0)
        child = subprocess.Popen(argv, stdout=subprocess.PIPE)
        with far.ended(child):
            late = bench_tail.Reader(child).finish()
    assert len(late) == 20 and min(late) >= 10


@pytest.mark.parametrize("read", [bench_memory.read_fast, bench_memory.read_slowly])
def test_every_byte_is_read(read: object) -> None:
    began = time.monotonic()
    child = subprocess.Popen(["head", "-c", "3000000", "/dev/zero"], stdout=subprocess.PIPE)
    with far.ended(child):
        assert read(child) == 3_000_000  # type: ignore[operator]
    if read is bench_memory.read_slowly:
        assert time.monotonic() - began >= 3_000_000 / bench_memory.SLOW_BYTES_S


def test_figures_are_tables_of_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert figures.main([]) == 1
    found = of_walls(hand=2.0, ours=0.5)
    goals = [pairs.Goal("ours", factor=0.3), pairs.Goal("ours", factor=0.2)]
    pairs.report(pairs.Pairs("submit", found.samples, goals))
    cut = [
        readings.Reading("ssh", "s", [30.0], None, "nothing"),
        readings.Reading("us", "s", [3.0], 5),
    ]
    readings.report("cut", "a cut", cut)
    pairs.RESULTS.joinpath("cancel.json").write_text(json.dumps({"format": 1, "cancels": []}))
    capsys.readouterr()
    assert figures.main([]) == 0
    printed = capsys.readouterr().out
    assert "| ours | 500 ms | 0.25 | at most 0.3: reached; at most 0.2: **missed** |" in printed
    assert "| ssh | 30 s; nothing |  |" in printed
    assert "| us | 3 s | at most 5 s: reached |" in printed
    assert figures.main(["cut"]) == 0
    assert "submit" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match="not there"):
        figures.main(["other"])
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- cut -->\nold\n<!-- end -->\nb\n<!-- later -->\nkept\n<!-- end -->\n")
    assert figures.main(["page.md"]) == 0
    first, _, rest = page.read_text().partition("<!-- end -->")
    assert first.startswith("a\n<!-- cut -->\n\n`cut`: a cut\n") and "old" not in first
    assert rest == "\nb\n<!-- later -->\nkept\n<!-- end -->\n"


def test_every_benchmark_over_ssh_is_run_and_has_its_place_in_the_document() -> None:
    sources = list((ROOT / "benchmarks").glob("bench_*.py"))
    over = {path.stem[6:] for path in sources if "far.run(" in path.read_text()}
    assert over == set(over_ssh.ALL)
    page = (ROOT / "docs" / "figures.md").read_text()
    assert all(f"bench_{name}.py" in page for name in over)
    with pytest.raises(SystemExit, match="no such benchmark"):
        over_ssh.main(["nonsense"])


def test_growth_is_of_cpu_time_round_by_round() -> None:
    few = [pairs.Sample(9.0, 0.1), pairs.Sample(9.0, 0.2)]
    many = [pairs.Sample(1.0, 0.3), pairs.Sample(1.0, 0.8)]
    found = pairs.Pairs("views", {"runner ps, 10 runs": few, "runner ps, 50 runs": many})
    (row,) = bench_views.grown(found, ["runner ps"], 50)
    assert row.values == pytest.approx([3.0, 4.0]) and row.at_most == 5.0
