"""Makes a host's worker: says what it will make, makes it, tries it."""

from __future__ import annotations

import dataclasses
import time

from runner import inventory
from runner.app.context import Context
from runner.app.reports import ProvisionReport
from runner.carriers import open_session
from runner.carriers.base import OnLine
from runner.endpoint import Worker
from runner.errors import ProvisionError, RunnerError, SpecError
from runner.host_facts import HostFacts
from runner.model import Host
from runner.provisioner import Probe, Provisioner
from runner.show.units import plural, size, took
from runner.worker_plan import WorkerPlan

_UP_S = 30.0
"""A container starts in a second; under load in ten."""
_LOOK_S = 0.3


def provision(ctx: Context, host: str, image: str | None, rebuild: bool) -> ProvisionReport:
    """The host's worker, made or found as it should be.

    Raises SpecError before anything is touched, HostError, ProvisionError, and Conflict while runs
    live there.
    """
    began = time.monotonic()
    found = ctx.host(host)
    if found.runtime == "local":
        raise SpecError(f"{host} is this machine's own Python; there is nothing to make")
    pin = inventory.find_image(ctx.images, image or found.image)
    wanted = dataclasses.replace(found, image=pin.name)
    try:
        ctx.report.step(f"connecting to {host}")
        with open_session(wanted) as session:
            making = _Making(ctx, wanted, Provisioner(session, wanted, pin, ctx.images))
            report = making.go(rebuild)
    finally:
        ctx.report.done()
    if image is not None and found.image != pin.name:
        ctx.report.note(f'to keep it next time write in hosts/{host}.toml:  image = "{pin.name}"')
    return dataclasses.replace(report, seconds=time.monotonic() - began)


class _Making:
    """The steps, each with what is said of it."""

    def __init__(self, ctx: Context, host: Host, maker: Provisioner) -> None:
        self._report = ctx.report
        self._host = host
        self._maker = maker

    def go(self, rebuild: bool) -> ProvisionReport:
        self._report.step(f"looking at {self._host.name}")
        facts = self._maker.read()
        pulled_s = None
        if facts.base_id is None:
            self._announce(facts, None)
            pulled_s = self._pull()
            facts = self._maker.read()
            if facts.base_id is None:
                raise ProvisionError(
                    f"{self._host.name}: the base image is not there after its fetch"
                )
        plan = self._maker.plan(facts, rebuild=rebuild)
        for note in plan.notes:
            self._report.note(note)
        if not plan.is_done:
            self._maker.refuse_live_runs(facts, plan)
            if pulled_s is None:
                self._announce(facts, plan)
            self._make(facts, plan, rebuild, pulled_s)
        probe = self._try_out(plan)
        return ProvisionReport(
            host=self._host.name,
            changed=not plan.is_done,
            container=plan.container,
            image=plan.image,
            worker=plan.worker,
            torch=probe.torch,
            gpus=probe.seen_gpus,
        )

    def _announce(self, facts: HostFacts, plan: WorkerPlan | None) -> None:
        image = "image, " if plan is None or plan.build else ""
        base = f"base image {self._maker.pin.base}, " if plan is None else ""
        name = f"container {plan.container}" if plan else "its container"
        self._report.note(
            f"will make on {self._host.name}: {base}{image}{name}, {self._host.workspace}"
            + (f" ({size(facts.free_bytes)} free)" if facts.free_bytes is not None else "")
        )
        self._report.note("will not: use sudo, open a port, change sshd or your keys there")

    def _pull(self) -> float:
        began = time.monotonic()
        self._maker.pull(self._progress("base image"))
        return time.monotonic() - began

    def _make(
        self, facts: HostFacts, plan: WorkerPlan, rebuild: bool, pulled_s: float | None
    ) -> None:
        if plan.build:
            began = time.monotonic()
            self._maker.build(plan, anew=rebuild, on_line=self._progress("image"))
            base = "" if pulled_s is None else f"base {took(pulled_s)}, "
            self._report.note(f"image      {base}built in {took(time.monotonic() - began)}")
        self._report.step("starting the container")
        self._maker.write_folders(facts, plan)
        self._maker.start(plan)

    def _try_out(self, plan: WorkerPlan) -> Probe:
        began = time.monotonic()
        self._report.step("waiting for the worker")
        self._wait_up()
        up_s = time.monotonic() - began
        self._report.step("trying torch in the worker")
        probe = self._maker.probe(plan)
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
        started = f"up in {took(up_s)}; " if not plan.is_done else "was up; "
        self._report.note(f"worker     {started}torch {probe.torch}: {gpus}{hint}, matmul ok")
        return probe

    def _wait_up(self) -> None:
        """Until the worker answers over its own protocol and its dispatcher is up."""
        until = time.monotonic() + _UP_S
        while True:
            try:
                with Worker(self._host) as worker:
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

    def _progress(self, what: str) -> OnLine:
        def on_line(line: str) -> None:
            shown = "".join(sign if sign.isprintable() else " " for sign in line).strip()
            if shown:
                self._report.step(f"{what}: {shown[:60]}")

        return on_line
