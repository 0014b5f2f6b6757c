"""Teams by PettingZoo's parallel interface: made or refused, and what is to know of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import team_environments  # noqa: E402
from options import Refused  # noqa: E402

HELPERS = Path(tests.helpers.agents.__file__).parent


@pytest.fixture(autouse=True)
def _at_stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HELPERS))
    monkeypatch.chdir(tmp_path)


# made or refused


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nowhere.to_be_found_v1", "No module named 'nowhere'"),
        ("CartPole-v1", "env 'CartPole-v1': it must be a module with parallel_env, or"),
        ("", "env '': it must be a module"),
        ("team_stubs", "has no parallel_env.*parallel interface"),
        ("team_stubs:Matchin", r"has no Matchin\(\) \(did you mean 'Matching'"),
        ("team_stubs:np", "has no np"),
        ("team_stubs:Alone", "makes Alone, which does not follow PettingZoo's parallel interface"),
        ("team_stubs:Old", "does not follow PettingZoo's parallel interface: ValueError"),
        ("team_stubs:Untold", "does not follow .* first sees .*3.* numbers, not .*2"),
        ("team_stubs:Smooth", "first has actions Box.*; only Discrete"),
        ("team_stubs:Uneven", r"different numbers of actions \(first 3, second 4, third 4\)"),
        ("team_stubs:Pictures", "first has observations Box.*; only flat"),
    ],
)
def test_what_is_no_team_is_refused_in_one_sentence(name: str, text: str) -> None:
    with pytest.raises(Refused, match=text) as refused:
        team_environments.look(name)
    assert str(refused.value).startswith(f"env {name!r}") and "\n" not in str(refused.value)


def test_teams_that_pettingzoo_has_are_named_when_the_name_is_near() -> None:
    pytest.importorskip("mpe2", reason="left out: mpe2: not installed")
    with pytest.raises(Refused, match="did you mean 'simple_spread_v3'"):
        team_environments.look("mpe2.simple_spred_v3")
    with pytest.raises(Refused, match="OrderEnforcingWrapper, which does not follow"):
        team_environments.look("mpe2.simple_spread_v3:env")  # the interface of turns
    with pytest.raises(Refused, match="speaker_0 3, listener_0 5"):
        team_environments.look("mpe2.simple_speaker_listener_v4")


def test_what_is_needed_and_missing_is_named_and_nothing_near(tmp_path: Path) -> None:
    (tmp_path / "needing.py").write_text("import not_there_at_all\n")
    with pytest.raises(Refused, match="No module named 'not_there_at_all'$"):
        team_environments.look("needing:Matching")


def test_facts_of_a_team() -> None:
    facts = team_environments.look("team_stubs:Matching")
    assert facts == team_environments.TeamFacts(agents=3, numbers=4, actions=3, exact=True)
    assert facts.width == 7


def test_looking_leaves_the_global_generators_alone_and_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, make = [], team_environments.make_team
    monkeypatch.setattr(
        team_environments, "make_team", lambda name: made.append(make(name)) or made[-1]
    )
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert team_environments.look("team_stubs:Shared").exact
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after
    assert len(made) == 2 and all(env.closed for env in made)


@pytest.mark.parametrize(
    ("name", "exact"), [("Mortal", True), ("Around", True), ("Unkept", False), ("Hidden", False)]
)
def test_whether_the_state_can_be_kept_is_found_by_trying(name: str, exact: bool) -> None:
    assert team_environments.look(f"team_stubs:{name}").exact == exact
