"""A `venv` host over one session: reads what it is like, has its environment made or taken away.

Safe to repeat and to break off. Nothing is made outside `~/.local/state/runner` and the workspace;
there is no sudo, no port, no change to anyone's keys or shell files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner import content, host_program
from runner.carriers import Session
from runner.carriers.base import OnLine
from runner.errors import Conflict, ProvisionError, RunnerError, TimedOut
from runner.host_answers import ask, said_lines
from runner.model import Host, ImagePin
from runner.placement import worker_key
from runner.provisioner import PROBE, Probe, parse_probe
from runner.show.units import some
from runner.venv_facts import SCRIPT, VenvFacts, parse, words
from runner.venv_plan import OWN_PACKAGES, VenvPlan, check_request, plan_venv, venv_key
from runner.worker_plan import check_host

_MAKE_S = 8000.0
"""Longer than pip may take there; the user sees its progress and may interrupt."""
_DOWN_S = 900.0
_PROBE_S = 120.0
"""The first import of torch from a cold disk takes half a minute."""
_SEE_PIP = "what its pip is told there:  python3 -m pip config list"


class VenvHost:
    """One host of runtime `venv`."""

    def __init__(
        self, session: Session, host: Host, pin: ImagePin, pins: Mapping[str, ImagePin]
    ) -> None:
        self._session = session
        self.host = host
        self.pin = pin
        self._pins = pins

    def read(self) -> VenvFacts:
        """What it is like, checked; one round trip. Raises HostError, ProvisionError, SpecError."""
        check_request(self.host, self.pin)
        facts = self.look()
        check_host(self.host, self.pin, self._pins, facts.machine)
        return facts

    def look(self) -> VenvFacts:
        """What it is like. Raises HostError, ProvisionError."""
        key, told = worker_key(self.host), words(self.host, self.pin.name)
        return ask(self._session, self.host, SCRIPT, told, lambda text, cut: parse(text, cut, key))

    def plan(self, facts: VenvFacts, *, default: bool, rebuild: bool) -> VenvPlan:
        """What is to be made of it."""
        own = [line for line in _requirements() if line.partition("==")[0] in OWN_PACKAGES]
        return plan_venv(
            self.host, self.pin, facts, own_lines=own, default=default, rebuild=rebuild
        )

    def make(self, facts: VenvFacts, plan: VenvPlan, *, anew: bool, on_line: OnLine) -> str:
        """Makes it; where the environment is. Raises HostError, ProvisionError, Conflict."""
        request = {
            "digest": plan.digest,
            "system": plan.system,
            "lines": list(plan.lines),
            "env": dict(self.host.env),
            "key": plan.key,
            "pin": self.pin.name,
            "default": plan.default,
            "record": dict(plan.record),
            "workspace": facts.machine.workspace,
            "anew": anew,
        }
        try:
            made = host_program.run(
                self._session,
                self.host.name,
                plan.python.path,
                "venv_make",
                request,
                timeout_s=_MAKE_S,
                on_line=on_line,
            )
        except host_program.Refusal as refusal:
            raise _failure(self.host, plan, refusal) from refusal
        return str(made.get("path"))

    def tidy(self, facts: VenvFacts) -> int:
        """Removes environments that nobody uses, or makes any more; how many. Raises HostError,
        ProvisionError.
        """
        python = facts.pythons[0].path
        try:
            made = host_program.run(
                self._session, self.host.name, python, "venv_make", {}, timeout_s=_DOWN_S
            )
        except host_program.Refusal as refusal:
            raise ProvisionError(
                f"{self.host.name}: environments cannot be removed", *refusal.said
            ) from refusal
        return int(made.get("removed") or 0)

    def probe(self, path: str) -> Probe:
        """Imports torch in an environment and computes a little. Raises ProvisionError."""
        try:
            done = self._session.run([f"{path}/bin/python3", "-I", "-c", PROBE], timeout_s=_PROBE_S)
        except TimedOut as error:
            raise ProvisionError(f"{self.host.name}: torch does not answer there") from error
        probe = parse_probe(done.text)
        if done.status or probe is None:
            raise ProvisionError(
                f"{self.host.name}: the environment's Python cannot use torch", *said_lines(done)
            )
        return probe

    def take_away(self, facts: VenvFacts, *, purge: bool) -> dict[str, Any]:
        """Takes the worker away. Raises HostError, ProvisionError, Conflict while runs live."""
        if not facts.pythons:
            raise ProvisionError(f"{self.host.name}: there is no Python to do it with")
        request = {
            "key": venv_key(self.host),
            "workspace": facts.machine.workspace,
            "purge": purge,
        }
        try:
            return host_program.run(
                self._session,
                self.host.name,
                facts.pythons[0].path,
                "venv_down",
                request,
                timeout_s=_DOWN_S,
            )
        except host_program.Refusal as refusal:
            if refusal.kind == "live":
                raise self._live(refusal.said) from refusal
            raise ProvisionError(
                f"{self.host.name}: the worker could not be taken away", *refusal.said
            ) from refusal

    def _live(self, runs: tuple[str, ...]) -> Conflict:
        return Conflict(
            f"{self.host.name}: runs live there ({some(runs)}); nothing was taken away",
            "wait for them,",
            f"or:  runner cancel host={self.host.name}",
        )


def _requirements() -> list[str]:
    text = (content.root() / "provisioning" / "requirements.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]


def _failure(host: Host, plan: VenvPlan, refusal: host_program.Refusal) -> RunnerError:
    name, said = host.name, list(refusal.said)
    python = f"{plan.python.path} (Python {'.'.join(map(str, plan.python.version))})"
    if refusal.kind == "no-index":
        return ProvisionError(
            f"{name}: its pip reaches no package index",
            *said,
            _SEE_PIP,
            f"a proxy: in hosts/{name}.toml, [env], HTTPS_PROXY",
        )
    if refusal.kind == "no-package":
        return ProvisionError(
            f"{name}: its pip finds no {' '.join(said)} for {python}",
            f'another Python: in hosts/{name}.toml, python = "…"',
            _SEE_PIP,
        )
    if refusal.kind == "no-space":
        return ProvisionError(f"{name}: no room on its disk for the environment", *said)
    if refusal.kind == "busy":
        return Conflict(f"{name}: somebody else makes an environment there just now; try later")
    if refusal.kind == "workspace":
        return ProvisionError(
            f"{name}: its workspace {said[0]} cannot be made",
            *said[1:],
            f'another one: in hosts/{name}.toml, workspace = "…"',
        )
    if refusal.kind == "venv":
        return ProvisionError(f"{name}: {python} could not make a virtual environment", *said)
    return ProvisionError(f"{name}: the environment could not be made", *said)
