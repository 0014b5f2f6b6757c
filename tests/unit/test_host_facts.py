"""A host's answer as a value."""

from __future__ import annotations

import json

import pytest

from runner.host_facts import Card, HostFacts, parse_cards, parse_facts

CUT = "runner-0123"


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
        answer(**{key.replace("_", "-"): text for key, text in sections.items()}), CUT
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
            parse_facts(text, CUT)


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
    container = {
        "Image": "sha256:1",
        "RestartCount": 2,
        "State": {"Status": "running"},
        "Config": {"Labels": {"a": "b"}},
    }
    read = facts(
        base='{"Id": "sha256:0", "RepoDigests": ["x@sha256:9"]}',
        images="torch-2.6-ab sha256:1\ntorch-2.6-cd sha256:2\n",
        container=json.dumps(container),
        record='{"worker": "w-0123456789ab"}',
    )
    assert read.base_id == "sha256:0" and read.base_digests == ("x@sha256:9",)
    assert read.images == {"torch-2.6-ab": "sha256:1", "torch-2.6-cd": "sha256:2"}
    assert read.container is not None and read.container.labels == {"a": "b"}
    assert read.container.restarts == 2 and read.worker == "w-0123456789ab"


def test_what_a_host_makes_up_is_not_believed() -> None:
    read = facts(
        account="1000\n1000\ndrl;rm -rf\n/home/drl\n",
        record='{"worker": "../../x"}',
        info="[" * 100_000,
        container='{"State": 1}',
    )
    assert read.user == "ACCOUNT" and read.worker is None and read.container is None


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
