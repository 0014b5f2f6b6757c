"""Fixtures of the unit tests."""

import sys
from collections.abc import Iterator

import pytest

from tests.helpers.agents import at_walks, run, walks

__all__ = ["at_walks", "run", "walks"]


@pytest.fixture(autouse=True)
def _environments_of_one_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Environments that a test's own modules register are gone with it, as are these modules:
    others may give theirs the same names.
    """
    yield
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is None:
        return
    ours = f"{tmp_path_factory.getbasetemp()}/"
    made_here = {
        name
        for name, module in list(sys.modules.items())
        if str(getattr(module, "__file__", None)).startswith(ours)
    }
    for name in made_here:
        del sys.modules[name]
    for id_, spec in list(gymnasium.registry.items()):
        if getattr(spec.entry_point, "__module__", None) in made_here:
            del gymnasium.registry[id_]
