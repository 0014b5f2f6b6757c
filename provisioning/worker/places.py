"""Which of a workspace's workers a run belongs to.

A workspace may have several docker workers, each in a container with a dispatcher and queue files
of its own: one for each image pin, and for a while an older one of the same pin, whose last runs
end there while its successor starts all that is new. Such a worker is a **place**, named by pin
and generation (`torch-2.6.3`). It registers when its dispatcher begins, in its place.json:
{"format": 1, "image": pin, "generation": n}. The highest generation of a pin is its active one.

A queued run belongs to the active place of its image. A live one belongs to the place that started
it, for as long as that is there: a keeper holds keeper.lock for as long as a container lives.
`local` and `venv` workers are alone: their place has no name, and every run is theirs.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Dict, List, NamedTuple, Optional, Set

import config
import records
from paths import Workspace

from runner import states

Table = Dict[str, Any]


class Place(NamedTuple):
    """One worker of the workspace, as it registered."""

    name: str
    image: str
    generation: int


def register(workspace: Workspace, known: config.Config) -> None:
    """Let the others know of this worker; one without a name is alone and tells nobody."""
    path = os.path.join(workspace.own, "place.json")
    body = {"format": records.FORMAT, "image": known.image, "generation": known.generation}
    # one that begins again on a full disk has nothing new to say
    if workspace.place and records.read(path) != body:
        records.write(path, body)


def find_all(workspace: Workspace) -> List[Place]:
    """Every place that registered, by image and generation."""
    found = []
    for name in workspace.place_names():
        body = records.read(os.path.join(workspace.at(name).own, "place.json")) or {}
        image, generation = body.get("image"), body.get("generation")
        if isinstance(image, str) and isinstance(generation, int):
            found.append(Place(name, image, generation))
    return sorted(found, key=lambda place: (place.image, place.generation))


def active(found: List[Place], image: Any) -> Optional[Place]:
    """The place that starts what is to run in an image; None when none ever registered."""
    of_image = [place for place in found if place.image == image]
    return of_image[-1] if of_image else None


def image_of(spec: Table) -> Any:
    """The pin a run is for: the one it asked for, else that of the worker that accepted it."""
    return spec.get("image") or spec.get("worker_image")


def queue_of(workspace: Workspace, spec: Table) -> Optional[Workspace]:
    """The workspace as the place sees it in whose queue a run stands; None when there is none."""
    if not workspace.place:
        return workspace
    place = active(find_all(workspace), image_of(spec))
    return workspace.at(place.name) if place else None


def is_there(workspace: Workspace, name: str) -> bool:
    """Whether a place's container lives; of one without a name, whether its dispatcher does."""
    seen = workspace.at(name)
    return records.is_locked(seen.keeper_lock if name else seen.dispatcher_lock)


def elsewhere(workspace: Workspace, state: Table) -> Optional[Table]:
    """{"image", "generation", "active"} of the place whose container a live run's processes are in,
    where that is not this one: nobody sees them from here."""
    name = state.get("place")
    if not isinstance(name, str) or name == workspace.place or state["state"] not in states.LIVE:
        return None
    found = find_all(workspace)
    for place in found:
        if place.name == name:
            newest = active(found, place.image)
            return {
                "image": place.image,
                "generation": place.generation,
                "active": newest == place,
            }
    return None


class Home:
    """The dispatcher's own view: which runs are its.

    Two never take each other's for theirs: a new one begins when the one before it has left its
    mark that it starts nothing more, or has no dispatcher; and a dispatcher looks before it acts.
    """

    def __init__(self, workspace: Workspace, known: config.Config) -> None:
        self._workspace = workspace
        self._image = known.image
        self._generation = known.generation
        self._mark: Any = None
        self._gone: Dict[str, bool] = {}
        self.is_superseded = False
        """Whether a newer one of its image is there."""
        self.is_active = not workspace.place
        """Whether what is queued is its to start."""
        self.look()

    def look(self) -> bool:
        """See who else is there now; whether that changed what is ours."""
        if not self._workspace.place:
            return False
        same = [place for place in find_all(self._workspace) if place.image == self._image]
        older = [place for place in same if place.generation < self._generation]
        self.is_superseded = any(place.generation > self._generation for place in same)
        if self.is_superseded:
            open(self._workspace.retired, "w").close()
        self.is_active = not self.is_superseded and all(self._has_let_go(one) for one in older)
        self._gone = {place.name: not is_there(self._workspace, place.name) for place in older}
        # a worker of before there were places
        self._gone[""] = not is_there(self._workspace, "")
        mark = (self.is_active, sorted(self._gone.items()))
        changed = bool(mark != self._mark)
        self._mark = mark
        return changed

    def _has_let_go(self, older: Place) -> bool:
        seen = self._workspace.at(older.name)
        return os.path.exists(seen.retired) or not records.is_locked(seen.dispatcher_lock)

    def clear(self, in_use: Set[str]) -> None:
        """Forget older places whose containers are gone, but those that runs still name."""
        for name, gone in self._gone.items():
            if name and gone and self.is_active and name not in in_use:
                shutil.rmtree(self._workspace.at(name).own, ignore_errors=True)

    def owns(self, spec: Table, state: Optional[Table]) -> bool:
        """Whether a run is ours to watch or to start."""
        if not self._workspace.place:
            return True
        if state is not None and state["state"] in states.LIVE:
            place = state.get("place") or ""
            if place == self._workspace.place:
                return True
            ours = self.is_active and image_of(spec) == self._image
            return bool(ours) and self._gone.get(place, False)
        return self.is_active and image_of(spec) in (self._image, None)


def keep(workspace: Workspace) -> Optional[int]:
    """Hold this place for as long as the caller lives; None when somebody does already."""
    return records.try_lock(workspace.keeper_lock)
