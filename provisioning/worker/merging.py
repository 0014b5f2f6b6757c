"""What several event files of a run say together: one curve for each metric. Pure.

* Files count in the order in which they were begun. One that says of a metric what an earlier one
  does, too, goes on from there or begins anew: what the earlier one had said of its first step and
  later ones does not count any more. Nor does what stood before where a writer says in a folder
  that it begins anew (`SessionLog.START`, torch's `purge_step`).
* A folder below one with event files gives its metrics with its path: `losses_train/loss`.
* Folders beside each other that are written at the same time and share metrics, such as `train/`
  and `validation/`, do so, too. When the one was over before the other began, it is the same
  training, begun anew.
"""

from __future__ import annotations

import bisect
import os
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import retention
import tfevents
from eventfiles import EventFile
from series import Point, Series, evenly

LAST_BYTES = 2500
"""Of the last values that are shown: they must fit into a record on a full disk."""
LEAST_POINTS = 20

Cut = Tuple[int, float]
"""(step, clock): what was said before that time of this step and later ones does not count."""


class Cuts:
    """Several of them; asking takes as long for many as for few."""

    def __init__(self, cuts: Iterable[Cut]) -> None:
        self._steps: List[int] = []
        self._walls: List[float] = []
        for step, wall in sorted(cuts):
            # one that cuts later steps matters only if it cuts what was said later, too
            if not self._walls or wall > self._walls[-1]:
                self._steps.append(step)
                self._walls.append(wall)

    def spare(self, point: Point) -> bool:
        """Whether the point counts."""
        place = bisect.bisect_right(self._steps, point[0]) - 1
        return place < 0 or point[1] >= self._walls[place]


class Part(NamedTuple):
    """What one file has of a metric."""

    name: str
    series: Series
    cuts: Cuts
    is_below: bool
    """Its folder lies below another one with event files, or beside one that is written, too."""


def parts(files: Sequence[EventFile]) -> List[Part]:
    """Each file's metrics by the names that are shown, oldest file first."""
    written = [file for file in files if file.first is not None]
    ordered = sorted(written, key=lambda file: (file.begun or 0.0, file.name))
    leads = _leads(ordered)
    names = [{tag: leads[file.folder] + tag for tag in file.series} for file in ordered]
    told = [set(each.values()) for each in names]
    out = []
    for place, file in enumerate(ordered):
        cuts: List[Cut] = [
            later.first
            for later, theirs in zip(ordered[place + 1 :], told[place + 1 :])
            if later.first is not None and not told[place].isdisjoint(theirs)
        ]
        for other in ordered:
            if other.folder == file.folder:
                cuts += other.starts
        is_below = bool(leads[file.folder])
        spared = Cuts(cuts)
        for tag, series in file.series.items():
            out.append(Part(names[place][tag], series, spared, is_below))
    return out


def last(found: Sequence[Part], metric: Optional[str]) -> Dict[str, Any]:
    """{"step", "metrics", "t"}: the newest value of each metric; the job's own choice first.

    The step is the highest one that counts, of the folders that stand for themselves if any do.
    """
    newest: Dict[str, Point] = {}
    step: Optional[Tuple[bool, int]] = None
    for part in found:
        point = next(filter(part.cuts.spare, part.series.newest_first()), None)
        if point is None:
            continue
        before = newest.get(part.name)
        if before is None or point[1] >= before[1]:
            newest[part.name] = point
        rank = (not part.is_below, point[0])
        step = rank if step is None else max(step, rank)
    metrics: Dict[str, float] = {}
    left = LAST_BYTES
    for name in sorted(newest, key=lambda name: (_place(name, metric), name)):
        size = len(name.encode("unicode_escape")) + 30
        if size <= left:
            left -= size
            metrics[name] = tfevents.short(newest[name][2])
    walls = [point[1] for point in newest.values() if point[1]]
    return {
        "step": None if step is None else step[1],
        "metrics": metrics,
        "t": max(walls) if walls else None,
    }


