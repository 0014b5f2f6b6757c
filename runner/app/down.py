"""Takes a host's workers away; with `purge` all that was ever made there for this workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from runner import host_scripts
from runner.app.context import Context
from runner.app.down_venv import down_venv
from runner.app.reports import DownReport
from runner.app.steps import Ask, confirm_purge, forget_purged, pin_of, unpulled
from runner.carriers import Session, open_session
from runner.errors import Conflict, ProvisionError, SpecError
from runner.fields import said, valid_name
from runner.host_answers import read_facts, read_remains, said_lines
from runner.host_facts import Container, HostFacts
from runner.model import Host
from runner.placement import worker_key
from runner.provisioner import live_runs, remove_containers
from runner.remains import Remains
from runner.show.units import plural, some
from runner.worker_options import STOP_TIMEOUT_S
from runner.worker_plan import check_workspace, is_ours

_REMOVE_S = 900.0
"""Hundreds of GB of checkpoints on a slow disk."""


def down(
    ctx: Context,
    host: str,
    image: str | None = None,
    *,
    purge: bool = False,
    yes: bool = False,
    ask: Ask | None = None,
) -> DownReport:
    """The host's workers, or that of one image, taken away; what was there already is left.

    purge: workspace, images and folders, too. yes: nobody is asked. ask: puts a question to a
    person; None where nobody is there. Raises Conflict while runs live there that were not
    cancelled, SpecError where somebody has to be asked and nobody is there.
    """
    found = ctx.host(host)
    if found.runtime == "local":
        raise SpecError(
            f"{host} is this machine's own Python: its worker ends by itself when it is idle",
            f"what its runs take:  runner du host={host}",
        )
    if image is not None and not valid_name(image):
        raise SpecError(f"image is {said(image)}; it must be the name of a pin in images.toml")
    try:
        ctx.report.step(f"connecting to {host}")
        with open_session(found) as session:
            if found.runtime == "venv":
                return down_venv(ctx, session, found, image, purge=purge, yes=yes, ask=ask)
            leaving = _Leaving(ctx, session, found, image)
            leaving.look()
            if purge and not yes:
                leaving.confirm(ask)
            return leaving.go(purge)
    finally:
        ctx.report.done()


@dataclass
class _Leaving:
    ctx: Context
    session: Session
    host: Host
    image: str | None
    facts: HostFacts = field(init=False)
    remains: Remains = field(init=False)
    containers: list[Container] = field(init=False)
    cancelled: list[str] = field(default_factory=list)

    def look(self) -> None:
        """What there is. Raises Conflict when something keeps us from taking it away."""
        self.ctx.report.step(f"looking at {self.host.name}")
        self.facts = self._read()
        self.remains = read_remains(self.session, self.host, self.facts.uid)
        self.containers = [
            each
            for each in self.facts.containers
            if is_ours(each) and self.image in (None, each.pin)
        ]
        live: list[str] = []
        for each in self.containers:
            if each.status == "paused":
                raise Conflict(
                    f"{self.host.name}: container {each.name} is paused; nothing was taken away",
                    f"docker unpause {each.name}",
                )
            if each.status == "running":
                for run, was_cancelled in live_runs(self.session, self.host, each.name):
                    (self.cancelled if was_cancelled else live).append(run)
        if live:
            one = len(live) == 1
            raise Conflict(
                f"{self.host.name}: {plural(len(live), 'run')} {'lives' if one else 'live'} there"
                f" ({some(live)}); nothing was taken away",
                f"runner wait {' '.join(live[:3])}" if len(live) <= 3 else "wait for them,",
                f"or:  runner cancel {' '.join(live[:3])}"
                if len(live) <= 3
                else f"or:  runner cancel host={self.host.name}",
            )

    def _read(self) -> HostFacts:
        pin = pin_of(self.ctx, self.image or self.host.image)
        facts = read_facts(self.session, self.host, pin)
        if facts.has_docker and facts.docker_version is None:
            raise ProvisionError(
                f"{self.host.name}: Docker does not answer there; nothing was taken away",
                *facts.docker_error.splitlines()[-1:],
            )
        return facts

    @cached_property
    def unpulled(self) -> list[str]:
        """Runs that a purge takes away; that of one image leaves the workspace."""
        return unpulled(self.ctx, self.remains) if self.image is None else []

    def confirm(self, ask: Ask | None) -> None:
        """Let somebody decide over what would go for good. Raises Conflict unless they said yes."""
        check_workspace(self.host, self.facts)
        confirm_purge(self.ctx, self.host.name, self._going(), self.unpulled, ask)

    def _going(self) -> list[str]:
        names = [each.name for each in self.containers]
        lines = [f"containers  {', '.join(names)}"] if names else []
        if self.image is not None:
            return [*lines, f"images      those of {self.image} that the runner made there"]
        shown = ", ".join(self.unpulled[:5]) + (" …" if len(self.unpulled) > 5 else "")
        runs = f"with {plural(len(self.remains.runs), 'run')}"
        runs += f", not pulled here: {shown}" if self.unpulled else ", all pulled here"
        runs = runs if self.remains.runs else "without a run"
        lines += [f"workspace   {self.host.workspace}, {runs}", "images      those the runner made"]
        bases = self._made("base") if self.remains.is_last else []
        if bases:
            lines.append(f"bases       {', '.join(bases)} (fetched by the runner)")
        if not self.remains.is_last:
            lines.append("stays       what other workers of the account need: leases, keys, bases")
        return lines

    def _made(self, kind: str) -> list[str]:
        start = f"{kind} "
        return [line[len(start) :] for line in self.remains.made if line.startswith(start)]

    def go(self, purge: bool) -> DownReport:
        """Takes it away."""
        if purge:
            check_workspace(self.host, self.facts)
        if self.containers:
            self.ctx.report.step("ending the containers")
            limit_s = STOP_TIMEOUT_S if self.cancelled else 20
            ids = [each.id for each in self.containers]
            remove_containers(self.session, self.host, ids, limit_s=limit_s)
        pins = sorted({each.pin for each in self.containers if each.pin is not None})
        # the next one is to be known again, as its workspace stays
        known = "" if purge and self.image is None else self.facts.worker or ""
        self._sh(host_scripts.FORGET, self._name, known, *self._folders(pins))
        if purge:
            self._purge()
        return DownReport(
            host=self.host.name,
            image=self.image,
            containers=tuple(each.name for each in self.containers),
            purged=purge,
            runs=len(self.remains.runs),
            unpulled=tuple(self.unpulled) if purge else (),
            kept=self.remains.others if purge else (),
        )

    @property
    def _name(self) -> str:
        """What the names of all workers of the workspace begin with."""
        return f"runner-{self.facts.uid}-{worker_key(self.host)}"

    def _folders(self, pins: Sequence[str]) -> list[str]:
        """Names of the workers whose folders go, also of such that had no container any more."""
        if self.image is not None:
            return [f"{self._name}-{self.image}"]
        known = {name.rpartition(".")[0] or name for name in self.facts.records}
        return sorted({self._name, *known, *(f"{self._name}-{pin}" for pin in pins)})

    def _purge(self) -> None:
        if self.facts.has_docker:
            self.ctx.report.step("taking away the images")
            prune = "no" if self.remains.others_here else "all"
            self._sh(host_scripts.PURGE_IMAGES, prune, *self._inputs())
        if self.image is not None:
            return
        self.ctx.report.step("taking away the workspace")
        self._sh(host_scripts.PURGE_WORKSPACE, self.facts.workspace, needed="the workspace")
        if self.remains.is_last:
            if self.facts.has_docker:
                self._sh(host_scripts.PURGE_BASES, *self._made("base"))
            self._sh(host_scripts.PURGE_STATE, needed="the runner's own folder")
        forget_purged(self.ctx, self.host.name)

    def _inputs(self) -> list[str]:
        """Of the images that go: all that were made here, or those of one pin."""
        made = self._made("image")
        if self.image is None:
            return made
        start = f"{self.image}-".lower()
        tags = {tag[len(start) :] for tag in self.facts.images if tag.startswith(start)}
        return [inputs for inputs in made if inputs[:16] in tags]

    def _sh(self, script: str, *words: str, needed: str | None = None) -> None:
        done = self.session.run(["sh", "-c", script, "runner", *words], timeout_s=_REMOVE_S)
        if done.status and needed is not None:
            raise ProvisionError(
                f"{self.host.name}: {needed} could not be taken away", *said_lines(done)
            )
