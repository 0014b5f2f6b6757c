"""Makes the worker of a `venv` host: says what it will make, makes it, tries it."""

from __future__ import annotations

from runner.app.context import Context
from runner.app.reports import ProvisionReport
from runner.app.steps import WILL_NOT, Steps
from runner.carriers import Session
from runner.endpoint import Worker
from runner.errors import ProvisionError
from runner.model import Host, ImagePin
from runner.provisioner import Probe
from runner.show.units import plural, size, took
from runner.venv_facts import VenvFacts
from runner.venv_host import VenvHost
from runner.venv_plan import VenvPlan, torch_as_pinned


def provision_venv(
    ctx: Context,
    session: Session,
    host: Host,
    pin: ImagePin,
    *,
    default: bool,
    rebuild: bool,
    at_boot: bool | None,
) -> ProvisionReport:
    """The host's worker of a pin, made or found as it should be.

    default: it is the pin of the host file. at_boot: it is started at boot from now on, or no more;
    None: as it is. Raises SpecError, HostError, ProvisionError, Conflict.
    """
    return _Making(ctx, VenvHost(session, host, pin, ctx.images)).go(default, rebuild, at_boot)


class _Making:
    """The steps, each with what is said of it and how long it took."""

    def __init__(self, ctx: Context, maker: VenvHost) -> None:
        self._report = ctx.report
        self._host = maker.host
        self._maker = maker
        self._steps = Steps(ctx.report)

    def go(self, default: bool, rebuild: bool, at_boot: bool | None) -> ProvisionReport:
        self._report.step(f"looking at {self._host.name}")
        facts = self._steps.timed("look", self._maker.read)
        plan = self._maker.plan(facts, default=default, rebuild=rebuild)
        path = ""
        if not plan.is_done:
            self._announce(facts, plan)
            path = self._make(facts, plan, rebuild)
        elif facts.unused and (gone := self._steps.timed("tidy", lambda: self._maker.tidy(facts))):
            self._report.note(f"removed    {plural(gone, 'environment')} that nobody uses")
        worker = self._steps.timed("up", lambda: self._wait_up(at_boot))
        cards = len(facts.machine.cards) if self._host.gpus != "none" else 0
        torch = self._maker.pin.torch if plan.has_torch else ""
        if plan.make and plan.has_torch:
            probe = self._steps.timed("probe", lambda: self._try_out(path, cards))
            torch = torch_as_pinned(self._maker.pin, probe.torch)
        elif plan.make:
            self._report.note(
                f"worker     up in {took(self._steps.seconds['up'])}; no torch to try"
            )
        return ProvisionReport(
            host=self._host.name,
            changed=not plan.is_done,
            container="",
            image="",
            worker=worker,
            torch=torch,
            gpus=cards,
            pin=self._maker.pin.name,
            steps=self._steps.rounded(),
        )

    def _announce(self, facts: VenvFacts, plan: VenvPlan) -> None:
        free = facts.machine.free_bytes
        what = "environment" if plan.make else "its record"
        sees = f", which has torch {plan.python.torch} already" if plan.make and plan.system else ""
        self._report.note(
            f"will make on {self._host.name}: {what} of {self._maker.pin.name} with"
            f" {plan.python.path}{sees}, in ~/.local/state/runner; {self._host.workspace}"
            + (f" ({size(free)} free)" if free is not None else "")
        )
        self._report.note(WILL_NOT)

    def _make(self, facts: VenvFacts, plan: VenvPlan, rebuild: bool) -> str:
        path = self._steps.timed(
            "build",
            lambda: self._maker.make(
                facts, plan, anew=rebuild, on_line=self._steps.progress("environment")
            ),
        )
        if plan.make:
            self._report.note(
                f"environment  {plural(len(plan.lines), 'line')} of packages,"
                f" {took(self._steps.seconds['build'])}"
            )
        return path

    def _wait_up(self, at_boot: bool | None) -> str:
        """The worker's id, once it answers and its dispatcher is up."""
        self._report.step("waiting for the worker")
        with Worker(self._host, image=self._host.image) as worker:
            reply, _ = worker.call("info")
            if not reply.get("up"):
                raise ProvisionError(
                    f"{self._host.name}: the worker's dispatcher did not come up",
                    f"what it said:  {self._host.workspace}/.runner/supervisord.out",
                )
            if at_boot is not None:
                self._set_at_boot(worker, at_boot)
            config = reply.get("config")
            return str(config.get("worker")) if isinstance(config, dict) else ""

    def _set_at_boot(self, worker: Worker, wanted: bool) -> None:
        told, _ = worker.call("at_boot", wanted=wanted)
        by = {"cron": "cron, by a line of its crontab", "unit": "a user unit of systemd"}
        if wanted:
            self._report.note(f"at boot    {by.get(str(told.get('at_boot')), 'something')}")
            if told.get("note"):
                self._report.warn(f"{self._host.name}: {told['note']}; nothing starts it at boot")
        else:
            self._report.note(
                "at boot    nothing, as the next contact starts it"
                + (f" (it was {by[str(told['was'])]})" if told.get("was") in by else "")
            )

    def _try_out(self, path: str, cards: int) -> Probe:
        self._report.step("trying torch in the environment")
        probe = self._maker.probe(path)
        if not probe.matmul:
            raise ProvisionError(f"{self._host.name}: torch computes wrongly there")
        if cards and not probe.cuda_gpus and probe.built_for_cuda:
            raise ProvisionError(
                f"{self._host.name}: nvidia-smi shows GPUs there, but torch cannot use them",
                "after a driver upgrade the machine may need a restart",
            )
        gpus = plural(cards, "GPU") if cards else "no GPU"
        hint = " this torch has no use for" if cards and not probe.cuda_gpus else ""
        up = took(self._steps.seconds["up"])
        self._report.note(f"worker     up in {up}; torch {probe.torch}: {gpus}{hint}, matmul ok")
        return probe
