"""What comes of files, from frames of parts to files in place."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from runner import wire
from runner.errors import IntegrityError, WorkerError
from runner.manifest import Fetch, Known
from runner.transfer import parts
from runner.transfer.lanes import Cut, Unit
from runner.transfer.places import Places
from runner.transfer.sinks import Damaged, Gathering, Growing, Replaced, Sink, open_sink


class Ended(Exception):
    """Nothing is taken in any more."""


@dataclass
class Fetched:
    """What became of what was wanted."""

    done: list[tuple[Fetch, Known]] = field(default_factory=list)
    """Brought, verified and put into place."""
    changed: list[Fetch] = field(default_factory=list)
    """Other files by now than those that were listed, to be listed again."""
    gone: list[Fetch] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Somebody put something else there while they came."""
    waiting: dict[str, Known] = field(default_factory=dict)
    """Whole and verified, but others of their checkpoint are not: they lie in `.parts`."""
    bytes: int = 0
    """How many came."""


class Arrivals:
    """What is here of each file; any number of connections feed it, each with units of its own."""

    def __init__(
        self,
        host: str,
        wanted: Sequence[Fetch],
        cut: Cut,
        places: Places,
        on_bytes: Callable[[Fetch, int], None],
    ) -> None:
        self.wanted = wanted
        self._host = host
        self._places = places
        self._on_bytes = on_bytes
        self._lock = threading.RLock()
        self._units: Counter[int] = Counter()
        """How many of each file are under way."""
        for unit in (*cut.own, *(unit for batch in cut.batches for unit in batch), *cut.sums):
            self._units[unit.item] += 1
        self._pieced = {unit.item for unit in cut.sums}
        self._groups = Counter(item.file.group for item in wanted)
        """How many files of each group are not whole."""
        self._sinks: dict[int, Sink] = {}
        self._sums: dict[int, bytes] = {}
        self._dropped: set[int] = set()
        self._recorded: set[str] = set()
        self._staged: dict[str, list[tuple[Fetch, Known]]] = {}
        self._done: parts.Record | None = None
        self._ended = False
        self._result = Fetched()

    def stage_ready(self, ready: Iterable[tuple[Fetch, Known]]) -> None:
        """Take what came whole with an earlier pull and waited for the rest of its checkpoint."""
        for item, known in ready:
            self._recorded.add(item.file.name)
            self._staged.setdefault(item.file.group, []).append((item, known))
        for group in list(self._staged):
            if not self._groups[group]:
                self._place(group)

    def begin_growth(self, unit: Unit) -> None:
        """Sum up what is here of a log, for the worker to compare."""
        with self._unless_replaced(unit):
            sink = self._sink(unit)
            assert isinstance(sink, Growing)
            unit.prefix = sink.prefix
            return
        unit.is_over = True

    def feed(self, units: Sequence[Unit], payload: bytes) -> None:
        """Take in a frame of parts. Raises WorkerError for what nobody asked for."""
        view = memoryview(payload)
        at = 0
        while at < len(view):
            if len(view) - at < wire.PART_HEAD.size:
                raise WorkerError(f"{self._host}: the worker sent half a piece of a file")
            index, what, count = wire.PART_HEAD.unpack_from(view, at)
            at += wire.PART_HEAD.size
            if index >= len(units) or units[index].is_over:
                raise WorkerError(f"{self._host}: the worker sent a file nobody asked for")
            unit = units[index]
            if what == wire.PART_BYTES and count <= len(view) - at:
                self._bytes(unit, view[at : at + count])
                at += count
            elif what == wire.PART_HOLE:
                self._hole(unit, count)
            elif what == wire.PART_SUM and count == (32 if unit.has_sum else 0):
                self._over(unit, bytes(view[at : at + count]))
                at += count
            elif what == wire.PART_LEFT:
                self._leave(unit, gone=count == wire.LEFT_GONE)
            else:
                raise WorkerError(f"{self._host}: {self._name(unit)}: no piece of a file")

    def check_over(self, units: Iterable[Unit]) -> None:
        """Raises WorkerError when something was not answered."""
        for unit in units:
            if not unit.is_over:
                raise WorkerError(f"{self._host}: {self._name(unit)}: the worker did not send it")

    def again(self, unit: Unit) -> Unit:
        """What is left of a unit whose connection was lost."""
        if not unit.has_sum:
            return Unit(unit.item, unit.end, unit.position, unit.end)
        with self._lock:
            sink = self._sinks.pop(unit.item, None)
            if sink is not None:
                sink.close()
        return Unit(unit.item, unit.summed, unit.start, unit.end)

    def result(self) -> Fetched:
        """What became of everything so far."""
        self._result.waiting = {
            item.file.name: known for staged in self._staged.values() for item, known in staged
        }
        return self._result

    def close(self) -> None:
        """Whatever is under way is gone on from the next time."""
        with self._lock:
            self._ended = True
            for sink in self._sinks.values():
                with contextlib.suppress(OSError):
                    sink.close()
            self._sinks.clear()
            if self._done is not None:
                self._done.close()
                self._done = None

    # what a part is

    def _bytes(self, unit: Unit, data: memoryview) -> None:
        self._check_count(unit, len(data))
        with self._lock:  # another connection may just find that the file is another one now
            if unit.item not in self._dropped:
                with self._unless_replaced(unit):
                    self._sink(unit).write(unit.position, data)
            unit.position += len(data)
            self._result.bytes += len(data)
            self._on_bytes(self.wanted[unit.item], len(data))

    def _hole(self, unit: Unit, count: int) -> None:
        self._check_count(unit, count)
        with self._lock:
            if unit.item not in self._dropped:
                with self._unless_replaced(unit):
                    self._sink(unit).hole(unit.position, count)
            unit.position += count
            self._on_bytes(self.wanted[unit.item], count)

    def _check_count(self, unit: Unit, count: int) -> None:
        if not 0 < count <= unit.end - unit.position:
            raise WorkerError(
                f"{self._host}: {self._name(unit)}: {count} bytes more, not as listed"
            )

    def _over(self, unit: Unit, digest: bytes) -> None:
        if unit.position != unit.end:
            missing = unit.end - unit.position
            raise WorkerError(
                f"{self._host}: {self._name(unit)}: {missing} bytes fewer, not as listed"
            )
        with self._lock:
            unit.is_over = True
            self._units[unit.item] -= 1
            if unit.item in self._dropped:
                return
            if digest:
                self._sums[unit.item] = digest
            sink = self._sink(unit)
            if isinstance(sink, Gathering):
                sink.came(unit.start, unit.end)
            if not self._units[unit.item]:
                with self._unless_replaced(unit):
                    self._finish(unit, sink)

    def _leave(self, unit: Unit, gone: bool) -> None:
        with self._lock:
            unit.is_over = True
            if self._drop(unit):
                item = self.wanted[unit.item]
                (self._result.gone if gone else self._result.changed).append(item)

    # what becomes of a file

    def _sink(self, unit: Unit) -> Sink:
        if self._ended:
            raise Ended
        sink = self._sinks.get(unit.item)
        if sink is None:
            item = self.wanted[unit.item]
            sink = open_sink(self._places, item, in_order=unit.item not in self._pieced)
            self._sinks[unit.item] = sink
            if isinstance(sink, Gathering):
                self._recorded.add(item.file.name)
        return sink

    def _finish(self, unit: Unit, sink: Sink) -> None:
        item = self.wanted[unit.item]
        name = item.file.name
        try:
            known = sink.finish(self._sums[unit.item])
        except Damaged:
            if item.growth is None and not item.here:
                raise IntegrityError(
                    f"{self._host}: {name} arrived damaged; type the same words again"
                ) from None
            # what was here of it was not what is there
            self._drop(unit)
            self._result.changed.append(item)
            return
        del self._sinks[unit.item]
        if self._done is None:
            self._done = parts.open_done(self._places)
        parts.add_done(self._done, name, known)
        if item.growth is not None:
            parts.end_growth(self._places, name)
            self._result.done.append((item, known))
            return
        group = item.file.group
        self._staged.setdefault(group, []).append((item, known))
        self._groups[group] -= 1
        if not self._groups[group]:
            self._place(group)

    def _place(self, group: str) -> None:
        """Put all files of a checkpoint, or the one file, into place."""
        for item, known in self._staged.pop(group):
            name = item.file.name
            if self._places.look(name) != item.replaces:
                parts.drop(self._places, name)
                self._result.kept.append(name)
                continue
            self._places.rename(parts.part_name(name), name)
            if name in self._recorded:
                parts.drop(self._places, name)
            self._result.done.append((item, known))

    def _drop(self, unit: Unit) -> bool:
        """Nothing of the file is used, and what was here of it does not lie in the way any more."""
        if unit.item in self._dropped:
            return False
        self._dropped.add(unit.item)
        sink = self._sinks.pop(unit.item, None)
        if sink is not None:
            sink.cancel()
        return True

    @contextlib.contextmanager
    def _unless_replaced(self, unit: Unit) -> Iterator[None]:
        try:
            yield
        except Replaced:
            self._drop(unit)
            self._result.kept.append(self._name(unit))

    def _name(self, unit: Unit) -> str:
        return self.wanted[unit.item].file.name
