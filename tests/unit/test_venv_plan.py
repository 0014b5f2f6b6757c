"""What is made of a `venv` host: which Python, which packages, what is the same already."""

from __future__ import annotations

import dataclasses

import pytest

from runner.errors import ProvisionError, SpecError
from runner.host_facts import Card, HostFacts
from runner.model import Host, ImagePin, Limits
from runner.venv_facts import Python, VenvFacts
from runner.venv_plan import (
    VenvPlan,
    check_request,
    choose_python,
    plan_venv,
    torch_as_pinned,
)

HOST = Host("box", runtime="venv", ssh="box", image="t", slots=2, env={"A": "b"})
PIN = ImagePin("t", "b", "2.6.0", "12.4", "525", ("8.0",), ("torch==2.6.0", "numpy==2.2.6"))
OWN = ["supervisor==4.3.0", "py-spy==0.4.3"]
PLAIN = Python("/usr/bin/python3", (3, 11, 2), makes_venvs=True, alone=True)
CONDA = Python("/opt/conda/bin/python3", (3, 11, 9), makes_venvs=True, alone=True, torch="2.6.0")
MACHINE = HostFacts(1000, 1000, "u", "/home/u", "/home/u/runner", "/home/u/runner", "/home/u")
CARD = Card(0, "GPU-a", "A", capability=(8, 0))


def facts(*pythons: Python, **changes: object) -> VenvFacts:
    return dataclasses.replace(VenvFacts(MACHINE, pythons or (PLAIN,)), **changes)  # type: ignore[arg-type]


def plan(found: VenvFacts, pin: ImagePin = PIN, host: Host = HOST, **given: bool) -> VenvPlan:
    options = {"default": True, "rebuild": False, **given}
    return plan_venv(host, pin, found, own_lines=OWN, **options)


def settled(made: VenvPlan, pin: str = "t") -> VenvFacts:
    """The host once the plan was carried out."""
    links = {pin: made.digest, "current": made.digest}
    return facts(record={**made.record, "host": "x"}, links=links, whole=frozenset([made.digest]))


def test_a_bare_host_gets_all_and_the_next_time_nothing() -> None:
    made = plan(facts())
    assert made.make and made.settle and not made.system and made.has_torch
    assert made.lines == ("torch==2.6.0", "numpy==2.2.6", *OWN)
    assert made.record["env"] == {"A": "b"} and made.record["image"]["pin"] == "t"
    again = plan(settled(made))
    assert again.is_done and again.digest == made.digest
    assert plan(settled(made), rebuild=True).make


def test_what_the_pin_names_of_the_workers_own_counts() -> None:
    pin = dataclasses.replace(PIN, pip=("py_spy==0.4.1", "Supervisor==4.2.5"))
    assert plan(facts(), pin).lines == ("py_spy==0.4.1", "Supervisor==4.2.5")
    assert not plan(facts(), pin).has_torch


def test_only_what_matters_makes_it_anew() -> None:
    made = plan(facts())
    patched = dataclasses.replace(PLAIN, version=(3, 11, 7))
    found = dataclasses.replace(settled(made), pythons=(patched,))
    assert plan(found).is_done
    newer = dataclasses.replace(PLAIN, version=(3, 12, 1))
    assert plan(dataclasses.replace(settled(made), pythons=(newer,))).make
    assert plan(settled(made), dataclasses.replace(PIN, pip=("torch==2.6.0",))).make
    slots = plan(settled(made), host=dataclasses.replace(HOST, slots=3))
    assert slots.settle and not slots.make
    assert plan(dataclasses.replace(settled(made), whole=frozenset())).make  # it was broken off


def test_one_that_was_built_anew_under_another_name_is_the_same() -> None:
    made = plan(facts())
    name = made.digest + "-0a1b2c3d"
    found = facts(record=made.record, links={"t": name, "current": name}, whole=frozenset([name]))
    assert plan(found).is_done


def test_a_second_pin_leaves_the_record_of_the_first() -> None:
    first = plan(facts())
    other = dataclasses.replace(PIN, name="o", pip=("six==1.17.0",))
    second = plan(settled(first), other, default=False)
    assert second.make and not second.default
    links = {"t": first.digest, "current": first.digest, "o": second.digest}
    both = dataclasses.replace(
        settled(first), links=links, whole=frozenset([first.digest, second.digest])
    )
    assert plan(both, other, default=False).is_done and plan(both).is_done
    assert plan(facts(), other, default=False).default  # the only one is what there is


