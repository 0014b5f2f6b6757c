"""A host's answer as a value."""

from __future__ import annotations

import json

import pytest

from runner.host_facts import Card, HostFacts, parse_cards, parse_facts

CUT = "runner-0123"
KEY = "74cc6138"
OURS = f"runner-1000-{KEY}"


def container(name: str, **more: object) -> str:
    body = {
        "Id": f"id-of-{name}",
        "Name": f"/{name}",
        "Image": "sha256:1",
        "RestartCount": 2,
        "State": {"Status": "running"},
        "Config": {"Labels": {"a": "b"}},
        **more,
    }
    return json.dumps(body) + "\n"


def answer(**sections: str) -> str:
    found = {
        "account": "1000\n1000\ndrl\n/home/drl\n",
        "workspace": "/home/drl/runner\n",
        "real": "/home/drl/runner\n",
        "home": "/home/drl\n",
        "folder": "",
        "free": "/dev/sda1 100 50 50 50% /\n",
        "end": "",
        **sections,
    }
    return "".join(f"\n{CUT} {name}\n{body}" for name, body in found.items())


def facts(**sections: str) -> HostFacts:
    return parse_facts(
        answer(**{key.replace("_", "-"): text for key, text in sections.items()}), CUT, KEY
    )


def test_a_plain_host() -> None:
    read = facts()
    assert (read.uid, read.gid, read.user, read.home) == (1000, 1000, "drl", "/home/drl")
    assert read.free_bytes == 50 * 1024
    assert not read.has_docker and read.docker_version is None
    assert not read.has_nvidia_smi and read.cards == ()


def test_an_answer_that_breaks_off_is_none() -> None:
    for text in ("", answer().rsplit(f"\n{CUT} end", 1)[0], answer(account="x\n")):
        with pytest.raises(ValueError, match="breaks off"):
            parse_facts(text, CUT, KEY)


def test_docker_that_works_and_docker_that_does_not() -> None:
    read = facts(docker="28.2.2\n", docker_status="0\n", info='{"DockerRootDir": "/d"}')
    assert read.docker_version == "28.2.2" and read.docker_root == "/d"
    read = facts(docker="permission denied\n", docker_status="1\n")
    assert read.has_docker and read.docker_version is None
    assert read.docker_error == "permission denied"


@pytest.mark.parametrize(
    ("info", "has"),
    [
        ({"Runtimes": {"nvidia": {}, "runc": {}}}, True),
        ({"Runtimes": {"runc": {}}, "DiscoveredDevices": [{"ID": "nvidia.com/gpu=all"}]}, True),
        ({"Runtimes": {"runc": {}}}, False),
        ({}, False),
    ],
)
def test_whether_docker_can_give_gpus(info: dict[str, object], has: bool) -> None:
    assert facts(info=json.dumps(info)).has_nvidia_runtime is has


def test_images_base_container_and_the_worker_of_before() -> None:
    read = facts(
        base='{"Id": "sha256:0", "RepoDigests": ["x@sha256:9"]}',
        images="torch-2.6-ab sha256:1\ntorch-2.6-cd sha256:2\n",
        containers=container("a") + container("a"),
        **{f"record {OURS}-cpu.1": '{"worker": "w-0123456789ab"}'},
    )
    assert read.base_id == "sha256:0" and read.base_digests == ("x@sha256:9",)
    assert read.images == {"torch-2.6-ab": "sha256:1", "torch-2.6-cd": "sha256:2"}
    (there,) = read.containers
    assert (there.id, there.name, there.labels) == ("id-of-a", "a", {"a": "b"})
    assert there.restarts == 2 and there.restart_policy == "always" and there.pin is None
    assert read.worker == "w-0123456789ab" and read.records == (f"{OURS}-cpu.1",)


def test_the_highest_generation_is_that_of_containers_records_and_places() -> None:
    labels = {"org.runner.image": "a.b", "org.runner.generation": "4"}
    read = facts(
        containers=container("x", Config={"Labels": labels}),
        places="cpu.7\ncpu.x\nother-1.2\ncpu.99999999999\n",
        **{f"record {OURS}-cpu.3": "{}", f"record {OURS}-a.b.2": "{}", f"record {OURS}": "{}"},
    )
    assert read.generations == {"cpu": 7, "other-1": 2, "a.b": 4}
    (there,) = read.containers
    assert (there.pin, there.generation) == ("a.b", 4)


def test_data_that_is_there_and_where_docker_listens() -> None:
    read = facts(
        **{"data /data/a b": "/disk/a b\n", "data /gone": "\n"}, sockets="/run/x.sock\n/y.sock\n"
    )
    assert read.data == {"/data/a b": "/disk/a b"}
    assert read.sockets == ("/run/x.sock", "/y.sock")


def test_what_a_host_makes_up_is_not_believed() -> None:
    read = facts(
        account="1000\n1000\ndrl;rm -rf\n/home/drl\n",
        info="[" * 100_000,
        containers='{"State": 1}\n{"Id": 1, "State": {}, "Config": {}}\n',
        **{"record ": '{"worker": "../../x"}'},
    )
    assert read.user == "ACCOUNT" and read.worker is None and read.containers == ()


def test_cards_with_every_cell_and_with_odd_ones() -> None:
    rows = [
        "0, GPU-a, 23028, 550.54.15, 8.6, NVIDIA A10",
        "1, GPU-b, [N/A], 550.54.15, [N/A], Name, with commas",
        "not a row",
    ]
    cards, driver = parse_cards(rows, with_capability=True)
    assert driver == "550.54.15"
    assert cards == (
        Card(0, "GPU-a", "NVIDIA A10", 23028, (8, 6)),
        Card(1, "GPU-b", "Name, with commas", None, None),
    )


def test_an_old_driver_does_not_know_capabilities() -> None:
    read = facts(
        nvidia='there\nField "compute_cap" is not a valid field to query.\n',
        nvidia_old="0, GPU-a, 11441, 450.80.02, Tesla K80\n",
        nvidia_status="0\n",
    )
    assert read.cards == (Card(0, "GPU-a", "Tesla K80", 11441),) and read.driver == "450.80.02"


def test_a_driver_that_is_not_there_is_told_in_its_words() -> None:
    read = facts(nvidia="there\nNVIDIA-SMI has failed\n", nvidia_status="9\n")
    assert read.has_nvidia_smi and read.nvidia_error == "NVIDIA-SMI has failed"
    assert read.cards == ()
