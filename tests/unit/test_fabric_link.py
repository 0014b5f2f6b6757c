"""Every exception of paramiko becomes one of our errors."""

from __future__ import annotations

import inspect
import socket

import paramiko
import paramiko.auth_strategy
import paramiko.ssh_exception
import pytest

from runner.carriers.fabric_link import translate, translated
from runner.carriers.failures import Dropped, Refused
from runner.carriers.ssh_config import Hop, Route, SshConfig, Target
from runner.errors import AuthRefused, HostError, HostKeyError, RunnerError, SpecError, Unreachable

HOP = Hop("gpu1", Target("10.20.0.7", "drl"), SshConfig("10.20.0.7", 22, "drl"))
ROUTE = Route("gpu1", (HOP,))
KEY = paramiko.ECDSAKey.generate()
BUILT = {
    "BadAuthenticationType": ("no", ["password"]),
    "PartialAuthentication": (["keyboard-interactive"],),
    "ChannelException": (2, "Connect failed"),
    "BadHostKeyException": ("gpu1", KEY, KEY),
    "ProxyCommandFailure": ("nc", 1),
    "NoValidConnectionsError": ({("10.20.0.7", 22): OSError("refused")},),
    "AuthFailure": (paramiko.auth_strategy.AuthResult(None),),
}
EXPECTED: dict[str, type[RunnerError]] = {
    "AuthenticationException": AuthRefused,
    "PasswordRequiredException": AuthRefused,
    "BadAuthenticationType": AuthRefused,
    "PartialAuthentication": AuthRefused,
    "UnableToAuthenticate": AuthRefused,
    "AuthFailure": AuthRefused,
    "ChannelException": Unreachable,
    "BadHostKeyException": HostKeyError,
    "IncompatiblePeer": HostError,
    "ProxyCommandFailure": Unreachable,
    "NoValidConnectionsError": Refused,
    "CouldNotCanonicalize": SpecError,
    "ConfigParseError": SpecError,
    "MessageOrderError": HostError,
    "SSHException": HostError,
}


def exceptions_of_paramiko() -> list[type[Exception]]:
    places = (paramiko.ssh_exception, paramiko.auth_strategy)
    found = {
        item
        for place in places
        for _, item in inspect.getmembers(place, inspect.isclass)
        if issubclass(item, Exception) and item.__module__.startswith("paramiko")
    }
    return sorted(found, key=lambda item: item.__name__)


@pytest.mark.parametrize("kind", exceptions_of_paramiko(), ids=lambda kind: kind.__name__)
def test_every_exception_class_has_its_error(kind: type[Exception]) -> None:
    error = kind(*BUILT.get(kind.__name__, ("what it said",)))
    ours = translate(error, ROUTE, HOP, ["id_ed25519"])
    assert type(ours) is EXPECTED[kind.__name__]
    assert ours.message.startswith("gpu1: ") and ours.status == EXPECTED[kind.__name__].status


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (paramiko.SSHException("No existing session"), Unreachable, "no answer for 20 s"),
        (paramiko.SSHException("Error reading SSH protocol banner"), Dropped, "lost"),
        (paramiko.SSHException("Timeout opening channel."), Unreachable, "no answer for 20 s"),
        (paramiko.ssh_exception.IncompatiblePeer("Incompatible ssh peer (no acceptable host key)"),
         HostKeyError, "no key of a kind"),
        (paramiko.ChannelException(1, "Administratively prohibited"), HostError, "allows no"),
        (TimeoutError(), Unreachable, "no answer for 20 s"),
        (socket.gaierror(-2, "Name or service not known"), Unreachable, "no machine called"),
        (ConnectionRefusedError(111, "refused"), Refused, "refused the connection"),
        (OSError(113, "No route to host"), Unreachable, "lost"),
        (EOFError(), Unreachable, "lost"),
        (paramiko.AuthenticationException("Authentication timeout."), Unreachable, "no answer for"),
    ],
)  # fmt: skip
def test_what_only_words_tell_apart(error: Exception, kind: type[RunnerError], words: str) -> None:
    ours = translate(error, ROUTE, HOP)
    assert type(ours) is kind and words in ours.message


REFUSAL = paramiko.AuthenticationException("Authentication failed.")
CUT = paramiko.AuthenticationException("Authentication failed: transport shut down or saw EOF")
OVER = paramiko.SSHException("No existing session")


@pytest.mark.parametrize(
    ("results", "kind"),
    [
        ([REFUSAL], AuthRefused),
        ([REFUSAL, REFUSAL, CUT, OVER, OVER], AuthRefused),  # the server had enough of them
        ([CUT], Unreachable),
        ([CUT, OVER, OVER], Unreachable),
        ([EOFError()], Unreachable),
        ([ConnectionResetError(104, "reset")], Unreachable),
    ],
)
def test_a_login_that_the_link_cut_is_no_refused_key(
    results: list[Exception], kind: type[RunnerError]
) -> None:
    told = paramiko.auth_strategy.AuthResult(None)
    told += [paramiko.auth_strategy.SourceResult(None, result) for result in results]
    error = paramiko.auth_strategy.AuthFailure(told)
    assert type(translate(error, ROUTE, HOP, ["id_ed25519"])) is kind
    many_keys = translate(OVER, ROUTE, HOP, ["id_ed25519"])
    assert isinstance(many_keys, AuthRefused)


def test_our_own_errors_and_bugs_pass_through() -> None:
    with pytest.raises(HostKeyError, match="mine"), translated(ROUTE, HOP):
        raise HostKeyError("mine")
    with pytest.raises(ZeroDivisionError), translated(ROUTE, HOP):
        raise ZeroDivisionError


def test_the_cause_is_kept() -> None:
    with pytest.raises(Unreachable) as caught, translated(ROUTE, HOP):
        raise EOFError
    assert isinstance(caught.value.__cause__, EOFError)
