"""gpus.json: what the dispatcher last saw of the cards, and what follows for who asks and waits."""

from __future__ import annotations

import time
from typing import Any, Dict, List, NamedTuple, Optional

import config
import gpus
import leases
import plain
import records
from paths import Workspace

Table = Dict[str, Any]


class Seen(NamedTuple):
    """The cards as the dispatcher last saw them, who uses them, and what is wrong."""

    cards: List[Table]
    strangers: List[Table]
    going: List[Table]
    problem: Optional[str] = None
    """What is wrong with nvidia-smi now; `cards` are those of its last good answer."""
    said: Optional[str] = None
    at: float = 0.0

    @classmethod
    def read(cls, path: str) -> "Optional[Seen]":
        """What is there, however old; None when there is nothing."""
        body = records.read(path)
        if not body or not isinstance(body.get("cards"), list):
            return None
        return cls(
            cards=_rows(body, "cards"),
            strangers=[
                row for row in _rows(body, "strangers") if plain.is_number(row.get("since"))
            ],
            going=_rows(body, "going"),
            problem=_text(body.get("problem")),
            said=_text(body.get("said")),
            at=_number(body.get("at")),
        )

    def write(self, path: str) -> None:
        """Leave it for the verbs."""
        facts = {key: getattr(self, key) for key in ("strangers", "going", "problem", "said")}
        gpus.write_cache(path, self.cards, **facts)

    @property
    def is_fresh(self) -> bool:
        """Whether a dispatcher that lives wrote it."""
        return 0 <= time.time() - self.at <= gpus.FRESH_S

    def why_not(self, lease_folder: str, count: int, own: Optional[Table] = None) -> Table:
        """Why `count` cards cannot be had, as far as is known.

        {"kind": "gpus", "want": count, "there": cards in all,
         "holders": [{"index", "run", "worker": {"id", "runtime", "image"} if it is another one}],
         "strangers": [{"index", "used_mib", "pid", "user", "program", "since_at", "left"}],
         "going": [{"index", "used_mib"}], "query_failed": text, "said": text}
        What is not known, or not so, is left out; `holders` and `strangers` are always there.
        own: the asking worker as it stands in its leases.
        """
        why: Table = {
            "kind": "gpus",
            "want": count,
            "there": len(self.cards),
            "holders": self._holders(lease_folder, own),
            "strangers": [_told(row) for row in self.strangers],
        }
        if self.going:
            why["going"] = [{key: row[key] for key in ("index", "used_mib")} for row in self.going]
        if self.problem:
            why["query_failed"] = self.problem
        if self.said:
            why["said"] = self.said
        return why

    def _holders(self, lease_folder: str, own: Optional[Table]) -> List[Table]:
        rows = []
        for card in self.cards:
            held = leases.holder(leases.gpu_path(lease_folder, card["uuid"]))
            if held is None:
                continue
            row: Table = {"index": card["index"], "run": _text(held.get("run"))}
            worker = held.get("worker")
            if isinstance(worker, dict) and worker != own:
                row["worker"] = {key: _text(worker.get(key)) for key in ("id", "runtime", "image")}
            rows.append(row)
        return rows


def _rows(body: Table, name: str) -> List[Table]:
    """The rows that are a card's: a job could write this file, and must not stop the queue."""
    rows = body.get(name)
    return [
        row
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
        and isinstance(row.get("uuid"), str)
        and row["uuid"].startswith(("GPU-", "MIG-"))
        and "/" not in row["uuid"]
        and all(
            key in row and (row[key] is None or isinstance(row[key], int))
            for key in ("index", "used_mib")
        )
    ]


def _number(value: Any) -> float:
    return float(value) if plain.is_number(value) else 0.0


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) else None


