"""Parameters as one vector."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

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
    network = parameters.NumpyNetwork(flat.detach().numpy(), (3, 4, 2))
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
