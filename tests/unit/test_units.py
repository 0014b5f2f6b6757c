from __future__ import annotations

import math
import time

import pytest

from runner.show import units


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


NOW = 1_793_700_000.0  # 2026-11-03 11:00 in Berlin


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (math.nan, "-"),
        (-5, "0s"),
        (42.9, "42s"),
        (1020, "17m"),
        (22320, "6h12m"),
        (3 * 86400 + 4 * 3600, "3d04h"),
    ],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert units.duration(seconds) == shown


def test_short_waits_have_a_tenth() -> None:
    assert (units.took(6.24), units.took(347)) == ("6.2s", "5m")


@pytest.mark.parametrize(
    ("age", "shown"), [(3600, "10:00"), (86400 + 3600, "Mon 10:00"), (20 * 86400, "2026-10-14")]
)
def test_moments_are_local(age: float, shown: str) -> None:
    assert units.moment(NOW - age, NOW) == shown


def test_ages() -> None:
    assert units.ago(NOW - 720, NOW) == "12m ago"
    assert units.ago(NOW + 60, NOW) == "0s ago"
    assert units.ago(NOW - 2 * 86400, NOW) == "on Sun 11:00"
    assert units.ago(None, NOW) == "-"


def test_times_for_programs_are_utc() -> None:
    assert units.rfc3339(NOW + 0.5) == "2026-11-03T10:00:00.500Z"
    assert units.rfc3339(None) is None
    assert units.rfc3339(math.inf) is None


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (31_900, "31k"),
        (1_234_567, "1.2M"),
        (4_199_999, "4.1M"),
        (10_000_000, "10M"),
        (999_999, "999k"),
        (2e9, "2G"),
    ],
)
def test_steps_are_never_rounded_up(count: float | None, shown: str) -> None:
    assert units.steps(count) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"),
        (0, "0 B"),
        (812, "812 B"),
        (18_200, "18 kB"),
        (84e6, "84 MB"),
        (2.1e9, "2.1 GB"),
    ],
)
def test_sizes(count: float | None, shown: str) -> None:
    assert units.size(count) == shown


def test_memory_is_binary() -> None:
    assert (units.memory(3), units.memory(23040), units.memory(None)) == ("3 MiB", "22.5 GiB", "-")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (1830.4, "1830"), (61.04, "61.0"), (1.234, "1.23"), (-0.0121, "-0.012")]
    + [(1e-9, "1.00e-09"), (math.nan, "nan"), (0.0, "0"), (5e8, "5.00e+08")],
)
def test_metrics(value: float | None, shown: str) -> None:
    assert units.number(value) == shown


def test_plurals() -> None:
    assert (units.plural(1, "file"), units.plural(2, "process", "processes")) == (
        "1 file",
        "2 processes",
    )


def test_a_few_of_many_names() -> None:
    assert units.some(["a", "b", "c"]) == "a, b, c"
    assert units.some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
