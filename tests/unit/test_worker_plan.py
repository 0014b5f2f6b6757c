"""What is to be made on a host, from facts alone."""

from __future__ import annotations

import dataclasses

import pytest

from runner.errors import Conflict, ProvisionError
from runner.host_facts import Card, Container, HostFacts
from runner.model import Host, ImagePin, Limits
from runner.placement import worker_argv
from runner.worker_plan import (
    WorkerPlan,
    card_fits,
    check_host,
    container_name,
    driver_suffices,
    plan_worker,
)

PIN = ImagePin("torch-2.6", "base:1", "2.6.0", "12.4", "525.60.13", ("7.0", "8.0", "8.6"))
OLD_PIN = ImagePin("torch-2.6-cu118", "base:2", "2.6.0", "11.8", "450.80.02", ("3.7", "8.0"))
PINS = {pin.name: pin for pin in (PIN, OLD_PIN)}
HOST = Host("gpu1", ssh="gpu1")
A10 = Card(0, "GPU-a", "NVIDIA A10", 23028, (8, 6))
FACTS = HostFacts(
    uid=1000,
    gid=1001,
    user="drl",
    home="/home/drl",
    workspace="/home/drl/runner",
    real_workspace="/home/drl/runner",
    real_home="/home/drl",
    has_docker=True,
    docker_version="28.2.2",
    base_id="sha256:0",
)
WITH_GPU = dataclasses.replace(
    FACTS, has_nvidia_smi=True, has_nvidia_runtime=True, driver="550.54.15", cards=(A10,)
)


def plan(
    host: Host = HOST, facts: HostFacts = FACTS, *, context: str = "c", rebuild: bool = False
) -> WorkerPlan:
    return plan_worker(
        host, PIN, facts, context_digest=context, rebuild=rebuild, new_worker="w-0123456789ab"
    )


def made(host: Host = HOST, facts: HostFacts = FACTS) -> HostFacts:
    """The host once the plan was carried out."""
    done = plan(host, facts)
    tag = done.image.partition(":")[2]
    words = list(done.run_argv)
    labels = dict(
        words[place + 1].split("=", 1) for place, word in enumerate(words) if word == "--label"
    )
    return dataclasses.replace(
        facts,
        worker=done.worker,
        images={tag: "sha256:1"},
        containers=(Container("c1", done.container, "sha256:1", "running", labels=labels),),
        generations={PIN.name: done.generation},
        records=(f"{done.container}.{done.generation}",),
    )


def test_a_bare_host_gets_everything() -> None:
    todo = plan()
    assert todo.build and todo.create and todo.current is None and not todo.is_done
    assert todo.generation == 1 and todo.record["place"] == "torch-2.6.1"
    assert todo.worker == "w-0123456789ab" and todo.container.startswith("runner-1000-")


def test_a_host_that_has_it_all_gets_nothing() -> None:
    todo = plan(facts=made())
    assert todo.is_done and todo.worker == "w-0123456789ab"


def test_where_the_container_is_looked_for_is_where_it_is_made() -> None:
    script = worker_argv(HOST, ["python3"])[2]
    name = container_name(1000, HOST)
    assert name.removeprefix("runner-1000-") in script and "runner-$(id -u)-" in script


@pytest.mark.parametrize(
    "host",
    [
        Host("gpu1", ssh="gpu1", slots=2),
        Host("gpu1", ssh="gpu1", gpus=(0,)),
        Host("gpu1", ssh="gpu1", env={"A": "b"}),
        Host("gpu1", ssh="gpu1", limits=Limits(memory_bytes=10**9)),
        Host("gpu1", ssh="gpu1", limits=Limits(shm_bytes=10**9)),
        Host("gpu1", ssh="gpu1", network="none"),
    ],
)
def test_another_setting_replaces_the_container_but_not_the_image(host: Host) -> None:
    todo = plan(host, made())
    assert todo.create and todo.current is not None and not todo.build
    assert todo.generation == 2 and todo.folders.state.endswith(f"{todo.container}.2")
    assert todo.old_name == f"{todo.container}-old-1"


