"""Environments: refused by name, and kept where they can be."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import environments  # noqa: E402
from options import Refused  # noqa: E402

pytestmark = pytest.mark.usefixtures("at_walks")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CartPol-v1", "env 'CartPol-v1' cannot be made .did you mean 'CartPole-v1'"),
        ("CartPole-v7", "env 'CartPole-v7' cannot be made"),
        ("nowhere:Walk-v0", "env 'nowhere:Walk-v0': No module named 'nowhere'"),
        ("walks:Wolk-v0", "did you mean 'Walk-v0'"),
        ("walks:Old-v0", "env 'walks:Old-v0' does not follow gymnasium's API"),
        ("walks:Image-v0", r"observations Box\(0, 255, \(8, 8, 3\)"),
        ("walks:Table-v0", "observations Dict"),
        ("walks:Many-v0", "actions MultiDiscrete"),
        ("walks:Smooth-v0", "actions Box"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(Refused, match=text):
        environments.look(name)


def test_module_is_found_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Here-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    facts = environments.look("only_here:Here-v0")
    assert (facts.shape, facts.actions, facts.exact) == ((4,), 2, True)


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("Walk", True),
        ("Shared", True),
        ("Easy", True),
        ("Slow", True),
        ("Open", False),
        ("Forgetful", True),
    ],
)
def test_only_environments_whose_copy_goes_on_alike_are_kept(name: str, exact: bool) -> None:
    assert environments.look(f"walks:{name}-v0").exact is exact
