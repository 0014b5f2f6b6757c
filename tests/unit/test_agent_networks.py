"""Layers that agents share: their shapes, where activations are, and how weights begin."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import acceleration  # noqa: E402
import networks  # noqa: E402


def test_a_perceptron_is_linear_layers_with_activations_between_them() -> None:
    nn = torch.nn
    plain = networks.perceptron((3, 5, 4, 2))
    kinds = [type(layer) for layer in plain]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, acceleration.Head]
    assert plain(torch.randn(7, 6, 3)).shape == (7, 6, 2)
    assert [type(layer) for layer in networks.perceptron((3, 5, 2), nn.Tanh)][1] is nn.Tanh


def test_without_gains_layers_begin_as_torch_has_them() -> None:
    torch.manual_seed(0)
    plain = networks.perceptron((3, 5, 2))
    torch.manual_seed(0)
    assert torch.equal(plain[0].weight, torch.nn.Linear(3, 5).weight)
    assert torch.equal(plain[2].bias, torch.nn.Linear(5, 2).bias)


def test_gains_are_those_of_orthogonal_layers_without_biases() -> None:
    layers = networks.perceptron((3, 5, 2), torch.nn.Tanh, (2.0, 0.01))[::2]
    for layer, gain in zip(layers, (2.0, 0.01), strict=True):
        assert np.allclose(torch.linalg.svdvals(layer.weight.detach()), gain, rtol=1e-5)
        assert not layer.bias.any()
    assert networks.orthogonal(torch.nn.Linear(2, 3, bias=False), 1.0).bias is None


@pytest.mark.parametrize("shape", [(4, 84, 84), (1, 36, 36), (3, 41, 67)])
def test_convolutions_say_how_many_numbers_they_give(shape: tuple[int, ...]) -> None:
    layers, numbers = networks.convolutions(shape)
    assert torch.nn.Sequential(*layers)(torch.zeros(2, *shape)).shape == (2, numbers)
    if shape[1] == 84:
        assert numbers == 64 * 7 * 7


def test_convolutions_begin_as_they_are_told_to() -> None:
    torch.manual_seed(0)
    layers, _ = networks.convolutions((4, 36, 36))
    torch.manual_seed(0)
    assert torch.equal(layers[0].weight, torch.nn.Conv2d(4, 32, 8, 4).weight)
    layers, _ = networks.convolutions((4, 36, 36), 3.0)
    for layer in layers[:-1:2]:
        found = torch.linalg.svdvals(layer.weight.detach().flatten(1))
        assert np.allclose(found, 3.0, rtol=1e-4) and not layer.bias.any()
