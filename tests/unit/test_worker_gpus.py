from __future__ import annotations

import os
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


def test_which_cards_a_worker_may_lease() -> None:
    cards = [{"index": n} for n in range(3)]
    assert gpus.chosen(cards, "all") == cards
    assert gpus.chosen(cards, "none") == []
    assert gpus.chosen(cards, [0, 2]) == [cards[0], cards[2]]


def test_whose_memory_is_in_use() -> None:
    assert gpus.is_used({"used_mib": gpus.STRANGER_MIB + 1})
    assert not gpus.is_used({"used_mib": gpus.STRANGER_MIB})


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


def answer(limit_s: float = 10.0) -> list[dict[str, Any]]:
    query = gpus.Query()
    wait_for(query.poll, limit_s, "an answer")
    assert query.poll()
    return query.cards


def test_asking_without_waiting(tool: Path) -> None:
    say(tool, f"echo '{LINE}'")
    assert [card["uuid"] for card in answer()] == ["GPU-8f"]
    assert [card["uuid"] for card in gpus.query() or []] == ["GPU-8f"]
    many = "".join(f"{n}, GPU-{n}, 1, 1, 5, {'x' * 1000}\\n" for n in range(200))
    say(tool, f"printf '{many}'")
    assert len(answer()) == 200


def test_a_failure_is_no_cards(tool: Path) -> None:
    say(tool, f"echo '{LINE}'; exit 9")
    assert answer() == []
    assert gpus.query() is None


def test_a_tool_that_is_not_there_is_no_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert answer() == []
    assert gpus.query() is None


def test_a_hung_tool_is_given_up(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(tool, f"echo '{LINE}'; exec sleep 600")
    monkeypatch.setattr(gpus, "TIMEOUT_S", 0.3)
    assert gpus.query() is None
    assert answer() == []
