"""The cards: whether containers get them and keep them, their health, who else is there (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.doctor.answers import Seen
from runner.doctor.driver import wanted_cards
from runner.doctor.findings import Check, fault, note, ok
from runner.host_facts import Card
from runner.show.units import memory, plural

_MOST_NAMED = 4
_SICK = ("err!", "[gpu is lost]", "[gpu requires reset]", "[unknown error]")
"""What nvidia-smi prints in the cells of a card that is ill, in whatever case."""


def judge(seen: Seen) -> Iterator[Check]:
    """Nothing where the host file takes no GPUs."""
    facts = seen.facts
    if facts is None or seen.host.gpus == "none" or "nvidia-hangs" in seen.parts:
        return
    if facts.nvidia_error:
        return
    yield from _named_ones(seen)
    cards = wanted_cards(seen)
    lost = _gone_from_bus(seen)
    if not cards and not lost:
        if isinstance(seen.host.gpus, str):
            yield from _none_at_all(seen, facts.has_nvidia_smi)
        return
    models = {card.name.removeprefix("NVIDIA ") for card in cards}
    yield ok("cards", "gpus", f"{plural(len(cards), 'GPU')} ({', '.join(sorted(models))})")
    if seen.host.runtime == "docker" and facts.docker_version is not None:
        yield from _toolkit(seen)
    yield from lost
    yield from _health(seen, cards)
    yield from _mig(seen, cards)
    yield from _in_container(seen, cards)
    yield from _users(seen, cards)


def _none_at_all(seen: Seen, has_nvidia_smi: bool) -> Iterator[Check]:
    if seen.host.runtime == "local" and not has_nvidia_smi:
        yield ok("cards", "gpus", "no GPU")
        return
    why = "nvidia-smi names none" if has_nvidia_smi else "there is no nvidia-smi"
    yield note(
        "cards", "gpus", f"no GPU: {why}; its runs use CPUs",
        'if that is meant, say so in its host file:  gpus = "none"',
        "else its keeper can install NVIDIA's driver",
    )  # fmt: skip


def _named_ones(seen: Seen) -> Iterator[Check]:
    facts = seen.facts
    assert facts is not None
    wanted = seen.host.gpus if isinstance(seen.host.gpus, tuple) else ()
    missing = [index for index in wanted if index not in {card.index for card in facts.cards}]
    if missing:
        yield fault(
            "cards", "gpus",
            f"it has no GPU {', '.join(map(str, missing))} (it has {len(facts.cards)})",
            f"gpus in hosts/{seen.host.name}.toml names them",
        )  # fmt: skip


def _gone_from_bus(seen: Seen) -> list[Check]:
    """Cards that are not even told of any more; nvidia-smi -L says so in words."""
    said = [line for line in seen.lines("nvidia-list") if "unable to determine" in line.lower()]
    if not said:
        return []
    return [
        fault(
            "gpu-health",
            "gpus",
            f"a GPU is lost: {said[0].strip()[:120]}",
            "restart the machine; if it comes back so, the card or its power is at fault",
        )  # fmt: skip
    ]


def _toolkit(seen: Seen) -> Iterator[Check]:
    facts = seen.facts
    assert facts is not None
    if not facts.has_nvidia_runtime and not seen.lines("toolkit"):
        yield fault(
            "toolkit", "gpus", "Docker cannot give a container the GPUs: NVIDIA's container"
            " toolkit is not set up",
            "its keeper can install nvidia-container-toolkit, then:",
            "  sudo nvidia-ctk runtime configure --runtime=docker",
            "  sudo systemctl restart docker",
        )  # fmt: skip
        return
    yield ok("toolkit", "gpus", "container toolkit")
    info = seen.docker_info
    if info.get("CgroupDriver") == "systemd" and not _by_cdi(info):
        yield note(
            "cgroup-driver", "gpus",
            "each `systemctl daemon-reload` there (package upgrades do it) takes the GPUs from a"
            " running container: cgroup driver systemd with NVIDIA's hook",
            "its keeper can run this now and at each boot:",
            "  sudo nvidia-ctk system create-dev-char-symlinks --create-all",
            'or set  "exec-opts": ["native.cgroupdriver=cgroupfs"]  in /etc/docker/daemon.json',
        )  # fmt: skip
    else:
        yield ok("cgroup-driver", "gpus", "cgroup driver")


def _by_cdi(info: Mapping[str, Any]) -> bool:
    devices = info.get("DiscoveredDevices")
    return isinstance(devices, list) and "nvidia.com/gpu" in str(devices)


def _rows(seen: Seen, part: str, cells: int) -> dict[int, list[str]]:
    """Rows of nvidia-smi's CSV, by the index of the card."""
    found: dict[int, list[str]] = {}
    for line in seen.lines(part):
        row = [cell.strip() for cell in line.split(",")]
        if len(row) == cells and row[0].isascii() and row[0].isdigit() and len(row[0]) < 6:
            found[int(row[0])] = row[1:]
    return found


