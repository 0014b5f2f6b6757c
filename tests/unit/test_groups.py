from __future__ import annotations

from typing import Any

import pytest

from runner.comparing.groups import differences, gaps, group_runs, seed_of, value_text
from runner.wire import RunStatus


def run(name: str, **fields: Any) -> RunStatus:
    fields.setdefault("job", "dqn")
    fields.setdefault("snapshot", "aa" * 32)
    return RunStatus(id=name, state="ended", outcome="done", **fields)


def test_runs_that_differ_in_their_seed_alone_are_one_group() -> None:
    runs = [run(f"r.{i}", params={"seed": i, "lr": 1 if i % 2 else 1.0}) for i in range(4)]
    (group,) = group_runs(runs)
    assert [each.id for each in group.runs] == ["r.0", "r.1", "r.2", "r.3"]
    assert (group.label, dict(group.configuration.params)) == ("dqn", {"lr": 1.0})


def test_groups_are_named_by_what_tells_them_apart() -> None:
    found = group_runs(
        [
            run("a", params={"lr": 3e-4, "size": 8}),
            run("b", params={"lr": 1e-3, "size": 8}),
            run("c", job="ppo", params={"lr": 1e-3, "clip": 0.2}),
        ]
    )
    assert [group.label for group in found] == ["dqn  lr=3e-4", "dqn  lr=1e-3", "ppo"]
    differ = differences([group.configuration for group in found])
    assert differ.jobs and list(differ.params) == ["lr"]


def test_other_code_or_another_image_is_another_group_and_named() -> None:
    code = {"branch": "main", "commit": "4f2c91a99", "edited": 0}
    found = group_runs(
        [
            run("a", code=code),
            run("b", snapshot="bb" * 32, code={**code, "commit": "77aa012bb", "edited": 2}),
            run("c", image="torch-2.6", code=code),
        ]
    )
    assert [group.label for group in found] == [
        "code main@4f2c91a  image -",
        "code main@77aa012 + 2 edited",
        "code main@4f2c91a  image torch-2.6",
    ]
    differ = differences([group.configuration for group in found])
    assert differ.images == ("-", "torch-2.6")
    assert set(differ.codes) == {"main@4f2c91a", "main@77aa012 + 2 edited"}


def test_the_same_commit_with_other_edits_still_has_two_names() -> None:
    code = {"branch": "main", "commit": "4f2c91a99", "edited": ["x"]}
    found = group_runs([run("a", code=code), run("b", code=code, snapshot="bb" * 32)])
    assert len({group.label for group in found}) == 2


@pytest.mark.parametrize(
    ("argv", "seed"),
    [
        (["python", "t.py", "--seed", "3"], "3"),
        (["python", "t.py", "--seed=3"], "3"),
        (["python", "t.py", "seed=3"], "3"),
        (["python", "t.py", "seed"], None),
        (["python", "t.py", "--seed"], ""),
    ],
)
def test_the_seed_of_a_command_is_found_in_its_words(argv: list[str], seed: str | None) -> None:
    assert seed_of(run("a", job=None, argv=argv)) == seed
    other = [word.replace("3", "4") for word in argv]
    runs = [run("a", job=None, argv=argv), run("b", job=None, argv=other)]
    assert len(group_runs(runs)) == 1


def test_a_whole_sweep_tells_which_of_its_runs_are_gone() -> None:
    assert gaps(["s-1.1", "s-1.4", "x"]) == ["s-1.2", "s-1.3"]
    assert gaps(["s-1.9", "t-1.7", "u-1.x"]) == []
    assert len(gaps(["s-1.1", "s-1.999999"])) < 10_000


def test_code_alone_can_be_pooled_and_is_named() -> None:
    def code(commit: str) -> dict[str, Any]:
        return {"commit": commit * 8, "branch": "main"}

    runs = [
        run("a", params={"lr": 1.0}, snapshot="1" * 64, code=code("a")),
        run("b", params={"lr": 1.0}, snapshot="2" * 64, code=code("b")),
        run("c", params={"lr": 2.0}, snapshot="1" * 64, code=code("a")),
        run("d", params={"lr": 1.0}, snapshot="3" * 64, code=code("b")),
    ]
    assert len(group_runs(runs)) == 4
    first, second = group_runs(runs, pool_code=True)
    assert ([each.id for each in first.runs], first.label) == (["a", "b", "d"], "lr=1.0")
    pooled = ("main@aaaaaaa (1111111)", "main@bbbbbbb (2222222)", "main@bbbbbbb (3333333)")
    assert (first.configuration.pooled, first.configuration.code) == (pooled, "3 codes")
    assert second.configuration.pooled == () and second.configuration.code == "main@aaaaaaa"
    assert differences([first.configuration, second.configuration]).codes
    other = run("e", params={"lr": 1.0}, snapshot="1" * 64, image="x", code=code("a"))
    assert len(group_runs([*runs, other], pool_code=True)) == 3, "an image is not pooled"


def test_values_are_written_as_they_are_typed() -> None:
    texts = [value_text(value) for value in (3e-4, 0.5, 10.0, 1e6, True, None, "a", [1], 1e300)]
    assert texts == ["3e-4", "0.5", "10.0", "1e6", "true", "null", "a", "[1]", "1e300"]
    assert value_text(float("nan")) == "NaN"
