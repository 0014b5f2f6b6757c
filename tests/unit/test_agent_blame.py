"""Errors of an environment's own code: one line each, with their place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

from tests.helpers.agents import AGENTS  # noqa: E402, F401  puts agents/ on the path

# isort: split
import blame  # noqa: E402
import environments  # noqa: E402
import episodes  # noqa: E402
import evaluation  # noqa: E402
import team_environments  # noqa: E402
from options import Refused  # noqa: E402
from runtime import Fault  # noqa: E402

FAULTY = """
import gymnasium as gym, numpy as np
from gymnasium.spaces import Box, Discrete

def boom(*_, **__):
    raise ZeroDivisionError("boom\\nand more")

def leave(*_, **__):
    raise SystemExit(0)

class Fine(gym.Env):
    observation_space, action_space, steps = Box(-1, 1, (3,), np.float32), Discrete(2), 0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}
    def step(self, action):
        self.t, self.steps = self.t + 1, self.steps + 1
        return np.zeros(3, np.float32), self.reward(), self.t == 9, False, self.info()
    def reward(self):
        return 1.0
    def info(self):
        return {}

def late(what, usual):
    return lambda self: what(self) if self.steps > 100 else usual

for name, parts in {
    "Made": {"__init__": boom}, "Reset": {"reset": boom}, "Step": {"step": boom},
    "Close": {"close": boom}, "Leave": {"reset": leave},
    "Text": {"reward": lambda self: "1.0"}, "Nothing": {"reward": lambda self: None},
    "Huge": {"reward": lambda self: 1e300}, "Pair": {"reward": lambda self: np.ones(2)},
    "NoInfo": {"info": lambda self: None}, "Game": {"info": lambda self: {"game": "chess"}},
    "Blind": {"observation_space": Box(-1, 1, (0,))}, "Idle": {"action_space": Box(-1, 1, (0,))},
    "Last": {"observation_space": Box(0, 255, (84, 84, 3), np.uint8)},
    "Grey": {"observation_space": Box(0, 255, (84, 84), np.uint8)},
    "LateText": {"reward": late(lambda self: "x", 1.0)}, "LateBoom": {"reward": late(boom, 1.0)},
}.items():
    gym.register(f"{name}-v0", type(name, (Fine,), parts))
"""
BROKEN = {"divides": "1 / 0", "lacks": "import no_such_thing", "odd": "def f(:",
          "leaves": "raise SystemExit(0)"}  # fmt: skip


@pytest.fixture(autouse=True)
def _at_faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"faulty": FAULTY, **BROKEN}.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


BOOM = r"fails with ZeroDivisionError: boom, at faulty.py:6 in boom$"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("faulty:Made-v0", BOOM),
        ("faulty:Reset-v0", BOOM),
        ("faulty:Step-v0", BOOM),
        ("faulty:Close-v0", BOOM),
        ("faulty:Leave-v0", "ends the program, with status 0, at faulty.py:9 in leave$"),
        ("faulty:Text-v0", "gives the reward '1.0', of type str; it must be a number"),
        ("faulty:Nothing-v0", "gives the reward None, of type NoneType; it must be a number"),
        ("faulty:Pair-v0", "gives the reward array.*, of type ndarray; it must be a number"),
        ("faulty:Huge-v0", r"gives the reward 1e\+300; float32 ends at 3.4e\+38: scale it"),
        ("faulty:NoInfo-v0", "gives the info None; it must be a dict"),
        ("faulty:Blind-v0", "there is nothing in them to learn from"),
        ("faulty:Idle-v0", "there is nothing to choose"),
        ("faulty:Last-v0", r"turn them to \(3, 84, 84\) by .*TransformObservation"),
        ("faulty:Grey-v0", "FrameStackObservation may help"),
        ("faulty:LateBoom-v0", ""),
        ("divides:X-v0", r"ZeroDivisionError: division by zero, at divides.py:1 in <module>"),
        ("lacks:X-v0", "No module named 'no_such_thing'"),
        ("odd:X-v0", r"fails with SyntaxError: invalid syntax \(odd.py, line 1\)"),
        ("leaves:X-v0", "ends the program, with status 0, at leaves.py:1 in <module>"),
        *((name, "it must be an id of gymnasium, or module:id")
          for name in ("../x:Y", "x:", ":Y", "a.b:", "", ":", ".x:Y", "a b:Y", "x:Y:Z")),
    ],
)  # fmt: skip
def test_what_shows_at_the_first_look_is_refused_in_one_line(name: str, text: str) -> None:
    if not text:
        environments.look(name, acts="any", sees="any")
        return
    with pytest.raises(Refused, match=text) as refused:
        environments.look(name, acts="any", sees="any")
    assert "\n" not in str(refused.value) and repr(name) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("faulty:LateBoom-v0", BOOM),
        ("faulty:LateText-v0", "does not follow gymnasium's API: ValueError: could not convert"),
    ],
)
def test_what_shows_later_is_a_fault_in_one_line(name: str, text: str) -> None:
    some = episodes.Episodes(name, seed=1, index=range(1), facts=environments.look(name))
    with pytest.raises(Fault, match=text) as fault:
        for _ in range(200):
            some.step(0, 1)
    assert fault.value.kind == "environment" and "\n" not in str(fault.value)
    with pytest.raises(Fault, match=text):
        evaluation.play_greedy(
            name, lambda seen: np.ones(len(seen), np.int64), episodes=400, seed=1, stream=1
        )


def test_a_policy_s_own_error_is_not_blamed_on_the_environment() -> None:
    def choose(_: object) -> object:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        evaluation.play_greedy("faulty:LateBoom-v0", choose, episodes=1, seed=1, stream=1)


def test_an_info_of_the_environment_s_own_is_no_score() -> None:
    name = "faulty:Game-v0"
    some = episodes.Episodes(name, seed=1, index=range(1), facts=environments.look(name))
    for _ in range(9):
        some.step(0, 1)
    assert some.take_ended() == [(9.0, 9)]


@pytest.mark.parametrize("name", ["divides", "odd", "leaves", "faulty:boom"])
def test_a_team_s_code_that_fails_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(Refused, match="fails with|ends the program") as refused:
        team_environments.look(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["../x:Y", ":Y", "", ".x:Y", "a b"])
def test_a_name_that_is_no_team_s_is_told_so(name: str) -> None:
    with pytest.raises(Refused, match="must be a module with parallel_env, or module:function"):
        team_environments.look(name)


def test_what_cannot_be_closed_costs_a_line_only(capsys: pytest.CaptureFixture[str]) -> None:
    closed: list[int] = []

    class Closes:
        def close(self) -> None:
            closed.append(1)
            raise OSError("stuck")

    blame.closing_all("x:Y", [Closes(), Closes()])
    assert closed == [1, 1]
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and told[0].startswith("WARNING: env 'x:Y' fails with OSError: stuck, at")