def _health(seen: Seen, cards: Sequence[Card]) -> Iterator[Check]:
    health, modes = _rows(seen, "gpu-health", 6), _rows(seen, "gpu-modes", 4)
    well = True
    for card in cards:
        errors, pages, pending, failed, hot = health.get(card.index, [""] * 5)
        cells = [*modes.get(card.index, []), errors, pages, pending, failed, hot]
        sick = next((cell for cell in cells if cell.lower() in _SICK), None)
        found: Check | None = None
        if sick is not None:
            found = fault(
                "gpu-health", "gpus", f"GPU {card.index} is ill: nvidia-smi says {sick[:40]}",
                "reset it while nobody uses it, or restart the machine:",
                f"  sudo nvidia-smi --gpu-reset -i {card.index}",
                *_leave_out(seen, cards, card),
            )  # fmt: skip
        elif errors.isdigit() and int(errors[:9]) > 0:
            found = fault(
                "gpu-health", "gpus",
                f"GPU {card.index} had {errors[:9]} memory errors that could not be corrected"
                " since it was reset",
                "reset it while nobody uses it; if they come back, the card is at fault:",
                f"  sudo nvidia-smi --gpu-reset -i {card.index}",
                *_leave_out(seen, cards, card),
            )  # fmt: skip
        elif failed.lower() in ("yes", "1"):
            found = fault(
                "gpu-health", "gpus", f"GPU {card.index} has no spare memory rows left",
                "the card is to be replaced", *_leave_out(seen, cards, card),
            )  # fmt: skip
        elif "yes" in (pages.lower(), pending.lower()):
            found = note(
                "gpu-health", "gpus",
                f"GPU {card.index} waits for a reset to put bad memory out of use",
                "while nobody uses it:", f"  sudo nvidia-smi --gpu-reset -i {card.index}",
            )  # fmt: skip
        elif hot.lower() == "active":
            found = note(
                "gpu-hot", "gpus", f"GPU {card.index} is slowed down by its own heat",
                "look after its cooling: fans, dust, air",
            )  # fmt: skip
        if found is not None:
            well = False
            yield found
    if well:
        yield ok("gpu-health", "gpus", "GPU health")
    idle = [i for i, cells in modes.items() if cells[0].lower() == "disabled"]
    if idle:
        yield note(
            "persistence", "gpus", "persistence mode is off: the first use of an idle card takes"
            " seconds",
            f"{seen.there}:", "  sudo nvidia-smi -pm 1",
        )  # fmt: skip


def _leave_out(seen: Seen, cards: Sequence[Card], card: Card) -> tuple[str, ...]:
    others = [str(each.index) for each in cards if each.index != card.index]
    if not others:
        return ()
    return (f"until then leave it out in its host file:  gpus = [{', '.join(others)}]",)


