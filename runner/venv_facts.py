"""What a `venv` host has beside what every host tells (host_facts.py): its Pythons, and the
environments that were made there (pure).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.host_facts import SCRIPT as MACHINE
from runner.host_facts import HostFacts, free_bytes, parse_facts, read_table, sections
from runner.model import Host
from runner.placement import worker_key

ANSWERS_IN_S = 10
"""As long as a Python may take for a line; the first one from a cold disk takes seconds."""
_LOOK = """
import importlib.util as u, json, sys
from importlib import metadata
def version(name):
    try: return metadata.version(name)
    except Exception: return None
print(json.dumps({"version": list(sys.version_info[:3]), "executable": sys.executable,
    "alone": sys.prefix == sys.base_prefix, "venv": u.find_spec("venv") is not None,
    "ensurepip": u.find_spec("ensurepip") is not None, "torch": version("torch")}))
""".strip()
# Docker is nobody's business here, and asking it takes time
SCRIPT = (
    'cut=$1 wanted=$2; shift 2; set -- "$cut" "$@"\ndocker() { return 1; }\n'
    + MACHINE
    + """
patient=
if timeout -k 1 9 true 2>/dev/null; then patient='timeout -k 1 LIMIT'
elif timeout 9 true 2>/dev/null; then patient='timeout LIMIT'; fi
look='""".replace("LIMIT", str(ANSWERS_IN_S))
    + _LOOK
    + """'
if [ -n "$wanted" ]; then set -- "$wanted"; else
    set -- python3 /opt/conda/bin/python3 /usr/local/bin/python3 /usr/bin/python3
fi
for python; do
    found=$(command -v "$python" 2>/dev/null) || continue
    say "python $found"; $patient "$found" -I -c "$look" 2>/dev/null </dev/null
    case $? in 124|137|143) say "python-silent $found" ;; esac
done
own=$state/workers/venv-$key
say venv-record; cat "$own/worker.json" 2>/dev/null
say venv-links
for link in "$own/current" "$own/pins"/*; do
    [ -h "$link" ] && printf '%s %s\\n' "${link##*/}" "$(readlink "$link" | sed 's,.*/,,')"
done
say venv-whole
for mark in "$state/venvs"/*/runner.json; do
    [ -x "${mark%/*}/bin/python3" ] && mark=${mark%/*} && echo "${mark##*/}"
done
say venv-there
for each in "$state/venvs"/* "$state/venvs"/.gone-*; do
    [ -d "$each" ] && echo "${each##*/}"
done
say venv-named
for link in "$state/workers"/venv-*/current "$state/workers"/venv-*/pins/*; do
    [ -h "$link" ] && readlink "$link" | sed 's,.*/,,'
done
say venv-free; above=$state/venvs
while [ ! -d "$above" ] && [ -n "$above" ]; do above=${above%/*}; done
df -Pk "${above:-/}" 2>/dev/null | tail -n 1
say venv-end
"""
)


@dataclass(frozen=True)
class Python:
    """An interpreter there."""

    path: str
    version: tuple[int, ...]
    makes_venvs: bool
    """It has venv and ensurepip."""
    alone: bool
    """It is no environment's itself, whose packages another one would not see."""
    torch: str | None = None


@dataclass(frozen=True)
class VenvFacts:
    """One host's answer."""

    machine: HostFacts
    pythons: tuple[Python, ...] = ()
    """In the order in which they were looked for."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """worker.json of the worker that is there."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Names of environments, by pin; that of the worker's own by `current`."""
    whole: frozenset[str] = frozenset()
    """Environments that were made to their end, and whose Python is there."""
    silent: tuple[str, ...] = ()
    """Pythons that did not answer."""
    unused: frozenset[str] = frozenset()
    """Folders of environments that no worker of the account names."""
    free_bytes: int | None = None
    """Where environments go."""
    mount: str = ""
    """The file system of that."""


def parse(text: str, cut: str, key: str) -> VenvFacts:
    """The facts in the script's output. Raises ValueError when it did not run to its end."""
    machine = parse_facts(text, cut, key)
    found = sections(text, cut)
    if "venv-end" not in found:
        raise ValueError("the host's answer breaks off")
    pythons = [
        _python(name[len("python ") :], read_table(body))
        for name, body in found.items()
        if name.startswith("python ")
    ]
    room = found.get("venv-free", "")
    links = [line.split(" ") for line in found.get("venv-links", "").splitlines()]
    return VenvFacts(
        machine=machine,
        pythons=tuple(each for each in pythons if each is not None),
        record=read_table(found.get("venv-record", "")),
        links={pair[0]: pair[1] for pair in links if len(pair) == 2},
        whole=frozenset(found.get("venv-whole", "").split()),
        silent=tuple(name[14:] for name in found if name.startswith("python-silent ")),
        unused=frozenset(_words_of(found, "there")) - frozenset(_words_of(found, "named")),
        free_bytes=free_bytes(room),
        mount=" ".join(room.split()[5:]),
    )


def _words_of(found: Mapping[str, str], name: str) -> list[str]:
    return found.get(f"venv-{name}", "").split()


def words(host: Host, pin: str) -> list[str]:
    """What the script is told after the word that cuts its answer."""
    told = [host.python or "", worker_key(host), pin, host.workspace]
    return [*told, "-", "-", *host.data.values()]


def _python(path: str, body: Mapping[str, Any]) -> Python | None:
    version = body.get("version")
    if not isinstance(version, list) or not all(isinstance(each, int) for each in version):
        return None
    torch = body.get("torch")
    known = isinstance(torch, str) and re.fullmatch(r"[0-9A-Za-z.+]+", torch) is not None
    return Python(
        path=path,
        version=tuple(version),
        makes_venvs=body.get("venv") is True and body.get("ensurepip") is True,
        alone=body.get("alone") is True,
        torch=torch if known else None,
    )
