"""What to make on a host of runtime `venv`: decided from facts alone (pure).

An environment is named by a digest of what it is made from: the Python, the pin's packages and the
worker's own. Where the host's Python holds the pin's torch already, as on rented PyTorch machines,
the environment sees that one and nothing of it is fetched.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.errors import ProvisionError, SpecError
from runner.fields import said
from runner.grammar.requirements import problem_of, without_secrets
from runner.model import Host, ImagePin
from runner.placement import worker_key
from runner.venv_facts import ANSWERS_IN_S, Python, VenvFacts
from runner.worker_options import lasting

LEAST_PYTHON = (3, 9)
OWN_PACKAGES = ("supervisor", "py-spy")
"""What the worker itself needs, by the names in provisioning/requirements.txt."""
LEAST_FREE = 1 << 30
_WITH_TORCH = 8 << 30
"""torch and what it brings of CUDA: wheels and what is in them."""
_FORMAT = 1


@dataclass(frozen=True)
class VenvPlan:
    """What is to be there, and what of it is missing."""

    python: Python
    digest: str
    lines: tuple[str, ...]
    """For pip, as in a requirements file."""
    system: bool
    """It sees the packages of the Python it is made from, whose torch is the pin's."""
    record: Mapping[str, Any] = field(repr=False)
    key: str = ""
    default: bool = True
    """It is the environment of runs that name no image."""
    make: bool = True
    settle: bool = True
    """The records there say otherwise."""
    has_torch: bool = False

    @property
    def is_done(self) -> bool:
        """Nothing is missing."""
        return not self.make and not self.settle


def venv_key(host: Host) -> str:
    """The name of the worker's folder."""
    return f"venv-{worker_key(host)}"


def check_request(host: Host, pin: ImagePin) -> None:
    """Refuses what a virtual environment cannot be. Raises SpecError."""
    if host.network != "full":
        raise SpecError(
            f'hosts/{host.name}.toml: network is "{host.network}"; a venv has the machine\'s own'
        )
    if host.limits.memory_bytes is not None:
        raise SpecError(f"hosts/{host.name}.toml: limits.memory is a container's; a venv has none")
    if not pin.pip:
        raise SpecError(
            f"image pin {pin.name} has no list `pip`, which says what its environment holds",
            'e.g. in images.toml:  pip = ["torch==2.6.0", "numpy==2.2.6"]',
        )
    for line in pin.pip:
        # options behind a package, and a comment, are pip's own matter
        package = re.split(r"\s+(?:--|#)", line, maxsplit=1)[0]
        if not line.startswith("-") and (why := problem_of(package)) is not None:
            shown = said(without_secrets(line))
            raise SpecError(f"image pin {pin.name}: pip has {shown}, which {why}")
    loose = [line for line in pin.pip if not line.startswith("-") and "==" not in line]
    if loose:
        raise SpecError(f"image pin {pin.name}: pip names {loose[0]} without an exact version (==)")


def choose_python(host: Host, pin: ImagePin, facts: VenvFacts) -> tuple[Python, bool]:
    """(the interpreter, whether it holds the pin's torch). Raises ProvisionError."""
    fitting = [each for each in facts.pythons if each.version >= LEAST_PYTHON and each.makes_venvs]
    for each in fitting:
        if each.alone and _is_torch_of(pin, each.torch, bool(facts.machine.cards)):
            return each, True
    if fitting:
        return fitting[0], False
    raise _no_python(host, facts)