def test_the_name_of_the_host_file_is_no_reason_to_replace() -> None:
    assert plan(Host("other", ssh="gpu1"), made()).is_done


@pytest.mark.parametrize("status", ["created", "exited", "restarting", "dead"])
def test_a_half_made_container_of_ours_is_replaced(status: str) -> None:
    there = made()
    half = dataclasses.replace(there.containers[0], status=status)
    todo = plan(facts=dataclasses.replace(there, containers=(half,)))
    assert todo.create and todo.current == half and not todo.build


def test_a_paused_container_is_left_alone() -> None:
    there = made()
    paused = dataclasses.replace(there.containers[0], status="paused")
    with pytest.raises(Conflict, match="is paused; nothing was changed"):
        plan(facts=dataclasses.replace(there, containers=(paused,)))


def old(number: int, status: str, policy: str = "no") -> Container:
    """One that stepped aside."""
    there = made().containers[0]
    labels = {**there.labels, "org.runner.generation": str(number)}
    return Container(
        f"o{number}", f"{there.name}-old-{number}", "sha256:7", status, 0, policy, labels
    )


def test_what_nobody_needs_is_taken_away_and_the_rest_is_left() -> None:
    there = made()
    (active,) = there.containers
    active = dataclasses.replace(active, labels={**active.labels, "org.runner.generation": "4"})
    draining, ended = old(3, "running"), old(2, "exited")
    records = tuple(f"{active.name}.{number}" for number in (1, 2, 3, 4, 5))
    facts = dataclasses.replace(
        there,
        containers=(active, draining, ended),
        generations={PIN.name: 5},
        records=(*records, "runner-1000-74cc6138-torch-2.4.1", f"{active.name}.x"),
    )
    todo = plan(facts=facts)
    assert todo.is_done and todo.leftovers == (ended,) and todo.mend == ()
    # 5 may just be in the making by somebody else
    assert todo.stale == (f"{active.name}.1", f"{active.name}.2")


def test_what_a_cut_left_wrong_is_set_right() -> None:
    there = made()
    active = dataclasses.replace(there.containers[0], restart_policy="no")
    draining = old(0, "running", "always")
    todo = plan(facts=dataclasses.replace(there, containers=(active, draining)))
    assert todo.is_done and set(todo.mend) == {(active.id, "always"), (draining.id, "no")}


def test_a_worker_of_before_there_were_several_is_no_worker_of_ours_any_more() -> None:
    labels = {"org.runner.worker": "w-0123456789ab"}
    before = Container("c0", "runner-1000-74cc6138", "sha256:1", "running", labels=labels)
    there = made()
    todo = plan(facts=dataclasses.replace(there, containers=(*there.containers, before)))
    assert todo.before == (before,) and not todo.is_done and not todo.create


def test_another_version_or_base_builds_anew() -> None:
    there = made()
    assert plan(facts=there, context="d").build
    assert plan(facts=dataclasses.replace(there, base_id="sha256:9")).build
    assert plan(facts=dataclasses.replace(there, uid=1002)).build
    assert plan(facts=there, rebuild=True).build


def test_a_container_that_is_not_ours_is_never_touched() -> None:
    name = container_name(1000, HOST)
    foreign = dataclasses.replace(FACTS, containers=(Container("c9", name, "sha256:7", "exited"),))
    with pytest.raises(ProvisionError, match="not the runner's"):
        plan(facts=foreign)


def test_the_container_has_no_rights_and_no_port() -> None:
    words = set(plan(facts=WITH_GPU).run_argv)
    assert words >= {
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--read-only",
        "--restart=always",
        "--gpus=all",
    }
    text = " ".join(words)
    for never in (
        "--privileged",
        "docker.sock",
        "--pid=",
        "--ipc",
        "--publish",
        " -p ",
        "--network",
    ):
        assert never not in text


def test_gpus_are_asked_for_only_where_there_are_some() -> None:
    assert "--gpus=all" not in plan().run_argv
    assert "--gpus=all" not in plan(Host("gpu1", ssh="gpu1", gpus="none"), WITH_GPU).run_argv
    assert "use CPUs" in plan().notes[0] and plan(facts=WITH_GPU).notes == ()


