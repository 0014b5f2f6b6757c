"""Who listens in a network namespace, and who can be reached from another: by plain sockets."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterable, Sequence

_LISTEN = "0A"
_TRY = """
import json, socket, sys
said = {}
for port in map(int, sys.argv[2:]):
    try:
        socket.create_connection((sys.argv[1], port), 2).close()
        said[port] = "connected"
    except ConnectionRefusedError:
        said[port] = "refused"
    except OSError as error:
        said[port] = "nothing" if isinstance(error, TimeoutError) else str(error)
print(json.dumps(said))
"""


def listening(table: str) -> set[tuple[str, int]]:
    """(address, port) of each listening socket in the text of /proc/net/tcp or tcp6, or both."""
    found = set()
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == _LISTEN:
            address, _, port = fields[1].partition(":")
            found.add((_address(address), int(port, 16)))
    return found


def beyond_loopback(sockets: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """Those of them that more than this machine can reach."""
    return {each for each in sockets if not ipaddress.ip_address(each[0]).is_loopback}


def tried(
    run: Callable[[Sequence[str]], str], address: str, ports: Iterable[int]
) -> dict[int, str]:
    """What became of a connection to each port, tried by a Python that `run` starts somewhere."""
    argv = ["python3", "-I", "-c", _TRY, address, *map(str, sorted(set(ports)))]
    return {int(port): word for port, word in json.loads(run(argv)).items()}


def _address(text: str) -> str:
    # words of 32 bits, each in the machine's byte order
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
