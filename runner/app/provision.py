"""Makes a host's worker: says what it will make, makes it, tries it.

One that is there already goes on until the new one has begun: runs that live there end there.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from runner import inventory
from runner.app.context import Context
from runner.app.provision_venv import provision_venv
from runner.app.reports import ProvisionReport
from runner.app.steps import WILL_NOT, Steps
from runner.build_log import PARTS
from runner.carriers import open_session
from runner.endpoint import Worker
from runner.errors import Conflict, ProvisionError, RunnerError, SpecError
from runner.host_facts import Container, HostFacts
from runner.model import Host
from runner.provisioner import Overtaken, Probe, Provisioner
from runner.show.units import plural, size, some, took
from runner.worker_plan import WorkerPlan

_UP_S = 30.0
"""A container starts in a second; under load in ten."""
_LEAVE_S = 20.0
"""An idle worker that was replaced ends by itself in a second or two."""
_LOOK_S = 0.3
_TRIES = 4
"""Somebody else may provision the same host just now."""


def provision(
    ctx: Context, host: str, image: str | None, rebuild: bool, at_boot: bool | None = None
) -> ProvisionReport:
    """The host's worker of an image (its own unless given), made or found as it should be.

    at_boot: see `provision_venv`; of no other runtime.

    Raises SpecError before anything is touched, HostError, ProvisionError, Conflict.
    """
    began = time.monotonic()
    found = ctx.host(host)
    if found.runtime == "local":
        raise SpecError(f"{host} is this machine's own Python; there is nothing to make")
    if at_boot is not None and found.runtime != "venv":
        raise SpecError(
            f"{host} has runtime {found.runtime}: its container comes back with Docker by itself"
        )
    pin = inventory.find_image(ctx.images, image or found.image)
    wanted = dataclasses.replace(found, image=pin.name)
    try:
        ctx.report.step(f"connecting to {host}")
        with open_session(wanted) as session:
            connected_s = time.monotonic() - began
            if found.runtime == "venv":
                report = provision_venv(
                    ctx,
                    session,
                    wanted,
                    pin,
                    default=found.image == pin.name,
                    rebuild=rebuild,
                    at_boot=at_boot,
                )
            else:
                making = _Making(ctx, wanted, Provisioner(session, wanted, pin, ctx.images))
                report = making.go(rebuild)
    finally:
        ctx.report.done()
    if image is not None and found.image != pin.name:
        ctx.report.note(f"runs go there with:  runner submit host={host} image={pin.name}")
        ctx.report.note(
            f"to make it the one they go to by themselves, write in hosts/{host}.toml:  "
            f'image = "{pin.name}"'
        )
    steps = {"connect": round(connected_s, 3), **report.steps}
    return dataclasses.replace(report, steps=steps, seconds=time.monotonic() - began)


class _Making:
    """The steps, each with what is said of it and how long it took."""

    def __init__(self, ctx: Context, host: Host, maker: Provisioner) -> None:
        self._report = ctx.report
        self._host = host
        self._maker = maker
        self._steps = Steps(ctx.report)
        self._layers: tuple[int, int] | None = None
        self._announced = False

    def go(self, rebuild: bool) -> ProvisionReport:
        changed = False
        goes_on: list[str] = []
        for left in reversed(range(_TRIES)):
            plan = self._look(rebuild and not changed)
            try:
                if plan.is_done:
                    self._maker.tidy(plan)
                else:
                    goes_on = self._make(plan, rebuild and not changed)
                    changed = True
                break
            except Overtaken:
                if not left:
                    raise
        probe = self._try_out(plan)
        if changed:
            goes_on = self._see_off(plan, goes_on)
        built, cached = self._layers or (0, 0)
        return ProvisionReport(
            host=self._host.name,
            changed=changed,
            container=plan.container,
            image=plan.image,
            worker=plan.worker,
            torch=probe.torch,
            gpus=probe.seen_gpus,
            pin=self._maker.pin.name,
            generation=plan.generation,
            steps=self._steps.rounded(),
            layers_built=built,
            layers_cached=cached,
            draining=tuple(goes_on),
        )

    def _look(self, rebuild: bool) -> WorkerPlan:
        self._report.step(f"looking at {self._host.name}")
        facts = self._steps.timed("look", self._maker.read)
        if facts.base_id is None:
            self._announce(facts, None)
            progress = self._steps.progress("base image")
            self._steps.timed("base", lambda: self._maker.pull(progress))
            facts = self._maker.read()
            if facts.base_id is None:
                raise ProvisionError(
                    f"{self._host.name}: the base image is not there after its fetch"
                )
        self._facts = facts
        plan = self._maker.plan(facts, rebuild=rebuild)
        for note in plan.notes if not self._announced else ():
            self._report.note(note)
        if not plan.is_done:
            self._announce(facts, plan)
        return plan

    def _announce(self, facts: HostFacts, plan: WorkerPlan | None) -> None:
        if self._announced:
            return
        self._announced = True
        image = "image, " if plan is None or plan.build else ""
        base = f"base image {self._maker.pin.base}, " if plan is None else ""
        name = f"container {plan.container}" if plan else "its container"
        self._report.note(
            f"will make on {self._host.name}: {base}{image}{name}, {self._host.workspace}"
            + (f" ({size(facts.free_bytes)} free)" if facts.free_bytes is not None else "")
        )
        self._report.note(WILL_NOT)

    def _make(self, plan: WorkerPlan, rebuild: bool) -> list[str]:
        """The runs that go on in the container which stepped aside, if there was one."""
        self._refuse_before(plan.before)
        if plan.build:
            self._build(plan, rebuild)
        self._maker.tidy(plan)
        self._maker.remove([each.id for each in plan.before])
        self._report.step("starting the container")
        live = self._maker.live_runs(plan.current) if plan.current is not None else []
        self._steps.timed("start", lambda: self._start(plan))
        return live

    def _start(self, plan: WorkerPlan) -> None:
        self._maker.write_folders(self._facts, plan)
        self._maker.start(plan)

    def _build(self, plan: WorkerPlan, rebuild: bool) -> None:
        progress = self._steps.progress("image")
        log = self._steps.timed(
            "build", lambda: self._maker.build(plan, anew=rebuild, on_line=progress)
        )
        self._steps.seconds.update(log.seconds)
        self._layers = (log.built, log.cached)
        named = [("base", self._steps.seconds.get("base"))]
        named += [(part, log.seconds.get(part)) for part in PARTS]
        parts = [f"{name} {took(seconds)}" for name, seconds in named if seconds is not None]
        if len(parts) < 2:
            parts.append(f"built in {took(self._steps.seconds['build'])}")
        self._report.note(
            f"image      {', '.join(parts)}; {plural(log.built, 'layer')} made,"
            f" {log.cached} from before"
        )

    def _refuse_before(self, found: Sequence[Container]) -> None:
        live = [run for each in found for run in self._maker.live_runs(each)]
        if live:
            raise Conflict(
                f"{self._host.name}: runs live there ({some(live)}) in a container of an older"
                " version, which cannot stay beside another; nothing was changed",
                "wait for them, or cancel them, then try again",
            )

    def _see_off(self, plan: WorkerPlan, live: list[str]) -> list[str]:
        """The runs that go on in the container which stepped aside; without any it is removed."""
        old = plan.current
        if old is None or not old.is_up:
            return []
        if not live:
            self._report.step("waiting for the old container's end")
            until = time.monotonic() + _LEAVE_S
            while not self._maker.has_ended(old) and time.monotonic() < until:
                time.sleep(_LOOK_S)
            # one may have begun there at the last moment
            live = [] if self._maker.has_ended(old) else self._maker.live_runs(old)
        if not live:
            self._maker.forget(plan, old)
            return []
        go = "goes on" if len(live) == 1 else "go on"
        self._report.note(
            f"before     {plural(len(live), 'run')} {go} in the old container, which leaves"
            f" when {'it has' if len(live) == 1 else 'they have'} ended"
        )
        return live

    def _try_out(self, plan: WorkerPlan) -> Probe:
        self._report.step("waiting for the worker")
        self._steps.timed("up", self._wait_up)
        self._report.step("trying torch in the worker")
        probe = self._steps.timed("probe", lambda: self._maker.probe(plan))
        if not probe.matmul:
            raise ProvisionError(f"{self._host.name}: torch computes wrongly there")
        unusable = probe.seen_gpus and not probe.cuda_gpus
        if unusable and probe.built_for_cuda:
            raise ProvisionError(
                f"{self._host.name}: the container shows its GPUs, but torch cannot use them",
                "after a driver upgrade the machine may need a restart",
            )
        gpus = plural(probe.seen_gpus, "GPU") if probe.seen_gpus else "no GPU"
        hint = " this torch has no use for" if unusable else ""
        started = f"up in {took(self._steps.seconds['up'])}; " if not plan.is_done else "was up; "
        self._report.note(f"worker     {started}torch {probe.torch}: {gpus}{hint}, matmul ok")
        return probe

    def _wait_up(self) -> None:
        """Until the worker answers over its own protocol and its dispatcher is up."""
        until = time.monotonic() + _UP_S
        while True:
            try:
                with Worker(self._host, image=self._host.image) as worker:
                    reply, _ = worker.call("info")
                if reply.get("up"):
                    return
                trouble: RunnerError = ProvisionError(
                    f"{self._host.name}: the worker's dispatcher did not come up"
                )
            except ProvisionError as error:  # the container is just starting
                trouble = error
            if time.monotonic() > until:
                raise trouble
            time.sleep(_LOOK_S)
