"""How the operator wants to hear of runs, as it goes to workers.

The settings travel with a submit and with `notify test`; where the file is gone, that does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner import notify_file
from runner.app.results import Report
from runner.errors import SpecError
from runner.model import Host

NO_NETWORK = 'its worker has no network (network = "none"): no message goes out from there'


class Wishes:
    """How this operator wants to hear of runs, for the requests of one command."""

    def __init__(
        self, client: str | None, body: Mapping[str, Any] | None, *, is_known: bool = True
    ) -> None:
        """is_known: `body` is what they want now; else workers go by what they have."""
        self._client = client
        self._is_known = is_known
        self.body = body
        """The settings; None when there are none."""

    def request(self, host: Host, *, again: bool = False) -> dict[str, Any] | None:
        """What goes with a request, None where a worker is told nothing; again: it went before."""
        if self._client is None:
            return None
        if again or not self._is_known:
            return {"client": self._client}
        body = None if self.body is None else dict(self.body)
        return {"client": self._client, "host": host.name, "settings": body}


def read_wishes(report: Report | None = None, hosts: Sequence[Host] = ()) -> Wishes:
    """The operator's file as it is now, with a note where no message can go out.

    Raises SpecError when it is wrong.
    """
    settings = None
    if notify_file.path_of().exists():
        from runner.cron import machine_zone

        settings = notify_file.read_settings(machine_zone() or None)
    body = None if settings is None else settings.body
    client = notify_file.client_name(make=body is not None)
    for host in hosts:
        if report is not None and body is not None and host.network == "none":
            report.note(f"notify {host.name}: {NO_NETWORK}")
    return Wishes(client, body)


def wishes_or_none(report: Report) -> Wishes:
    """The same for who cannot ask anybody: where the file is wrong, workers keep what they have."""
    try:
        return read_wishes()
    except SpecError as error:
        report.warn(f"notifications: {'; '.join([error.message, *error.advice])}")
        return Wishes(notify_file.client_name(make=False), None, is_known=False)
