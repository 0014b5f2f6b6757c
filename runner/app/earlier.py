"""What the sweep before said: the last one of the same schedule or name, with the same words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner import states
from runner.app.results import RunOnHost, SweepScore
from runner.comparing.bootstrap import iqm
from runner.metrics import metric_of
from runner.store import Record


def scores(runs: Sequence[RunOnHost], records: Iterable[Record]) -> dict[str, SweepScore]:
    """Each sweep among the runs that has a score, by its id.

    A sweep over several configurations has none: `compare` tells them apart. runs: those listed.
    records: what is known here of others; the rest of a sweep is looked for among them, and the
    sweep before, of which only those that a schedule or a person named the same are of one kind.
    """
    now: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run.status.sweep:
            now.setdefault(run.status.sweep, []).append(run.status.to_json())
    known: dict[str, list[Mapping[str, Any]]] = {}
    listed = {run.id for run in runs}
    for record in records if now else ():
        sweep = str(record.run.get("sweep") or "")
        if sweep in now and record.id not in listed:
            now[sweep].append(record.run)
        elif sweep:
            known.setdefault(sweep, []).append(record.run)
    before = {
        sweep: (_kind(rows[0]), score) for sweep, rows in known.items() if (score := _score(rows))
    }
    found = {}
    for sweep, rows in now.items():
        score = _score(rows)
        if score is None:
            continue
        kind = _kind(rows[0])
        older = [
            each
            for other, (other_kind, each) in before.items()
            if kind and other != sweep and other_kind == kind and each.ended_at < score.ended_at
        ]
        last = max(older, key=lambda each: each.ended_at, default=None)
        found[sweep] = score if last is None else score._replace(before=last)
    return found


def _score(rows: Sequence[Mapping[str, Any]]) -> SweepScore | None:
    """Of a sweep of one configuration that has ended, from its runs that are done; else None."""
    if any(row.get("state") != states.ENDED for row in rows):
        return None
    if len({_configuration(row) for row in rows}) > 1:
        return None
    done = [row for row in rows if row.get("outcome") == states.DONE]
    values = [metric_of(row.get("metrics") or {}, row.get("metric")) for row in done]
    numbers = [value for found in values if found is not None for _, value in [found]]
    if not numbers:
        return None
    ended = max(float(row.get("ended_at") or 0.0) for row in done)
    return SweepScore(iqm(numbers), len(numbers), ended)


def _kind(row: Mapping[str, Any]) -> str | None:
    """The same for sweeps that differ in their seeds alone; None for one that has no name."""
    if not row.get("name") and not row.get("tags"):
        return None
    project = (row.get("project") or {}).get("id")
    told = (project, row.get("job"), row.get("name"), row.get("tags"), row.get("metric"))
    return repr((told, _configuration(row)))


def _configuration(row: Mapping[str, Any]) -> str:
    """What runs have in common that differ in their seeds alone."""
    params = {key: value for key, value in (row.get("params") or {}).items() if key != "seed"}
    words = None if row.get("job") else row.get("argv")
    return repr((words, row.get("image"), sorted(params.items())))