def _no_python(host: Host, facts: VenvFacts) -> ProvisionError:
    other = f'name another in hosts/{host.name}.toml:  python = "/opt/conda/bin/python3"'
    if not facts.pythons:
        named = host.python or "python3"
        if facts.silent:
            text = f"{facts.silent[0]} does not answer within {ANSWERS_IN_S} s"
            return ProvisionError(f"{host.name}: {text}", other)
        return ProvisionError(f"{host.name}: {named} is not there, or is no Python", other)
    first = facts.pythons[0]
    version = ".".join(map(str, first.version))
    if first.version < LEAST_PYTHON:
        return ProvisionError(
            f"{host.name}: {first.path} is Python {version}; a worker needs 3.9 or newer", other
        )
    return ProvisionError(
        f"{host.name}: {first.path} (Python {version}) makes no virtual environments;"
        " its keeper can install what is missing:",
        "apt install python3-venv",
        f"or {other}",
    )


def _is_torch_of(pin: ImagePin, torch: str | None, has_gpus: bool) -> bool:
    if torch is None:
        return False
    version, _, build = torch.partition("+")
    if version != pin.torch.partition("+")[0]:
        return False
    if build == "cpu":
        return not has_gpus
    cuda = re.fullmatch(r"cu(\d+)(\d)", build)
    return cuda is None or f"{cuda[1]}.{cuda[2]}" == pin.cuda


def torch_as_pinned(pin: ImagePin, torch: str) -> str:
    """A torch that was imported, in the pin's words: with its build only where the pin names one.

    So a worker that is looked at again, where nothing is imported, is told of alike.
    """
    return torch if "+" in pin.torch else torch.partition("+")[0]


def plan_venv(
    host: Host,
    pin: ImagePin,
    facts: VenvFacts,
    *,
    own_lines: Sequence[str],
    default: bool,
    rebuild: bool,
) -> VenvPlan:
    """What to make. own_lines: the worker's own packages. default: see `VenvPlan`."""
    python, system = choose_python(host, pin, facts)
    lines = (*pin.pip, *(line for line in own_lines if not _names(line, pin.pip)))
    minor = ".".join(map(str, python.version[:2]))
    identity = [_FORMAT, minor, python.path, python.torch if system else None, list(lines)]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    record = _record(host, pin, facts)
    known = facts.links.get(pin.name, "")
    same = known.partition("-")[0] == digest and known in facts.whole
    default = default or not facts.record
    make = rebuild or not same
    named = any(_names(line, ("torch",)) for line in lines)
    plan = VenvPlan(
        python=python,
        digest=digest,
        lines=lines,
        system=system,
        record=record,
        key=venv_key(host),
        default=default,
        make=make,
        settle=make or not _is_settled(facts, record, known, default=default),
        has_torch=system or named,
    )
    _check_room(host, facts, plan)
    return plan


def _is_settled(facts: VenvFacts, record: Mapping[str, Any], known: str, *, default: bool) -> bool:
    """Whether the record there says the same; that names the image of runs which name none."""
    if default:
        return lasting(facts.record) == lasting(record) and facts.links.get("current") == known
    same = {**lasting(facts.record), "image": None} == {**lasting(record), "image": None}
    return same and facts.links.get("current") in facts.whole


def _check_room(host: Host, facts: VenvFacts, plan: VenvPlan) -> None:
    free = facts.free_bytes
    least = _WITH_TORCH if plan.has_torch and not plan.system else LEAST_FREE
    if plan.make and free is not None and free < least:
        raise ProvisionError(
            f"{host.name}: {free / 1e9:.1f} GB free on {facts.mount}, where the environment goes"
            f" (~/.local/state/runner/venvs); it takes up to {least / 1e9:.0f} GB"
        )


def _names(line: str, among: Sequence[str]) -> bool:
    name = _name(line)
    return any(_name(each) == name for each in among)


def _name(line: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower().replace("_", "-")


def _record(host: Host, pin: ImagePin, facts: VenvFacts) -> dict[str, Any]:
    return {
        "format": 1,
        "runtime": "venv",
        "host": host.name,
        "image": {"pin": pin.name, "torch": pin.torch, "cuda": pin.cuda},
        **host.settings(),
        "network": host.network,
        "data": {name: facts.machine.data.get(path, path) for name, path in host.data.items()},
    }
