"""Mixed precision and the compiler: what is computed stays the same, and off means off."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

from tests.helpers.agents import run  # noqa: E402, F401

# isort: split
import acceleration  # noqa: E402
import dqn  # noqa: E402
import environments  # noqa: E402
import options  # noqa: E402
import ppo  # noqa: E402
import replay  # noqa: E402
import runtime  # noqa: E402

CPU = torch.device("cpu")
PICTURES = (4, 36, 36)


def asked(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"amp": False, "compile": "off", **changes})


def doubled(x: Any) -> tuple[Any, ...]:
    return (2.0 * x,)


def test_off_is_the_function_itself() -> None:
    assert acceleration.accelerated(doubled, asked(), CPU) is doubled


def test_a_mode_that_there_is_not_is_refused_by_the_agents() -> None:
    for cls in (dqn.Options, ppo.Options):
        assert (cls().amp, cls().compile) == (False, "off")
        with pytest.raises(options.Refused, match="compile is 'on'; it must be one of off"):
            cls(compile="on")


def test_products_are_in_bfloat16_and_heads_in_float32() -> None:
    inner, head = torch.nn.Linear(8, 8), acceleration.Head(8, 2)

    def losses(x: Any) -> tuple[Any, ...]:
        middle = inner(x)
        return middle, head(middle)

    x = torch.randn(4, 8)
    middle, end = acceleration.accelerated(losses, asked(amp=True), CPU)(x)
    assert middle.dtype == torch.bfloat16 and end.dtype == torch.float32
    expected = torch.nn.functional.linear(middle.float(), head.weight, head.bias)
    assert torch.equal(end, expected)  # of the rounded numbers, and not rounded again
    end.sum().backward()
    assert inner.weight.grad.dtype == torch.float32


def test_a_card_without_bfloat16_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    card = torch.device("cuda", 0)
    assert acceleration.accelerated(doubled, asked(amp=True), card) is doubled
    assert capsys.readouterr().err == ("WARNING: Tesla T4 has no bfloat16: training in float32\n")


def test_where_no_compiler_works_training_goes_on_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Any) -> Any:
        raise RuntimeError("Failed to find C compiler\nset CC")

    monkeypatch.setattr(torch, "compile", lambda _, mode: broken)
    quick = acceleration.accelerated(doubled, asked(compile="reduce-overhead"), CPU)
    assert [quick(torch.ones(1))[0].item() for _ in range(2)] == [2.0, 2.0]
    assert capsys.readouterr().err == (
        "WARNING: compile=reduce-overhead does not work here (Failed to find C compiler): "
        "training without it\n"
    )


def test_results_are_not_those_that_the_next_call_writes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = torch.zeros(1)  # as a CUDA graph's output, the same memory each time
    monkeypatch.setattr(torch, "compile", lambda f, mode: lambda x: (kept.copy_(f(x)[0]),))
    quick = acceleration.accelerated(doubled, asked(compile="reduce-overhead"), CPU)
    first, second = quick(torch.ones(1)), quick(torch.full((1,), 5.0))
    assert (first[0].item(), second[0].item()) == (2.0, 10.0)


def test_a_fault_of_the_training_is_not_taken_for_the_compilers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", lambda _, mode: full)
    with pytest.raises(torch.OutOfMemoryError):
        acceleration.accelerated(doubled, asked(compile="default"), CPU)(torch.ones(1))


def learned_by_dqn(run: runtime.Run, **changes: Any) -> tuple[dict[str, float], Any]:  # noqa: F811
    torch.manual_seed(0)
    learner = dqn.Learner(dqn.Options(hidden=32, **changes), run, (*PICTURES, 32, 3))
    rng = np.random.default_rng(0)
    shape = (4, 16)
    seen, after = (
        torch.from_numpy(rng.integers(256, size=(*shape, *PICTURES), dtype=np.uint8))
        for _ in range(2)
    )
    choice = torch.from_numpy(rng.integers(3, size=(*shape, 1)))
    reward = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
    batch = replay.Batch(seen, after, choice, reward, torch.full(shape, 0.99))
    return learner.learn(batch, 500), learner.theta.detach().clone()


def learned_by_ppo(run: runtime.Run, **changes: Any) -> tuple[dict[str, float], Any]:  # noqa: F811
    torch.manual_seed(0)
    none = np.zeros(0, np.float32)
    facts = environments.Facts(PICTURES, True, 3, none, none, True)
    o = ppo.Options(rollout=8, epochs=2, batch_size=16, **changes)
    learner, roll = ppo.Learner(o, run, facts), ppo.Rollout(o.rollout, 4, facts)
    rng = np.random.default_rng(0)
    roll.seen[:] = rng.integers(256, size=roll.seen.shape)
    roll.actions[:] = rng.integers(3, size=roll.actions.shape)
    roll.rewards[:] = rng.normal(size=roll.rewards.shape)
    roll.length = 8
    told = learner.learn(learner.batch(roll, roll.rewards, 0.2), rng, 500)
    return told, learner.theta.detach().clone()


LEARNED = pytest.mark.parametrize("learned", [learned_by_dqn, learned_by_ppo])


@LEARNED
def test_losses_in_mixed_precision_are_near_those_in_float32(
    run: runtime.Run,  # noqa: F811
    learned: Callable[..., tuple[dict[str, float], Any]],
) -> None:
    (plain, there), (mixed, here) = learned(run), learned(run, amp=True)
    assert here.dtype == torch.float32 and not torch.equal(there, here)
    for tag, number in plain.items():
        if tag not in ("loss/kl", "loss/clip_fraction"):  # near zero in both
            assert mixed[tag] == pytest.approx(number, rel=0.05, abs=0.01), tag


@LEARNED
def test_compiled_learning_is_the_same(
    run: runtime.Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    learned: Callable[..., tuple[dict[str, float], Any]],
) -> None:
    compile_ = torch.compile
    # all that is traced, in one piece, without minutes of a C++ compiler
    monkeypatch.setattr(
        torch, "compile", lambda f, mode: compile_(f, backend="aot_eager", fullgraph=True)
    )
    (plain, there), (quick, here) = learned(run), learned(run, compile="default")
    assert torch.allclose(there, here, atol=1e-5)
    assert quick == pytest.approx(plain, rel=1e-3, abs=1e-5)