def test_the_workers_own_is_mended_though_another_pin_is_asked_for() -> None:
    first = settled(plan(facts()))
    pin = dataclasses.replace(PIN, name="u", pip=("torch==2.5.1",))
    made = plan(first, pin, default=False)
    links = {**first.links, "u": made.digest}
    both = dataclasses.replace(first, links=links, whole=first.whole | {made.digest})
    assert plan(both, pin, default=False).is_done
    again = plan(dataclasses.replace(both, whole=frozenset([made.digest])), pin, default=False)
    assert again.settle and not again.make


def test_torch_that_is_there_is_used_and_another_build_is_not() -> None:
    assert choose_python(HOST, PIN, facts(PLAIN, CONDA)) == (CONDA, True)
    for torch, fits in (("2.6.0+cu124", True), ("2.6.0+cu118", False), ("2.5.1", False)):
        conda = dataclasses.replace(CONDA, torch=torch)
        assert choose_python(HOST, PIN, facts(PLAIN, conda))[1] is fits
    inside = dataclasses.replace(CONDA, alone=False)
    assert choose_python(HOST, PIN, facts(PLAIN, inside)) == (PLAIN, False)
    cpu = dataclasses.replace(CONDA, torch="2.6.0+cpu")
    assert choose_python(HOST, PIN, facts(cpu))[1]
    machine = dataclasses.replace(MACHINE, cards=(CARD,))
    assert not choose_python(HOST, PIN, facts(cpu, machine=machine))[1]


def test_an_imported_torch_is_called_as_the_pin_calls_it() -> None:
    assert torch_as_pinned(PIN, f"{PIN.torch}+cpu") == PIN.torch == torch_as_pinned(PIN, PIN.torch)
    built = dataclasses.replace(PIN, torch="2.6.0+cu124")
    assert torch_as_pinned(built, "2.6.0+cu124") == "2.6.0+cu124"


def test_a_python_that_will_not_do_is_told_with_the_way_out() -> None:
    old = dataclasses.replace(PLAIN, version=(3, 8, 10))
    bare = dataclasses.replace(PLAIN, makes_venvs=False)
    assert choose_python(HOST, PIN, facts(old, bare, PLAIN))[0] == PLAIN
    for found, said, way in (
        (facts(old), "is Python 3.8.10; a worker needs 3.9 or newer", "python = "),
        (facts(bare), "makes no virtual environments", "apt install python3-venv"),
        (dataclasses.replace(facts(), pythons=()), "python3 is not there", "python = "),
    ):
        with pytest.raises(ProvisionError, match=said) as caught:
            choose_python(HOST, PIN, found)
        assert any(way in line for line in caught.value.advice)
        assert not caught.value.advice[0].startswith("or ")
    silent = dataclasses.replace(facts(), pythons=(), silent=("/opt/p",))
    with pytest.raises(ProvisionError, match="box: /opt/p does not answer within 10 s") as caught:
        choose_python(HOST, PIN, silent)
    assert caught.value.advice[0].startswith("name another in ")


def test_a_full_disk_is_told_before_anything_is_made() -> None:
    small = facts(free_bytes=3 << 30, mount="/home")
    with pytest.raises(ProvisionError, match=r"3\.2 GB free on /home, where .*~/\.local/state"):
        plan(small)
    assert plan(dataclasses.replace(small, pythons=(CONDA,))).make  # torch is there
    # the workspace's is another one
    assert plan(facts(machine=dataclasses.replace(MACHINE, free_bytes=0), free_bytes=1 << 40)).make


@pytest.mark.parametrize(
    ("host", "pin", "said"),
    [
        ({"network": "none"}, {}, 'network is "none"'),
        ({"limits": Limits(memory_bytes=1)}, {}, "limits.memory is a container's"),
        ({}, {"pip": ()}, "has no list `pip`"),
        ({}, {"pip": ("six==1; import os",)}, "pip has 'six==1; import os', which must be one"),
        ({}, {"pip": ("torch>=2",)}, "pip names torch>=2 without an exact version"),
    ],
)
def test_what_no_environment_can_be_is_refused(
    host: dict[str, object], pin: dict[str, object], said: str
) -> None:
    check_request(HOST, PIN)
    with pytest.raises(SpecError, match=said):
        check_request(
            dataclasses.replace(HOST, **host),  # type: ignore[arg-type]
            dataclasses.replace(PIN, **pin),  # type: ignore[arg-type]
        )
