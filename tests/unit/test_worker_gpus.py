from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import gpus
import pytest

from tests.helpers.wait import wait_for

LINE = "0, GPU-8f, 81920, 3, 550.54.15, NVIDIA H100 80GB HBM3"


def test_a_card() -> None:
    assert gpus.parse(LINE + "\n") == [
        {
            "index": 0,
            "uuid": "GPU-8f",
            "total_mib": 81920,
            "used_mib": 3,
            "driver": "550.54.15",
            "name": "NVIDIA H100 80GB HBM3",
        }
    ]


UNKNOWN = (
    "[N/A]",
    "N/A",
    "[Not Supported]",
    "[Insufficient Permissions]",
    "[Unknown Error]",
    "[GPU is lost]",
    "[GPU requires reset]",
    "",
)


@pytest.mark.parametrize("cell", UNKNOWN)
def test_a_number_that_the_tool_does_not_know_is_none(cell: str) -> None:
    (card,) = gpus.parse(f"0, GPU-1, {cell}, {cell}, 470.1, GB10")
    assert (card["total_mib"], card["used_mib"]) == (None, None)
    assert not gpus.is_used(card)


def test_a_name_with_commas_and_units_that_came_along() -> None:
    (card,) = gpus.parse("1, MIG-2, 81920 MiB, 5.0 MiB, 1.2, A card, the second, of three")
    assert card["name"] == "A card, the second, of three"
    assert (card["total_mib"], card["used_mib"]) == (81920, 5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        'Field "compute_cap" is not a valid field to query.\n',
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "Failed to initialize NVML: Unknown Error\n",
        "index, uuid, memory.total [MiB], memory.used [MiB], driver_version, name\n",
        "a, b, c, d, e, f\n",
    ],
)
def test_what_is_no_card_is_passed_over(text: str) -> None:
    assert gpus.parse(text) == []
    assert len(gpus.parse(text + LINE)) == 1


def test_who_computes() -> None:
    text = (
        "GPU-8f, 4711, 3000, /usr/bin/python3\n"
        "GPU-8f, [N/A], [Insufficient Permissions], [Not Found]\n"
        "GPU-9a, 12, [N/A], C:\\a, b\n"
        "GPU-9a, 13, , \n"
        "No running processes found\n"
        "GPU-9a, 14\n"
    )
    assert gpus.parse_apps(text) == [
        {"uuid": "GPU-8f", "pid": 4711, "used_mib": 3000, "program": "python3"},
        {"uuid": "GPU-8f", "pid": None, "used_mib": None, "program": None},
        {"uuid": "GPU-9a", "pid": 12, "used_mib": None, "program": "C:\\a, b"},
        {"uuid": "GPU-9a", "pid": 13, "used_mib": None, "program": None},
    ]
    assert gpus.parse_apps("") == []


def test_which_cards_a_worker_may_lease() -> None:
    cards = [{"index": n} for n in range(3)]
    assert gpus.chosen(cards, "all") == cards
    assert gpus.chosen(cards, "none") == []
    assert gpus.chosen(cards, [0, 2]) == [cards[0], cards[2]]


def test_whose_memory_is_in_use() -> None:
    assert gpus.is_used({"used_mib": gpus.STRANGER_MIB + 1})
    assert not gpus.is_used({"used_mib": gpus.STRANGER_MIB})


def test_whose_process_is_there_though_it_holds_little() -> None:
    card = {"uuid": "GPU-1", "used_mib": None}
    app = {"uuid": "GPU-1", "pid": None, "used_mib": None, "program": None}
    assert gpus.is_used(card, [app])
    assert not gpus.is_used(card, [dict(app, uuid="GPU-2")])
    assert not gpus.is_used(card, [dict(app, program="nvidia-cuda-mps-server")])


def test_what_was_seen_is_believed_for_a_minute(tmp_path: Path) -> None:
    path = str(tmp_path / "gpus.json")
    assert gpus.read_cached(path) is None
    cards: list[dict[str, Any]] = [{"index": 0}]
    gpus.write_cache(path, cards)
    assert gpus.read_cached(path) == cards
    import records

    body = records.read(path)
    assert body is not None
    records.write(path, dict(body, at=time.time() - 61))
    assert gpus.read_cached(path) is None


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-smi to be written by the test."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "nvidia-smi"