def points(
    found: Sequence[Part], most: int, names: Optional[List[str]], metric: Optional[str]
) -> List[List[Any]]:
    """[[step, metrics, t], …] by step, as `progress.points` gives them.

    Of each metric that is asked for about `most` points come. Without names these are all, and it
    is the one that is shown which has so many; the others share as many again.
    """
    curves = _curves(found, names)
    shown = _shown(curves, metric)
    others = max(LEAST_POINTS, most // max(1, len(curves) - 1))
    rows: Dict[int, List[Any]] = {}
    for name, curve in curves.items():
        room = most if names is not None or name == shown else min(most, others)
        for step, wall, value in evenly([(step, *curve[step]) for step in sorted(curve)], room):
            row = rows.setdefault(step, [step, {}, None])
            row[1][name] = tfevents.short(value)
            if wall:
                row[2] = max(wall, row[2] or 0.0)
    return [rows[step] for step in sorted(rows)]


# -- parts ------------------------------------------------------------------------------------


def _curves(
    found: Sequence[Part], names: Optional[List[str]]
) -> Dict[str, Dict[int, Tuple[float, float]]]:
    """{name: {step: (clock, value)}}; of several values of a step the later file's last counts."""
    curves: Dict[str, Dict[int, Tuple[float, float]]] = {}
    for part in found:
        if names is not None and part.name not in names:
            continue
        curve = curves.setdefault(part.name, {})
        for point in part.series:
            if part.cuts.spare(point):
                curve[point[0]] = point[1], point[2]
    return curves


def _shown(curves: Dict[str, Any], metric: Optional[str]) -> Optional[str]:
    wanted = (metric,) if metric else retention.KNOWN_METRICS
    return next((name for name in wanted if curves.get(name)), None)


def _place(name: str, metric: Optional[str]) -> int:
    """Where it stands among what is shown: the job's own choice, known ones, all others."""
    known = ((metric,) if metric else ()) + retention.KNOWN_METRICS
    return known.index(name) if name in known else len(known)


def _leads(ordered: Sequence[EventFile]) -> Dict[str, str]:
    """What stands before the metrics of each folder."""
    folders: Dict[str, List[EventFile]] = {}
    for file in ordered:
        folders.setdefault(file.folder, []).append(file)
    leads: Dict[str, str] = {}
    alone: List[str] = []
    for folder in folders:
        above = next((each for each in _above(folder) if each in folders), None)
        if above is None:
            alone.append(folder)
        else:
            leads[folder] = _lead(folder[len(above) + 1 :])
    mixed = _mixed(alone, folders)
    common = os.path.commonpath(sorted(mixed)) if len(mixed) > 1 else ""
    for folder in alone:
        leads[folder] = _lead(folder[len(common) :].lstrip("/")) if folder in mixed else ""
    return leads


def _lead(path: str) -> str:
    """A folder's path as the begin of a metric's name: text of any length made of any bytes."""
    text = os.fsencode(path).decode("utf-8", "replace")
    return text[-tfevents.LONGEST_TAG :] + "/"


def _above(folder: str) -> Iterator[str]:
    while "/" in folder:
        folder = folder.rpartition("/")[0]
        yield folder


def _mixed(alone: Sequence[str], folders: Dict[str, List[EventFile]]) -> List[str]:
    """Those of the folders that say at the same time what another one says, too."""
    facts = []
    for folder in alone:
        walls = [wall for file in folders[folder] for wall in _span(file)]
        tags = {tag for file in folders[folder] for tag in file.series}
        facts.append((folder, min(walls), max(walls), tags))
    mixed: Set[str] = set()
    for place, (folder, begun, ended, tags) in enumerate(facts):
        for other, its_begun, its_end, theirs in facts[place + 1 :]:
            if begun < its_end and its_begun < ended and not tags.isdisjoint(theirs):
                mixed.update((folder, other))
    return sorted(mixed)


def _span(file: EventFile) -> Iterator[float]:
    """The clock at its first scalar and at the newest of each metric."""
    if file.first is not None:
        yield file.first[1]
    for series in file.series.values():
        yield from (point[1] for point in [next(series.newest_first(), None)] if point)