def _mig(seen: Seen, cards: Sequence[Card]) -> Iterator[Check]:
    modes = _rows(seen, "gpu-modes", 4)
    split = [card for card in cards if modes.get(card.index, ["", "", ""])[1] == "Enabled"]
    for card in split:
        yield fault(
            "mig", "gpus", f"GPU {card.index} is split (MIG is on); runs lease whole cards",
            f"{seen.there}, while nobody uses it:",
            f"  sudo nvidia-smi -i {card.index} -mig 0",
            *_leave_out(seen, cards, card),
        )  # fmt: skip
    if not split:
        yield ok("mig", "gpus", "MIG off")


def _in_container(seen: Seen, cards: Sequence[Card]) -> Iterator[Check]:
    """What the worker sees of the host's cards."""
    if seen.worker is None or seen.host.runtime != "docker":
        return
    problem, said = seen.worker.get("nvidia"), seen.worker.get("nvidia_said")
    inside = seen.worker.get("seen")
    container = seen.container
    restart = (f"{seen.there}:", f"  docker restart {container.name}") if container else ()
    anew = (
        "and, if that changes nothing, make it anew:",
        f"  runner provision host={seen.host.name}",
    )
    if problem is not None:
        yield fault(
            "gpus-lost", "gpus",
            f"the container has lost the GPUs, which {seen.host.name} itself shows"
            f" ({str(said or problem)[:80]})",
            "runs that live there go on from their last checkpoint after a restart of it;",
            *restart,
        )  # fmt: skip
    elif isinstance(inside, int) and inside != len(cards):
        yield fault(
            "gpu-count", "gpus",
            f"{seen.host.name} shows {plural(len(cards), 'GPU')}, its worker was made with"
            f" {inside}",
            *restart,
            *(() if inside else anew),
        )  # fmt: skip
    else:
        yield ok("gpus-lost", "gpus", "GPUs in the container")


def _users(seen: Seen, cards: Sequence[Card]) -> Iterator[Check]:
    """Who else computes there: the worker tells strangers from runs, without it all are."""
    found = _told_by_worker(seen) if seen.worker is not None else _told_by_tool(seen, cards)
    if not found:
        yield ok("gpu-users", "gpus", "nobody else on the GPUs")
        return
    shown = "; ".join(found[:_MOST_NAMED])
    yield note(
        "gpu-users", "gpus", f"in use by others: {shown}",
        "runs wait until they are free, or leave them out in its host file:  gpus = [INDEX, …]",
    )  # fmt: skip


def _told_by_worker(seen: Seen) -> list[str]:
    assert seen.worker is not None
    told = seen.worker.get("strangers")
    found = []
    for row in told if isinstance(told, list) else []:
        if not isinstance(row, dict) or row.get("left"):
            continue
        pids = row.get("pids")
        app = pids[0] if isinstance(pids, list) and pids and isinstance(pids[0], dict) else {}
        found.append(_user(row.get("index"), app, row.get("used_mib")))
    return found


def _told_by_tool(seen: Seen, cards: Sequence[Card]) -> list[str]:
    pairs = (line.split() for line in seen.lines("gpu-users"))
    users = {words[0]: words[1] for words in pairs if len(words) == 2}
    by_uuid = {card.uuid: card.index for card in cards}
    found = []
    for line in seen.lines("gpu-apps"):
        cells = [cell.strip() for cell in line.split(",", 3)]
        if len(cells) == 4 and cells[0] in by_uuid and "mps-server" not in cells[3]:
            app = {"user": users.get(cells[1]), "program": cells[3].rpartition("/")[2]}
            app["pid"] = cells[1]
            used = int(cells[2]) if cells[2].isdigit() and len(cells[2]) < 9 else None
            found.append(_user(by_uuid[cells[0]], app, used))
    return found


def _user(index: Any, app: Mapping[str, Any], used_mib: Any) -> str:
    who = f"{app['user']}'s " if app.get("user") else ""
    what = str(app.get("program") or "somebody")[:40]
    facts = [f"pid {app['pid']}"] if app.get("pid") else []
    facts += [memory(used_mib)] if isinstance(used_mib, int) else []
    return f"GPU {index} {who}{what}" + (f" ({', '.join(facts)})" if facts else "")
