"""Networks side by side give what each of them would alone."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import side_by_side  # noqa: E402


def alone(both: Any, which: int, between: type[Any]) -> Any:
    """One of them as torch's own layers."""
    layers: list[Any] = []
    for weight, bias in both.layers:
        layer = torch.nn.Linear(*weight.shape[1:])
        with torch.no_grad():
            layer.weight.copy_(weight[which].T)
            layer.bias.copy_(bias[which, 0])
        layers += [layer, between()]
    return torch.nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_each_gives_and_learns_what_it_would_alone(name: str) -> None:
    torch.manual_seed(0)
    both = side_by_side.SideBySide(2, (3, 8, 8, 2), getattr(torch, name))
    one_each = [
        alone(both, i, {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}[name]) for i in (0, 1)
    ]
    x = torch.randn(9, 3)
    out, expected = both(x), torch.stack([one(x) for one in one_each])
    assert out.shape == (2, 9, 2) and (out - expected).abs().max() < 1e-6
    assert (out[0] - out[1]).abs().max() > 0.01
    out.square().sum().backward()
    expected.square().sum().backward()
    for i, one in enumerate(one_each):
        for (weight, bias), layer in zip(both.layers, one[::2], strict=True):
            assert (weight.grad[i].T - layer.weight.grad).abs().max() < 1e-5
            assert (bias.grad[i, 0] - layer.bias.grad).abs().max() < 1e-5


def test_they_begin_as_torch_has_layers_or_orthogonal() -> None:
    torch.manual_seed(0)
    for weight, bias in side_by_side.SideBySide(2, (400, 64, 3)).layers:
        limit = weight.shape[1] ** -0.5
        assert 0.95 * limit < weight.abs().max() <= limit and bias.abs().max() <= limit
    for weight, bias in side_by_side.SideBySide(3, (4, 6, 5), gain=2.0).layers:
        for one in weight.detach():
            assert np.allclose(torch.linalg.svdvals(one), 2.0, rtol=1e-5)
        assert not bias.any() and not torch.equal(weight[0], weight[1])


def test_numpy_shares_the_memory() -> None:
    both = side_by_side.SideBySide(2, (3, 8, 2))
    layers = both.in_numpy(1)
    with torch.no_grad():
        both.weights[1][1, 4, 0], both.biases[0][1, 0, 2] = 5.0, 6.0
    assert layers[1][0][4, 0] == 5.0 and layers[0][1][2] == 6.0
