from __future__ import annotations

from runner.grammar.requirements import problem_of
from runner.grammar.script_packages import (
    _NAMED,
    _SAME,
    IN_IMAGE,
    Packages,
    find_packages,
    listed_in,
    package_of,
)


def test_what_the_library_and_the_image_have_is_not_asked_for() -> None:
    imports = dict.fromkeys(["os", "torch", "numpy", "gymnasium", "cv2", "tyro", "wandb"], True)
    imports["wandb"] = False
    assert find_packages(imports, {}, {}) == Packages(("tyro",), ("wandb",), ())


def test_a_package_is_never_guessed_by_a_modules_mere_name() -> None:
    found = find_packages({"mystery": True, "maybe": False}, {}, {})
    assert found == Packages((), ("maybe",), ("mystery",))
    assert package_of("mystery", {"mystery": "Mystery-Kit"}) == "Mystery-Kit"


def test_the_projects_own_versions_are_taken() -> None:
    listed = listed_in("tyro==0.8\nwandb\n-e .\nPyYAML>=6\n")
    assert listed == {"tyro": "tyro==0.8", "pyyaml": "PyYAML>=6"}
    found = find_packages({"tyro": True, "yaml": True, "wandb": True}, {}, listed)
    assert found.needed == ("PyYAML>=6", "tyro==0.8", "wandb")


def test_scripts_for_gymnasium_before_1() -> None:
    assert find_packages({}, {}, {}, old_gymnasium=True).needed == ("gymnasium<1",)
    listed = {"gymnasium": "gymnasium==0.29.1"}
    assert find_packages({}, {}, listed, old_gymnasium=True).needed == ("gymnasium==0.29.1",)


def test_every_known_name_may_be_asked_for() -> None:
    for module in {*_NAMED, *_SAME}:
        package = package_of(module, {})
        assert package is not None and problem_of(package) is None
    assert not IN_IMAGE & {*_NAMED, *_SAME}
