"""What a host is like, read in one round trip: the script that asks, and its answer (pure).

The answer is text from a machine we do not trust: it is cut in sections by a word made up for each
asking, and what cannot be read is taken for missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
SCRIPT = r"""
cut=$1 key=$2 pin=$3 workspace=$4 base=$5 images=$6
shift 6
say() { printf '\n%s %s\n' "$cut" "$1"; }
case $workspace in '~') workspace=$HOME ;; '~/'*) workspace=$HOME/${workspace#'~/'} ;; esac
say account; id -u; id -g; id -un; printf '%s\n' "$HOME"
say workspace; printf '%s\n' "$workspace"
there=$workspace
while [ ! -d "$there" ] && [ "$there" != / ] && [ -n "$there" ]; do
    rest=/${there##*/}$rest there=${there%/*}
done
real=$(cd "${there:-/}" 2>/dev/null && pwd -P)
say real; printf '%s\n' "${real%/}$rest"
say home; (cd "$HOME" && pwd -P)
say folder
[ -e "$workspace" ] && echo exists
[ -d "$workspace" ] && echo folder
[ -O "$workspace" ] && echo own
[ "$(id -u)" -eq 0 ] && [ -n "$(find "$workspace" -prune -user 1000 2>/dev/null)" ] && echo stand-in
[ -e "$workspace/.ssh" ] && echo holds-ssh
say free; df -Pk "${there:-/}" | tail -n 1
ours=runner-$(id -u)-$key state=$HOME/.local/state/runner
for record in "$state/workers/$ours"*/worker.json; do
    [ -e "$record" ] || continue
    folder=${record%/worker.json}
    say "record ${folder##*/}"; cat "$record" 2>/dev/null
done
say places; ls "$workspace/.runner/places" 2>/dev/null
say state; (cd "$state" 2>/dev/null && pwd -P)
for data; do
    say "data $data"; (cd "$data" 2>/dev/null && pwd -P)
done
say sockets
for socket in "${DOCKER_HOST:-}" /var/run/docker.sock; do
    socket=${socket#unix://}
    [ -e "$socket" ] || continue
    printf '%s\n' "$socket"; readlink -f "$socket" 2>/dev/null
done
say nvidia
if [ -z "$skip_nvidia" ] && command -v nvidia-smi >/dev/null 2>&1; then
    echo there
    ask=index,uuid,memory.total,driver_version
    $limited nvidia-smi "--query-gpu=$ask,compute_cap,name" --format=csv,noheader,nounits 2>&1
    status=$?
    if [ "$status" -ne 0 ]; then
        say nvidia-old
        $limited nvidia-smi "--query-gpu=$ask,name" --format=csv,noheader,nounits 2>&1
        status=$?
    fi
    say nvidia-status; echo "$status"
fi
say docker
if command -v docker >/dev/null 2>&1; then
    $limited docker version --format '{{.Server.Version}}' 2>&1
    status=$?
    say docker-status; echo "$status"
    if [ "$status" -eq 0 ]; then
        say info; $limited docker info --format '{{json .}}' 2>/dev/null
        say base; $limited docker image inspect --format '{{json .}}' "$base" 2>/dev/null
        say images
        $limited docker image ls --no-trunc --format '{{.Tag}} {{.ID}}' "$images" 2>/dev/null
        say containers
        { $limited docker ps -aq --filter label=org.runner.worker --filter "name=^/?$ours(-|\$)"
          $limited docker ps -aq --filter "name=^/?$ours-$pin\$"; } | while read -r id; do
            $limited docker container inspect --format '{{json .}}' "$id" 2>/dev/null
        done
    fi
fi
say end
"""
"""$limited, where it is set before, stands in front of what may hang; $skip_nvidia leaves that
out.
"""
_NUMBER = r"[0-9]{1,9}"


@dataclass(frozen=True)
class Card:
    """A GPU as nvidia-smi shows it; what it did not tell is None."""

    index: int
    uuid: str
    name: str
    memory_mib: int | None = None
    capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class Container:
    """A container of this workspace's, or one that has the name ours would have."""

    id: str
    name: str
    image: str
    status: str
    restarts: int = 0
    """How often Docker started it again."""
    restart_policy: str = "always"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def pin(self) -> str | None:
        """The image pin it is a worker of."""
        return self.labels.get("org.runner.image")

    @property
    def is_up(self) -> bool:
        """Whether it runs, or is about to again."""
        return self.status in ("running", "restarting")

    @property
    def generation(self) -> int:
        """The how-manieth of its pin it is; 0 where that is not told."""
        told = self.labels.get("org.runner.generation", "")
        return int(told) if re.fullmatch(_NUMBER, told) else 0


@dataclass(frozen=True)
class HostFacts:
    """One host's answer."""

    uid: int
    gid: int
    user: str
    home: str
    workspace: str
    """As an absolute path."""
    real_workspace: str
    """The same with links followed, as far as it exists."""
    real_home: str
    workspace_marks: frozenset[str] = frozenset()
    """Of `exists folder own stand-in holds-ssh`; stand-in: it is root's worker's (worker_plan)."""
    free_bytes: int | None = None
    real_state: str = ""
    """The runner's own folder there, with links followed; "" while there is none."""
    worker: str | None = None
    """The id of the worker that was made here before."""
    generations: Mapping[str, int] = field(default_factory=dict)
    """The highest that was ever used, by pin."""
    records: tuple[str, ...] = ()
    """Folders in workers/ that are of this workspace."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Where folders of the host file's [data] really are; those that are not there are left out."""
    sockets: tuple[str, ...] = ()
    """Where Docker listens, also with links followed."""
    has_docker: bool = False
    docker_version: str | None = None
    """None when it cannot be used; `docker_error` then says why."""
    docker_error: str = ""
    docker_root: str | None = None
    has_nvidia_runtime: bool = False
    base_id: str | None = None
    base_digests: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    """Ids of the worker images there, by tag."""
    containers: tuple[Container, ...] = ()
    """Those of this workspace, and whatever has the name that the worker's would have."""
    has_nvidia_smi: bool = False
    nvidia_error: str = ""
    driver: str | None = None
    cards: tuple[Card, ...] = ()


def parse_facts(text: str, cut: str, key: str) -> HostFacts:
    """The facts in the script's output; key: the workspace's (see `placement`).

    Raises ValueError when it did not run to its end.
    """
    found = sections(text, cut)
    account = found.get("account", "").splitlines()
    if (
        "end" not in found
        or len(account) < 4
        or not (account[0].isdigit() and account[1].isdigit())
    ):
        raise ValueError("the host's answer breaks off")
    info = read_table(found.get("info", ""))
    base = read_table(found.get("base", ""))
    nvidia = found.get("nvidia", "").splitlines()
    works = found.get("nvidia-status", "").strip() == "0"
    rows = found["nvidia-old"].splitlines() if "nvidia-old" in found else nvidia[1:]
    cards, driver = (
        parse_cards(rows, with_capability="nvidia-old" not in found) if works else ((), None)
    )
    docker_works = found.get("docker-status", "").strip() == "0"
    records = _named(found, "record", read_table)
    containers = _containers(found.get("containers", ""))
    places = [f"{key}-{name}" for name in found.get("places", "").splitlines()]
    return HostFacts(
        uid=int(account[0]),
        gid=int(account[1]),
        user=account[2] if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", account[2]) else "ACCOUNT",
        home=account[3],
        workspace=found.get("workspace", "").strip("\n"),
        real_workspace=found.get("real", "").strip("\n") or "/",
        real_home=found.get("home", "").strip("\n"),
        workspace_marks=frozenset(found.get("folder", "").split()),
        free_bytes=free_bytes(found.get("free", "")),
        real_state=found.get("state", "").strip("\n"),
        worker=next((id for id in map(_worker, records.values()) if id is not None), None),
        generations=_generations(key, [*records, *places], containers),
        records=tuple(records),
        data=_data(found),
        sockets=tuple(found.get("sockets", "").splitlines()),
        has_docker="docker-status" in found,
        docker_version=found.get("docker", "").strip() if docker_works else None,
        docker_error="" if docker_works else found.get("docker", "").strip(),
        docker_root=_text(info.get("DockerRootDir")),
        has_nvidia_runtime=_has_nvidia(info),
        base_id=_text(base.get("Id")),
        base_digests=tuple(str(item) for item in base.get("RepoDigests") or ()),
        images=dict(_pair(line) for line in found.get("images", "").splitlines() if " " in line),
        containers=containers,
        has_nvidia_smi=bool(nvidia),
        nvidia_error="" if works else _nvidia_error(found),
        driver=driver,
        cards=cards,
    )


def _nvidia_error(found: Mapping[str, str]) -> str:
    """What nvidia-smi said of its failure; one without words still is one."""
    said = "\n".join(found.get("nvidia", "").splitlines()[1:]).strip()[:500]
    status = found.get("nvidia-status", "").strip()
    return said or (f"nvidia-smi exits {status} without a word" if status else "")


def parse_cards(rows: list[str], *, with_capability: bool) -> tuple[tuple[Card, ...], str | None]:
    """Cards and driver version in nvidia-smi's CSV; the name stands last and may hold commas."""
    cards: list[Card] = []
    driver: str | None = None
    for row in rows:
        cells = [cell.strip() for cell in row.split(",", 5 if with_capability else 4)]
        if len(cells) != (6 if with_capability else 5) or not cells[0].isdigit():
            continue
        index, uuid, memory, version, *rest = cells
        driver = version if re.fullmatch(r"[0-9.]+", version) else driver
        capability = re.fullmatch(r"(\d+)\.(\d+)", rest[0]) if with_capability else None
        cards.append(
            Card(
                index=int(index),
                uuid=uuid,
                name=rest[-1],
                memory_mib=int(memory) if memory.isdigit() else None,
                capability=(int(capability[1]), int(capability[2])) if capability else None,
            )
        )
    return tuple(cards), driver


def sections(text: str, cut: str) -> dict[str, str]:
    """What stands below each line `CUT NAME`, by name."""
    found: dict[str, str] = {}
    for part in text.split(f"\n{cut} ")[1:]:
        name, _, body = part.partition("\n")
        found[name.strip()] = body
    return found


def read_table(text: str) -> dict[str, Any]:
    """A table in JSON that a host told; {} where it is none."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _pair(line: str) -> tuple[str, str]:
    tag, _, image = line.partition(" ")
    return tag, image.strip()


def _worker(record: Mapping[str, Any]) -> str | None:
    worker = record.get("worker")
    return worker if isinstance(worker, str) and re.fullmatch(r"w-[0-9a-f]{12}", worker) else None


def free_bytes(line: str) -> int | None:
    """What a line of `df -Pk` says is free."""
    words = line.split()
    return int(words[3]) * 1024 if len(words) >= 6 and words[3].isdigit() else None


def _has_nvidia(info: Mapping[str, Any]) -> bool:
    """A runtime of NVIDIA's toolkit, or a CDI device of it (newer engines)."""
    runtimes = info.get("Runtimes")
    devices = info.get("DiscoveredDevices")
    named = isinstance(runtimes, dict) and "nvidia" in runtimes
    return named or (isinstance(devices, list) and "nvidia.com/gpu" in json.dumps(devices))


def _named(found: Mapping[str, str], kind: str, read: Callable[[str], T]) -> dict[str, T]:
    """The sections `KIND NAME`, by name."""
    start = f"{kind} "
    return {name[len(start) :]: read(found[name]) for name in found if name.startswith(start)}


def _data(found: Mapping[str, str]) -> dict[str, str]:
    said = _named(found, "data", lambda text: text.strip("\n"))
    return {name: real for name, real in said.items() if real.startswith("/")}


def _generations(key: str, names: Iterable[str], containers: Iterable[Container]) -> dict[str, int]:
    """The highest generation of each pin in names such as `…KEY-PIN.3`, and in labels."""
    pairs = [(each.pin, each.generation) for each in containers if each.pin is not None]
    for name in names:
        told = re.fullmatch(rf"(?:runner-[0-9]+-)?{re.escape(key)}-(.+)\.({_NUMBER})", name)
        if told is not None:
            pairs.append((told[1], int(told[2])))
    found: dict[str, int] = {}
    for pin, generation in pairs:
        found[pin] = max(generation, found.get(pin, 0))
    return found


def _containers(text: str) -> tuple[Container, ...]:
    """One line of JSON each; one that is told twice counts once."""
    read = (_container(read_table(line)) for line in text.splitlines())
    found = {each.id: each for each in read if each is not None}
    return tuple(found.values())


def _container(body: Mapping[str, Any]) -> Container | None:
    state, config, id = body.get("State"), body.get("Config"), body.get("Id")
    if not isinstance(state, dict) or not isinstance(config, dict) or not _text(id):
        return None
    labels = config.get("Labels")
    restarts = body.get("RestartCount")
    settings = body.get("HostConfig")
    policy = settings.get("RestartPolicy") if isinstance(settings, dict) else None
    return Container(
        id=str(id),
        name=str(body.get("Name")).lstrip("/"),
        image=str(body.get("Image")),
        status=str(state.get("Status")),
        restarts=restarts if isinstance(restarts, int) else 0,
        restart_policy=str(policy.get("Name")) if isinstance(policy, dict) else "always",
        labels={str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {},
    )