def test_values_of_variables_stand_in_no_command_line() -> None:
    host = Host("gpu1", ssh="gpu1", env={"TOKEN": "hush"})
    todo = plan(host)
    assert "hush" not in " ".join(todo.run_argv) and "hush" not in repr(todo)


def test_roots_worker_is_not_root() -> None:
    todo = plan(facts=dataclasses.replace(FACTS, uid=0, gid=0))
    assert (todo.uid, todo.gid) == (1000, 1000) and todo.container.startswith("runner-0-")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"has_docker": False, "docker_version": None}, "there is no Docker"),
        (
            {"docker_version": None, "docker_error": "permission denied while trying"},
            "drl may not use Docker",
        ),
        ({"docker_version": None, "docker_error": "Cannot connect"}, "does not answer"),
        ({"real_workspace": "/"}, "root of the file system"),
        ({"real_workspace": "/home/drl"}, "is the home itself"),
        ({"real_workspace": "/home"}, "holds the home"),
        ({"workspace_marks": frozenset({"exists", "folder", "own", "holds-ssh"})}, "holds .ssh"),
        ({"workspace_marks": frozenset({"exists", "own"})}, "is no folder"),
        ({"workspace_marks": frozenset({"exists", "folder"})}, "another account"),
        ({"workspace": '/home/d"rl/runner'}, "cannot mount"),
    ],
)
def test_a_host_where_it_cannot_be_done_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ProvisionError) as caught:
        check_host(HOST, PIN, PINS, dataclasses.replace(FACTS, **change))  # type: ignore[arg-type]
    assert words in caught.value.message and caught.value.status == 4


def test_a_good_host_is_not_refused() -> None:
    check_host(HOST, PIN, PINS, FACTS)
    check_host(HOST, PIN, PINS, WITH_GPU)
    for mark in ("own", "stand-in"):
        own = frozenset({"exists", "folder", mark})
        check_host(HOST, PIN, PINS, dataclasses.replace(FACTS, workspace_marks=own))


def test_an_old_driver_is_told_which_image_fits() -> None:
    old = dataclasses.replace(WITH_GPU, driver="470.82")
    with pytest.raises(ProvisionError) as caught:
        check_host(HOST, PIN, PINS, old)
    assert "its driver is 470.82; image torch-2.6 needs 525.60.13" in caught.value.message
    assert "  runner provision host=gpu1 image=torch-2.6-cu118" in caught.value.advice


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cards": (dataclasses.replace(A10, capability=(12, 0)),)}, "no code for GPU 0"),
        ({"has_nvidia_runtime": False}, "NVIDIA container toolkit"),
        ({"nvidia_error": "Failed to initialize NVML\nx", "cards": ()}, "nvidia-smi fails there"),
    ],
)
def test_gpus_that_cannot_be_used_are_never_left_out_silently(
    change: dict[str, object], words: str
) -> None:
    bad = dataclasses.replace(WITH_GPU, **change)  # type: ignore[arg-type]
    with pytest.raises(ProvisionError) as caught:
        check_host(HOST, PIN, PINS, bad)
    assert words in caught.value.message
    check_host(Host("gpu1", ssh="gpu1", gpus="none"), PIN, PINS, bad)


def test_a_gpu_that_is_named_and_not_there_is_refused() -> None:
    with pytest.raises(ProvisionError, match="no GPU 1"):
        check_host(Host("gpu1", ssh="gpu1", gpus=(0, 1)), PIN, PINS, WITH_GPU)


@pytest.mark.parametrize(
    ("capability", "fits"),
    [
        ((8, 6), True),
        ((8, 9), True),
        ((7, 5), True),
        ((6, 1), False),
        ((9, 0), False),
        (None, True),
    ],
)
def test_code_of_the_same_major_and_no_greater_minor_runs(
    capability: tuple[int, int] | None, fits: bool
) -> None:
    assert card_fits(dataclasses.replace(A10, capability=capability), PIN) is fits


def test_drivers_are_compared_by_number() -> None:
    assert driver_suffices("1000.1", PIN) and driver_suffices(None, PIN)
    assert driver_suffices("525.60.13", PIN) and not driver_suffices("525.60.9", PIN)
