"""What `top` shows: a line for each host, then one for each run; a page or a screen (pure)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner import states
from runner.app.reports import Card, HostFacts, HostNow, RunNow, Top
from runner.app.results import Contact
from runner.metrics import metric_of
from runner.show import documents
from runner.show.readings import COLOURS, elapsed_s, share_done, steps_total, time_left
from runner.show.rows import differing, holds_gpus, note, steps_text
from runner.show.screen import Cell, Paint, cut, escaped, table, width
from runner.show.units import duration, memory, moment, number, plural, size

ROOMY = 100
"""From so many columns on there is room for how much is done, and how long it took."""
_OLD_CARDS_S = 20.0
"""What is known of cards is that old: it is said."""
_USED_MIB = 200.0
"""So much in use on a card that nobody leased is somebody's."""
_COLUMNS = (
    *("RUN", "PROJECT", "STATE", "HOST", "GPU", "STEPS", "%", "RETURN", "STEPS/S"),
    *("LEFT", "TIME", "NOTE"),
)
_NUMBERS = ("STEPS", "%", "RETURN", "STEPS/S", "LEFT", "TIME")
_ALWAYS = ("RUN", "STATE", "HOST", "GPU", "STEPS", "RETURN", "STEPS/S", "LEFT", "NOTE")
_HELP = (
    "q, Ctrl-C     end; runs go on",
    "j k, arrows   a line down, up",
    "space b       a page down, up; also PgDn PgUp",
    "g G           to the beginning, to the end",
    "r             ask all hosts now, also those that refused",
    "h             this help",
    "",
    "Runs that have not ended, and for a minute those that have. STEPS/S is of the",
    "last minute, LEFT what is left at that speed. GPUS: index, how busy it is,",
    "memory, and whose run has it. runner why RUN says what a run waits for.",
)


# -- runs ------------------------------------------------------------------------------------------


def run_lines(
    runs: Sequence[RunNow], now: float, *, everyone: bool, columns: int | None, paint: Paint
) -> list[str]:
    """The table of runs, its head first; columns: the terminal's, None where nothing is cut."""
    names = [name for name in _COLUMNS if name in _ALWAYS or columns is None or columns >= ROOMY]
    if not everyone and "PROJECT" in names:
        names.remove("PROJECT")
    if everyone and "PROJECT" not in names:
        names.insert(1, "PROJECT")
    differs = _differences(runs)
    cells = [_cells(each, now, differs.get(_sweep(each), ())) for each in runs]
    names = [name for name in names if any(row[name] for row in cells) or name == "NOTE"]
    rows: list[list[str | Cell]] = [["" if name == "%" else name for name in names]]
    rows += [[row[name] for name in names] for row in cells]
    right = [i for i, name in enumerate(names) if name in _NUMBERS]
    return table(rows, right=right, columns=columns, paint=paint)


def _sweep(each: RunNow) -> tuple[str | None, str]:
    return each.run.status.sweep, each.run.host


def _differences(runs: Sequence[RunNow]) -> dict[tuple[str | None, str], tuple[str, ...]]:
    groups: dict[tuple[str | None, str], list[RunNow]] = {}
    for each in runs:
        if each.run.status.sweep:
            groups.setdefault(_sweep(each), []).append(each)
    return {key: differing([each.run for each in group]) for key, group in groups.items()}


def _cells(each: RunNow, now: float, differs: Sequence[str]) -> dict[str, str | Cell]:
    run, status = each.run, each.run.status
    word = states.shown(status.state, status.outcome)
    share = share_done(status)
    value = metric_of(status.metrics, status.metric)
    left = left_s(each)
    return {
        "RUN": run.id,
        "PROJECT": str(status.project.get("name", "-")),
        "STATE": (word, COLOURS.get(word)),
        "HOST": run.host,
        "GPU": ",".join(str(gpu.get("index", "?")) for gpu in status.gpus)
        if holds_gpus(status)
        else "",
        "STEPS": steps_text(status),
        "%": "" if share is None or status.outcome == states.DONE else f"{share:.0%}",
        "RETURN": "" if value is None else number(value[1]),
        "STEPS/S": "" if each.steps_per_s is None else number(each.steps_per_s),
        "LEFT": "" if left is None else duration(left),
        "TIME": duration(elapsed_s(run, now)),
        "NOTE": note(
            run,
            now,
            member=bool(status.sweep),
            named=not status.sweep or bool(status.name),
            differs=differs,
            with_left=False,
        ),
    }