def say(tool: Path, script: str) -> None:
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def asked(limit_s: float = 10.0) -> gpus.Query:
    query = gpus.Query()
    wait_for(query.poll, limit_s, "an answer")
    assert query.poll()
    return query


def answer(limit_s: float = 10.0) -> list[dict[str, Any]]:
    return asked(limit_s).cards


def told(query: gpus.Query) -> tuple[str | None, str | None, bool]:
    return query.problem, query.said, query.missing


BOTH = f"""case "$1" in
--query-gpu*) echo '{LINE}';;
--query-compute-apps=gpu_uuid,pid,used_memory,process_name) echo 'GPU-8f, 7, 30, /bin/x';;
esac"""


def test_asking_without_waiting(tool: Path) -> None:
    say(tool, BOTH)
    query = asked()
    assert [card["uuid"] for card in query.cards] == ["GPU-8f"]
    assert query.apps == [{"uuid": "GPU-8f", "pid": 7, "used_mib": 30, "program": "x"}]
    assert told(query) == (None, None, False)
    assert [card["uuid"] for card in gpus.query() or []] == ["GPU-8f"]
    many = "".join(f"{n}, GPU-{n}, 1, 1, 5, {'x' * 1000}\\n" for n in range(200))
    say(tool, f"printf '{many}'")
    assert len(answer()) == 200


@pytest.mark.parametrize(
    ("script", "problem", "said"),
    [
        (f"echo '{LINE}'; exit 9", "nvidia-smi exits 9", LINE),
        ("echo; echo 'No devices were found'; exit 6", "nvidia-smi exits 6", "No devices"),
        ("exit 255", "nvidia-smi exits 255", None),
        ("kill -SEGV $$", "nvidia-smi is killed by signal 11", None),
    ],
)
def test_a_failure_is_no_cards_and_is_named(
    tool: Path, script: str, problem: str, said: str | None
) -> None:
    say(tool, script)
    query = asked()
    assert query.cards == []
    assert (query.problem, query.missing) == (problem, False)
    assert query.said is None if said is None else (query.said or "").startswith(said)
    assert gpus.query() is None


def test_a_tool_that_is_not_there_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    query = asked()
    assert (query.cards, query.fileno()) == ([], -1)
    assert told(query) == (None, None, True)
    assert gpus.query() is None


def test_a_folder_of_path_that_may_not_be_entered_is_no_failure(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool.write_text("not to be executed")
    tool.chmod(0o644)
    query = asked()
    assert told(query) == ("nvidia-smi cannot be started: Permission denied", None, False)
    tool.unlink()
    refused = PermissionError(13, "Permission denied")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: (_ for _ in ()).throw(refused))
    assert told(asked()) == (None, None, True)


def test_a_tool_that_cannot_be_started_is_one(tool: Path) -> None:
    tool.write_text("not a program")
    tool.chmod(0o755)
    query = asked()
    assert not query.missing
    assert query.problem == "nvidia-smi cannot be started: Exec format error"


def test_a_hung_tool_is_given_up(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(tool, f"echo '{LINE}'; exec sleep 600")
    monkeypatch.setattr(gpus, "TIMEOUT_S", 0.3)
    assert gpus.query() is None
    query = asked()
    assert query.cards == []
    assert told(query) == ("nvidia-smi does not answer for 0.3 s", None, False)


def test_cards_are_known_though_nobody_tells_who_computes(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(tool, BOTH.replace("echo 'GPU-8f, 7", "echo '\"pid\" is not valid'; exit 2; echo '"))
    query = asked()
    assert (len(query.cards), query.apps, query.problem) == (1, [], None)
    monkeypatch.setattr(gpus, "APPS_WAIT_S", 0.2)
    say(tool, BOTH.replace("echo 'GPU-8f, 7", "exec sleep 600; echo '"))
    query = asked(5)
    assert (len(query.cards), query.apps, query.problem) == (1, [], None)


def test_one_that_says_no_more_and_lives_wakes_nobody(tool: Path) -> None:
    say(tool, "exec >&-; exec sleep 600")
    query = gpus.Query()
    wait_for(lambda: query.poll() or query.fileno() == -1, 5, "nothing to wait at")
    assert not query.poll()
    for call in (query._call, query._apps):
        assert call is not None
        call.kill()
    wait_for(query.poll, 5, "its end")


def test_one_that_never_stops_talking_is_given_up(tool: Path) -> None:
    say(tool, "exec yes")
    query = asked(20)
    assert query.cards == []
    assert query.problem is not None
