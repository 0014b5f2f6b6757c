from __future__ import annotations

import random

import pytest

from runner.fields import valid_name
from runner.ids import ALPHABET, ID_LENGTH, draw_id


@pytest.mark.parametrize(("job", "begins"), [("dqn", "dqn-"), (None, "cmd-")])
def test_an_id_begins_with_its_job(job: str | None, begins: str) -> None:
    name = draw_id(job, random.Random(1))
    assert name.startswith(begins)
    assert len(name) == len(begins) + ID_LENGTH
    assert valid_name(name)


def test_ids_have_no_look_alikes_and_differ() -> None:
    draw = random.Random(2)
    names = {draw_id("a", draw) for _ in range(500)}
    assert len(names) == 500
    assert not set("".join(names)[2:]) - {*ALPHABET, "-", "a"}
    assert not set("ilouILOU") & set(ALPHABET)