def left_s(each: RunNow) -> float | None:
    """How long a run still needs at its speed now; None where that would be a guess."""
    status = each.run.status
    total, rate = steps_total(status), each.steps_per_s
    if status.state not in states.LIVE or each.run.contact.state != "ok":
        return None
    if total is None or status.step is None or not rate:
        return time_left(status)
    return max(0.0, total - status.step) / rate


# -- hosts -----------------------------------------------------------------------------------------


def host_lines(
    hosts: Sequence[HostNow], now: float, columns: int | None, paint: Paint
) -> list[str]:
    """The table of hosts, its head first; what is said of cards is as long as there is room."""
    rows: list[list[str | Cell]] = [["HOST", "RUNS", "QUEUE", "SLOTS", "FREE", "GPUS"]]
    for host in hosts:
        rows.append([host.contact.host, *_figures(host.facts), ""])
    bare = [[row[0], *row[1:-1], "GPUS"] for row in rows]
    lines = table(bare, right=(1, 2, 3, 4))
    used = max(width(line) for line in lines) - len("GPUS")
    room = None if columns is None else max(0, columns - used)
    for row, host in zip(rows[1:], hosts, strict=True):
        row[-1] = _last_cell(host, now, room)
    return table(rows, right=(1, 2, 3, 4), columns=columns, paint=paint)


def _figures(facts: HostFacts | None) -> list[str | Cell]:
    if facts is None:
        return ["-", "-", "-", "-"]
    slots = "-"
    if facts.slots is not None and facts.slots_used is not None:
        slots = f"{facts.slots_used}/{facts.slots}"
    low = facts.disk_free is not None and facts.disk_free < (facts.disk_reserve or 0)
    return [
        "-" if facts.live is None else str(facts.live),
        "-" if facts.queued is None else str(facts.queued),
        slots,
        (size(facts.disk_free), "yellow" if low else None),
    ]


def _last_cell(host: HostNow, now: float, room: int | None) -> Cell:
    if host.connecting:
        return "connecting", "dim"
    if host.facts is None:
        return silence(host.contact, now), "red" if host.contact.refused else "yellow"
    facts = host.facts
    words = ["drained"] if facts.drained else []
    if facts.cards_problem:
        words.append(facts.cards_problem)
    said = "; ".join(words)
    left = None if room is None else room - (width(escaped(said)) + 2 if said else 0)
    cards = cards_text(facts, left)
    if facts.cards_problem and not facts.cards:
        cards = ""
    return "; ".join(filter(None, [said, cards])), "yellow" if words else None


def silence(contact: Contact, now: float) -> str:
    """`no answer since 02:51 (why)`, or what is wrong."""
    said = (contact.error or "").removeprefix(contact.host + ": ")
    if contact.refused or contact.state == "no-worker":
        return said
    since = f"no answer since {moment(contact.at, now)}" if contact.at else "no answer"
    return since + (f" ({said})" if said else "")


def cards_text(facts: HostFacts, room: int | None) -> str:
    """A host's cards, in the longest of four ways that fits in so many columns."""
    if not facts.cards:
        return "none" if facts.cards_age_s is not None else "-"
    old = (facts.cards_age_s or 0) > _OLD_CARDS_S
    age = f" ({duration(facts.cards_age_s)} ago)" if old else ""
    ways = [
        "  ".join(_card_text(card, with_memory=True) for card in facts.cards),
        "  ".join(_card_text(card) for card in facts.cards),
        "  ".join(f"{_index(card)} {_load(card)}" for card in facts.cards),
        _in_short(facts.cards),
    ]
    for text in ways:
        if room is None or width(escaped(text + age)) <= room:
            return text + age
    return ways[-1] + age


def _index(card: Card) -> str:
    return "?" if card.index is None else str(card.index)


def _load(card: Card) -> str:
    return "-" if card.load_percent is None else f"{card.load_percent:.0f}%"


def _card_text(card: Card, *, with_memory: bool = False) -> str:
    parts = [_index(card), _load(card)]
    if with_memory and card.used_mib is not None:
        total = "" if card.total_mib is None else f"/{memory(card.total_mib)}"
        used = memory(card.used_mib)
        if total.endswith(" GiB"):
            used = f"{card.used_mib / 1024:.1f}"
        parts.append(used + total)
    return " ".join([*parts, owner(card)])


def owner(card: Card) -> str:
    """Whose run has a card, or who else uses it."""
    if card.run is not None or card.worker is not None:
        run = card.run or "a run"
        return run + (f" ({card.worker})" if card.worker else "")
    if card.stranger is not None:
        return card.stranger
    return "in use" if (card.used_mib or 0) > _USED_MIB else "free"


