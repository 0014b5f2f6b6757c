"""Every error has the exit status that the documentation promises."""

from __future__ import annotations

import pytest

from runner import errors

EXPECTED = {
    "RunFailed": 1,
    "SpecError": 2,
    "HostError": 3,
    "Unreachable": 3,
    "AuthRefused": 3,
    "HostKeyError": 3,
    "ProvisionError": 4,
    "WorkerError": 5,
    "ProtocolMismatch": 5,
    "NotFound": 6,
    "Conflict": 7,
    "WrongState": 7,
    "TimedOut": 7,
    "IntegrityError": 8,
    "OutcomeUnknown": 9,
    "OutputError": 141,
}


def kinds() -> dict[str, type[errors.RunnerError]]:
    found = vars(errors).values()
    return {
        item.__name__: item
        for item in found
        if isinstance(item, type)
        and issubclass(item, errors.RunnerError)
        and item is not errors.RunnerError
    }


def test_statuses_are_the_promised_ones() -> None:
    assert {name: kind.status for name, kind in kinds().items()} == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_message_and_advice_are_kept(name: str) -> None:
    error = kinds()[name]("gpu1: no answer", "runner ps", "or wait")
    assert (str(error), error.message) == ("gpu1: no answer", "gpu1: no answer")
    assert error.advice == ("runner ps", "or wait")
