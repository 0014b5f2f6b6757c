from __future__ import annotations

import pytest

from runner.grammar.requirements import (
    find_twice,
    lines_of,
    name_of,
    problem_of,
    without_secrets,
)

HASH = "--hash=sha256:" + "0a" * 32


@pytest.mark.parametrize(
    "good",
    [
        "wandb",
        "stable-baselines3[extra]>=2.3,<3",
        "numpy == 1.26.*",
        "torch~=2.6",
        "x!=1.0,>=0.9",
        'tomli; python_version < "3.11"',
        f"tyro==0.9.2 {HASH} {HASH}",
        "minigrid @ https://host.example/minigrid-1.0-py3-none-any.whl",
        "x @ git+https://host.example/x.git@v1#subdirectory=y",
        "x @ git+ssh://git@host.example/x.git",
        'x @ https://host.example/x.whl ; os_name == "posix"',
        "six; import_name in 'a'".replace("import_name", "sys_platform"),
        "six;(python_version<'3' or os_name not in \"nt, os2\") and 'x' == extra",
        "six; sys.platform == 'linux'and(python_implementation<'x')",
        "six; python_full_version ~= '3.11.2' and platform_machine != ''",
    ],
)
def test_what_may_be_asked_for(good: str) -> None:
    assert problem_of(good) is None


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("", "one package"),
        ("-r other.txt", "option of pip"),
        ("--index-url https://x", "option of pip"),
        ("-e .", "option of pip"),
        (".", "one package"),
        ("./wheel.whl", "one package"),
        ("wandb --no-deps", "one package"),
        ("wandb --index-url=https://x", "one package"),
        ("wandb requests", "one package"),
        ("wandb; rm -rf /", "one package"),
        ("six; import os", "behind ; a marker"),
        ("six; python_version", "behind ; a marker"),
        ("six; python_version < 3", "behind ; a marker"),
        ("six; python_version < '3' and", "behind ; a marker"),
        ("six; (python_version < '3'", "behind ; a marker"),
        ("six; python < '3'", "behind ; a marker"),
        ("six; python_version < '3\"", "behind ; a marker"),
        ("x @ https://host.example/x.whl ; import os", "behind ; a marker"),
        ("a\nb", "one package"),
        ("wandb==", "one package"),
        ("x" * 501, "one package"),
        ("x @ file:///etc/passwd", "not https"),
        ("x @ ../y", "not https"),
        ("x @ https://me:secret@host.example/x.whl", "password"),
        ("x @ https://token@host.example/x.whl", "password"),
        ("x @ git+ssh://git:secret@host.example/x", "password"),
    ],
)
def test_what_may_not(bad: str, says: str) -> None:
    found = problem_of(bad)
    assert found is not None and says in found
    assert "secret" not in without_secrets(bad)


def test_a_byte_order_mark_is_no_part_of_a_name() -> None:
    assert lines_of("\ufeffsix\nclick\n") == [(1, "six"), (2, "click")]


def test_lines_of_a_file() -> None:
    text = f"# all\nwandb  # logs\n\ntyro==1 \\\n    {HASH}\nx @ https://h/x.whl#egg=x\nlast\\"
    assert lines_of(text) == [
        (2, "wandb"),
        (4, f"tyro==1 {HASH}"),
        (6, "x @ https://h/x.whl#egg=x"),
        (7, "last"),
    ]


def test_names_and_doubles() -> None:
    assert name_of(" Stable_Baselines3[extra]>=2") == "stable-baselines3"
    assert find_twice(["a_b", "A-b==1"]) == "a-b"
    assert find_twice(["a; os_name == 'nt'", "b", "a; os_name == 'posix'"]) is None