def _in_short(cards: Sequence[Card]) -> str:
    used = sum(owner(card) != "free" for card in cards)
    loads = [card.load_percent for card in cards if card.load_percent is not None]
    busy = f", {sum(loads) / len(loads):.0f}%" if loads else ""
    return f"{used} of {len(cards)} in use{busy}"


# -- all of it -------------------------------------------------------------------------------------


def page_lines(
    found: Top, now: float, *, everyone: bool, columns: int | None, paint: Paint
) -> list[str]:
    """Everything once, for what is no screen."""
    lines = host_lines(found.hosts, now, columns, paint)
    if found.runs:
        runs = run_lines(found.runs, now, everyone=everyone, columns=columns, paint=paint)
        lines += ["", *runs]
    return lines


@dataclass
class Place:
    """What of it is looked at, as keys change it."""

    first: int = 0
    """The first line that is shown."""
    help: bool = False
    page: int = 1
    """Lines that were shown last."""

    def press(self, key: str) -> None:
        """Takes a key as `console` names them."""
        if self.help or key == "h":
            self.help = not self.help
            return
        steps = {"down": 1, "up": -1, "page-down": self.page, "page-up": -self.page}
        far = {"home": -self.first, "end": 1 << 30}
        self.first = max(0, self.first + steps.get(key, far.get(key, 0)))


def screen_lines(
    found: Top,
    place: Place,
    now: float,
    *,
    everyone: bool,
    columns: int,
    rows: int,
    paint: Paint,
    said: str = "",
) -> list[str]:
    """Exactly what fits: a head, the part that is looked at, what keys do. said: a warning."""
    head = cut(_head(found, now), columns)
    lines = host_lines(found.hosts, now, columns, paint)
    first_run = len(lines) + 1
    lines += ["", *run_lines(found.runs, now, everyone=everyone, columns=columns, paint=paint)]
    if not found.runs:
        lines[-1] = paint("no run goes on or waits", "dim")
    if place.help:
        lines, first_run = [cut(line, columns) for line in _HELP], 1 << 30
    room = max(1, rows - 3)
    place.page = max(1, room - 1)
    place.first = 0 if place.help else min(place.first, max(0, len(lines) - room))
    shown = lines[place.first : place.first + room]
    if place.first > first_run:
        shown[0] = lines[first_run]  # the head of the table stays
    below = len(lines) - place.first - room
    keys = "any key: back" if place.help else "q quit  j/k scroll  h help"
    if below > 0:
        keys += f"  {below} more below"
    foot = (
        paint(cut(escaped(said), columns), "yellow") if said else paint(cut(keys, columns), "dim")
    )
    padding = [""] * (room - len(shown))
    return [paint(head, "bold"), "", *shown, *padding, foot][:rows]


def _head(found: Top, now: float) -> str:
    answer = sum(host.contact.state == "ok" and not host.connecting for host in found.hosts)
    words = [each.run.status.state for each in found.runs]
    live = sum(word in states.LIVE for word in words)
    parts = [
        time.strftime("%H:%M:%S", time.localtime(now)),
        f"{answer} of {plural(len(found.hosts), 'host')} answer",
        f"{live} live",
        f"{words.count(states.QUEUED)} queued",
    ]
    return "  ".join(["runner top", *parts])


def document(found: Top) -> dict[str, Any]:
    """What `top --json` prints: runs as in `ps`, and how each host is."""
    return {
        "format": documents.FORMAT,
        "runs": [
            {
                **documents.run(each.run),
                "steps_per_s": each.steps_per_s,
                "left_s": left_s(each),
            }
            for each in found.runs
        ],
        "hosts": [_host_document(host) for host in found.hosts],
    }


def _host_document(host: HostNow) -> dict[str, Any]:
    facts = host.facts or HostFacts()
    known = host.facts is not None
    return {
        **documents.host_contact(host.contact),
        "live": facts.live,
        "queued": facts.queued,
        "drained": facts.drained if known else None,
        "slots": {"total": facts.slots, "used": facts.slots_used},
        "disk": {
            "total_bytes": facts.disk_total,
            "free_bytes": facts.disk_free,
            "reserve_bytes": facts.disk_reserve,
        },
        "gpus": [dataclasses.asdict(card) for card in facts.cards] if known else None,
        "gpus_age_s": facts.cards_age_s,
        "gpus_problem": facts.cards_problem,
    }
