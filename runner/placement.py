"""Where a host's worker is, and the argv that starts a program in it: pure.

A workspace on a host may have several docker workers, one for each image pin, and for a while an
older one of the same pin whose last runs end there. Their containers:

    runner-UID-KEY-PIN                 the one that starts runs of that pin
    runner-UID-KEY-PIN-old-GENERATION  one that was replaced while runs lived there
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from runner.fields import valid_name
from runner.model import Host

KEY_LABEL = "org.runner.key"
ANY = "*"
"""As a container: whichever of the workspace's runs, the newest first."""
OLD_NAME = re.compile(r"-old-[0-9]+\Z")
"""How no image pin ends, since containers that drain do."""

_INTO_VENV = (
    "d=$HOME/.local/state/runner/workers/venv-{key} w=$1 p=$2 any=$3; shift 3; "
    'case $w in "~"/*) w=$HOME/${{w#??}} ;; esac; '
    'e=$d/pins/$p; [ -x "$e/bin/python3" ] || [ -z "$any" ] || e=$d/current; '
    '[ -x "$e/bin/python3" ] || {{ echo "No such container: environment $p" >&2; exit 1; }}; '
    'export RUNNER_VENV="$d" RUNNER_VENV_PIN="$p" RUNNER_WORKSPACE="$w"; exec "$e/bin/python3" "$@"'
)
_INTO_CONTAINER = 'exec docker exec -i "runner-$(id -u)-{suffix}" "$@"'
# the name too, for the label is the same for every account with such a workspace
_INTO_ANY = (
    'ids=$(docker ps -q --filter "label={label}={key}"'
    ' --filter "name=^/?runner-$(id -u)-{key}-" --filter status=running) || exit 1; '
    'for each in $ids; do exec docker exec -i "$each" "$@"; done; '
    'echo "No such container: runner-$(id -u)-{key}-" >&2; exit 1'
)


def worker_key(host: Host) -> str:
    """What tells apart the workspaces of one account on one host: 8 hex digits of the host file.

    Projects that name the same workspace share its workers.
    """
    text = json.dumps([host.runtime, host.workspace.rstrip("/")])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def container_suffix(host: Host, image: str | None = None, old: int | None = None) -> str:
    """A container's name after `runner-UID-`: of a pin (the host's own unless given), and of that
    older generation of it.
    """
    name = f"{worker_key(host)}-{image or host.image}"
    return name if old is None else f"{name}-old-{old}"


def suffix_elsewhere(host: Host, told: Mapping[str, Any]) -> str | None:
    """The container that a worker's refusal `elsewhere` names; None when that cannot be read.

    told: {"image", "generation", "active"} of the place where a run's processes are.
    """
    image, generation = told.get("image"), told.get("generation")
    if not isinstance(image, str) or not valid_name(image):
        return None
    if told.get("active") is True:
        return container_suffix(host, image)
    if not isinstance(generation, int) or isinstance(generation, bool) or generation < 0:
        return None
    return container_suffix(host, image, generation)


def worker_argv(
    host: Host, program: Sequence[str], image: str | None = None, container: str | None = None
) -> list[str]:
    """The argv that starts `program` in the host's worker; the container's name has the account's
    uid, which only the host knows.

    image: in the container of that pin, else in that of the host's own. container: in the one with
    that suffix (see `container_suffix`), or `ANY`.
    """
    if host.runtime == "local":
        return list(program)
    if host.runtime == "venv":
        # its own Python, whatever the program's first word; any environment serves who only looks
        script = _INTO_VENV.format(key=worker_key(host))
        words = [host.workspace, image or host.image, "" if image else "any"]
        return ["sh", "-c", script, "runner", *words, *program[1:]]
    if container == ANY:
        script = _INTO_ANY.format(label=KEY_LABEL, key=worker_key(host))
    else:
        script = _INTO_CONTAINER.format(suffix=container or container_suffix(host, image))
    return ["sh", "-c", script, "runner", *program]
