"""The test rig: real hosts, private to this project, made on one machine.

Three hosts, each with its own processes, mounts, accounts, `/tmp` and `/run`, as a
machine has (Linux namespaces; killing a host's first process is pulling its plug):

    operator ──▶ plain   an sshd on a loopback port; its user may not use Docker
    operator ──▶ login   a jump host with an address of its own
                   └──▶ gpu   reached only through login; its user may use its Docker

For benchmarks there are ways past the jump host, with round trips of 0, 20 and 100 ms
(`ways.py`); they exist once `Rig.bring_up_ways` made them.

Nothing of the machine itself is used or changed: not its Docker, sshd, accounts,
crontabs, firewall or `/root/.ssh`. All that is made lies under two folders, of which
`RUNNER_RIG_DIR` (default /var/lib/runner-rig) holds the running rig and
`RUNNER_RIG_CACHE` (default /var/cache/runner-rig) what is slow to make. Network
namespaces and links are called `rig…`. `RUNNER_RIG_INSTANCE` (0 to 9) names one of
several rigs that may run at once.

By hand: `python -m tests.rig up`; without a word it names the others.
"""
