"""Parameters as one vector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

from tests.helpers.agents import AGENTS  # noqa: E402  puts agents/ on the path
from tests.helpers.two_ranks import as_processes  # noqa: E402

# isort: split
import parameters  # noqa: E402


def test_flat_parameters_are_the_module_and_get_its_gradient() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    plain = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    plain.load_state_dict(module.state_dict())
    flat = parameters.flatten_parameters(module)
    x = torch.randn(5, 3)
    for each in (module, plain):
        each(x).square().sum().backward()
    assert torch.equal(flat.grad, torch.cat([p.grad.reshape(-1) for p in plain.parameters()]))
    with torch.no_grad():
        flat.zero_()
    assert not module(x).any()


def test_numpy_network_reads_the_parameters_as_they_are_now() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    flat = parameters.flatten_parameters(module)
    network = parameters.NumpyNetwork(parameters.layers_of(flat.detach().numpy(), (3, 4, 2)))
    x = torch.randn(5, 3)
    for _ in range(2):
        assert np.abs(network(x.numpy()) - module(x).detach().numpy()).max() < 1e-6
        with torch.no_grad():
            flat.mul_(-2.0)


def test_first_not_finite_names_the_vector() -> None:
    good, bad = torch.ones(3), torch.tensor([1.0, float("inf")])
    assert parameters.first_not_finite({"a": good, "b": bad, "c": bad}) == "b"
    assert parameters.first_not_finite({"a": good}) is None


def test_adam_is_torchs_to_the_bit_and_goes_on_from_its_state() -> None:
    torch.manual_seed(0)
    mine, theirs = (torch.nn.Parameter(torch.arange(5.0)) for _ in range(2))
    adam = parameters.Adam(mine, eps=1e-5)
    optimizer = torch.optim.Adam([theirs], eps=1e-5, fused=True)
    for lr in (0.1, 0.05, 0.01):
        mine.grad = torch.randn(5)
        theirs.grad = mine.grad.clone()
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        again = parameters.Adam(mine, eps=1e-5)  # as in a resumed training
        again.load({name: vector.clone() for name, vector in adam.state().items()})
        adam = again
        adam.step(lr)
        assert torch.equal(mine, theirs)
    assert float(adam.count) == 3


def made(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def test_descent_is_adam_by_gradients_that_are_clipped_as_torch_does(run: Any) -> None:
    mine, plain = made(0), made(0)
    descent = parameters.Descent(mine, run, most=0.1, eps=1e-5)
    optimizer = torch.optim.Adam(plain.parameters(), eps=1e-5)
    norms = []
    for k, lr in enumerate((0.1, 0.05, 0.01)):
        x = torch.randn(5, 3) * (0.01 if k == 1 else 1.0)
        norm = descent.step(mine(x).square().mean(), lr)
        optimizer.zero_grad()
        plain(x).square().mean().backward()
        expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        assert float(norm) == pytest.approx(float(expected), rel=1e-5)
        norms.append(float(norm))
    assert min(norms) < 0.1 < max(norms)
    flat = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
    assert (descent.theta - flat).abs().max() < 1e-6


def test_descent_clips_the_first_numbers_alone_when_told(run: Any) -> None:
    one = made(0)
    descent = parameters.Descent(one, run, most=1e-3)
    x = torch.randn(5, 3)
    (whole,) = torch.autograd.grad(one(x).square().mean(), [one[2].bias])
    norm = descent.step(one(x).square().mean(), 0.0, clipped=-2)  # all but the last biases
    gradient = descent.theta.grad
    assert torch.equal(gradient[-2:], whole) and float(norm) > 1e-3
    assert float(gradient[:-2].norm()) == pytest.approx(1e-3, rel=1e-3)


def test_descent_leaves_other_modules_alone(run: Any) -> None:
    one, other = made(0), made(1)
    others = parameters.Descent(other, run, most=1.0)
    others.theta.grad.fill_(7.0)
    parameters.Descent(one, run, most=1.0).step(
        other(torch.relu(torch.cat([one(torch.ones(1, 3)), torch.ones(1, 1)], 1))).mean(), 0.1
    )
    assert (others.theta.grad == 7.0).all()


def test_descent_goes_on_from_what_was_kept_and_names_what_it_holds(run: Any) -> None:
    first, again = (parameters.Descent(made(seed), run, most=1.0) for seed in (0, 1))
    for _ in range(3):
        first.theta.grad.normal_()
        first.adam.step(0.1)
    again.load(first.state())
    for name, vector in first.held().items():
        assert torch.equal(vector, again.held()[name]), name
    assert list(first.held()) == ["parameters", "count", "mean", "square"]
    assert set(first.state()) == {"params", "optimizer"}


MEAN = """
import sys; sys.path.insert(0, {agents!r})
import runtime, parameters, torch
run = runtime.Run("test", device="cpu")
module = torch.nn.Linear(2, 1, bias=False)
descent = parameters.Descent(module, run, most=1e9)
with torch.no_grad():
    descent.theta.fill_(1.0)
norm = descent.step(module(torch.tensor([[4.0 * run.rank, 8.0]])).sum(), 0.1)
print(descent.theta.grad.tolist(), descent.theta.tolist(), float(norm))
runtime.close(run)
"""


def test_descent_goes_by_the_mean_gradient_of_the_ranks(tmp_path: Path) -> None:
    first, second = as_processes(MEAN.format(agents=str(AGENTS)), tmp_path)
    assert first == second and first.startswith("[2.0, 8.0]")