def _told(stranger: Table) -> Table:
    """A stranger's card with the largest of the processes there."""
    found = stranger.get("pids")
    pids = [app for app in (found if isinstance(found, list) else []) if isinstance(app, dict)]
    pids.sort(key=lambda app: -_number(app.get("used_mib")))
    row = {
        "index": stranger["index"],
        "used_mib": stranger["used_mib"],
        "since_at": stranger["since"],
        "left": stranger.get("left") or None,
        **{key: pids[0].get(key) for key in ("pid", "user", "program") if pids},
    }
    return {key: cell for key, cell in row.items() if cell is not None}


def in_words(waits: Table) -> List[str]:
    """The reasons in a `waits` of kind gpus, each short; none where none is known.

    `nvidia-smi exits 9`, `dqn-7k3fa's`, `dqn-7k3fa's (image cu124)`,
    `GPU 0 is in use by others (3003 MiB, ann's python3)`, `GPU 0: memory of the run before is
    going (2003 MiB)`.
    """
    if waits.get("query_failed"):
        return [str(waits["query_failed"])]
    holders = {_holder_words(row) for row in waits.get("holders", [])}
    found = sorted(holders)
    for row in waits.get("strangers", []):
        found.append("GPU %s %s" % (row.get("index"), _stranger_words(row)))
    for row in waits.get("going", []):
        text = "GPU %s: memory of the run before is going (%s MiB)"
        found.append(text % (row.get("index"), row.get("used_mib")))
    if not found and waits.get("there", waits["want"]) < waits["want"]:
        found.append("there %s" % _there(waits["there"]))
    return found


def _holder_words(row: Table) -> str:
    worker = row.get("worker") or {}
    where = "image %s" % worker["image"] if worker.get("image") else worker.get("runtime")
    name = "%s's" % row["run"] if row.get("run") else "another worker's"
    return name + (" (%s)" % where if where else "")


def _stranger_words(row: Table) -> str:
    if row.get("left"):
        return "was in use by others until just now"
    facts = ["%d MiB" % row["used_mib"]] if row.get("used_mib") is not None else []
    program, user = row.get("program"), row.get("user")
    if program or user:
        facts.append("%s's %s" % (user, program) if program and user else str(program or user))
    return "is in use by others" + (" (%s)" % ", ".join(facts) if facts else "")


class NoGpu(ValueError):
    """A run asks for cards that this host can never give; its text says what there is."""

    def __init__(self, text: str, wanted: int, count: int) -> None:
        super().__init__(text)
        self.wanted = wanted
        self.count = count


def settle(asked: Any, nproc: int, workspace: Workspace, worker: config.Config) -> int:
    """How many cards a run gets: `auto` is one per rank where there are any.

    A host whose nvidia-smi fails now still counts as having the cards that it last showed: the run
    waits. Raises NoGpu when there are not so many, with what nvidia-smi said where it failed.
    """
    wanted = worker.gpus
    if asked == 0 or wanted == "none" and asked == "auto":
        return 0
    seen = Seen.read(workspace.gpus)
    cards = gpus.chosen(seen.cards, wanted) if seen is not None else []
    problem = None
    if seen is None or not cards or not seen.is_fresh:
        answer = gpus.look()
        if answer.problem is None and not (answer.missing and cards):
            cards = gpus.chosen(answer.cards, wanted)
        else:
            problem = ": ".join(filter(None, (answer.problem, answer.said)))
        if answer.missing:
            problem = gpus.NOT_INSTALLED
    if asked == "auto" and not cards and problem and not answer.missing:
        # it has cards, or should: three days on its CPU are not what was meant
        raise NoGpu("%s, so nobody knows its GPUs" % problem, nproc, 0)
    want = (nproc if cards else 0) if asked == "auto" else int(asked)
    if want > len(cards):
        text = "asked for %d GPU%s, there %s" % (want, "" if want == 1 else "s", _there(len(cards)))
        if problem and not cards and wanted != "none":
            text += " (%s)" % problem
        raise NoGpu(text, want, len(cards))
    return want


def _there(count: int) -> str:
    return "are none" if count == 0 else "is 1" if count == 1 else "are %d" % count
