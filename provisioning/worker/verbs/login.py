"""`login`: what a client must know to log in to this worker by ssh.

    REQ {"key": "ssh-ed25519 AAAA…"}
    REP {"user": "runner", "host_key": "ssh-ed25519 AAAA…", "workspace": "/workspace",
         "authorized": true, "no_terminal": null}

authorized: whether that key may log in. If not, the client adds it, on the host and not in here:
a container sees the keys read-only. no_terminal: why no session can have a terminal, in words.
"""

from __future__ import annotations

import os
import pwd
from typing import Any, Dict

import sshd

from verbs import Call, Refused


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """See the module's docstring. Raises Refused: no-service."""
    why = sshd.missing()
    if why is not None:
        raise Refused("no-service", why)
    try:
        return {
            "user": pwd.getpwuid(os.getuid()).pw_name,
            "host_key": sshd.public_host_key(call.workspace),
            "workspace": call.workspace.root,
            "no_terminal": sshd.no_terminal(),
            "authorized": sshd.is_authorized(sshd.keys_file(), str(request.get("key"))),
        }
    except sshd.CannotLogIn as error:
        raise Refused("no-service", str(error)) from error
