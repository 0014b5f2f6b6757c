"""One line for each thing that people type or read: what it means (pure).

The reference in docs/reference/ is made of these lines and of what the code itself says of types,
defaults and choices. A test compares every table here with the code that owns its names, so that a
key without a line, or a line without a key, is found.

Lines are Markdown, as short as they can be, without a full stop.
"""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """A word of `submit`: how it is written, and what it does."""

    form: str
    text: str


SUBMIT = {
    "host": Word("host=H", "where it runs; `local`, this machine, without it"),
    "job": Word("job=J", "a file `agents/J.toml`"),
    "image": Word(
        "image=PIN",
        "the image to run in, one of those provisioned there; the host file's `image` without it",
    ),
    "gpus": Word(
        "gpus=N, gpus=auto",
        "cards to lease; auto: one per rank where the host has them, else none",
    ),
    "nproc": Word(
        "nproc=N", "ranks; several run under torchrun's agent, on loopback only; 1024 at most"
    ),
    "launcher": Word(
        "launcher=auto, direct, torchrun, mpirun",
        "what starts the ranks; auto: direct for one rank, torchrun for several."
        " mpirun (Open MPI) only starts them: [jobs](../jobs.md#launchers)",
    ),
    "grace": Word("grace=25s", "how long a stopped run may save"),
    "name": Word("name=TEXT", "to find it again: `name:TEXT`"),
    "tags": Word("tags=a,b", "to find it again: `tag:TEXT`"),
    "time_limit": Word("time_limit=12h", "running time, summed over attempts"),
    "restarts": Word(
        "restarts=N",
        "how many faults of its own are forgiven, 0 to 1000; the job's 3, a command's 0",
    ),
    "priority": Word("priority=N", "-1000 to 1000, higher first; 0 without it"),
    "after": Word(
        "after=RUN,RUN",
        "starts once these are done: ids, a sweep's id (all its runs), `name:`, `tag:`;"
        " on the same host",
    ),
    "stuck_after": Word("stuck_after=30m", "without a sign of life for so long it is stuck"),
    "on_stuck": Word("on_stuck=tell, restart, stop", "what is done then"),
    "log_limit": Word("log_limit=1g", "most bytes of output kept"),
    "env": Word(
        "env.NAME=VALUE",
        "a variable of the job (not a secret: it stands in the run's record on the host)",
    ),
    "secret": Word(
        "secret.NAME, secret.NAME=@FILE",
        "your variable NAME, or a file's content (one newline at its end is dropped), 64 KiB at"
        " most; only the name stands in records",
    ),
    "each": Word("each.NAME=1..5", "with `-- CMD`: a sweep that fills in `{NAME}`"),
    "param": Word("param.NAME=VALUE", "a parameter that is named like a word above"),
}
"""The reserved keys and prefixes of grammar/words.py."""

SCHEDULE = {
    "tz": Word("tz=Europe/Berlin", "the zone of its times; without it this machine's"),
    "overlap": Word(
        "overlap=skip, queue, cancel",
        "while the last firing's runs have not ended: no new ones (skip), wait until they have"
        " (queue; one firing waits at a time, further ones are skipped), or cancel them first",
    ),
    "missed": Word(
        "missed=once, skip",
        "after the machine was off or asleep: one run, or none; more than 5 minutes late counts"
        " as missed",
    ),
    "code": Word(
        "code=fixed, tree, git:BRANCH",
        "the code of the moment it was added, until `schedule update` (fixed); the folder as it"
        " is when it fires (tree); that branch as the local repository has it then",
    ),
}
"""The words of `schedule add` beside those of submit."""

HOST_FILE = {
    "ssh": 'whatever `ssh` takes: an alias, user@name, ssh://user@name:port; `"local"`: this'
    " machine's own Docker. Required",
    "jump": "the machine to reach it through, where the ssh configuration does not say it",
    "host_key": "the host's key, as `host add` pins it",
    "jump_key": "the jump's key, as `host add` pins it",
    "runtime": "what a worker is: a container, or a virtual environment of the account",
    "image": "the pin runs go to without a word: one of runner's own, or of `images.toml`",
    "workspace": "the folder there that holds all runs, for you alone (0700)",
    "gpus": '`"all"`, `"none"`, or a list of the indices nvidia-smi shows, as `[0, 1]`',
    "slots": "runs at once that lease no GPU; without it the CPU count there",
    "disk_reserve": "free room below which nothing starts, and what runs saves and stops",
    "transport": "which carrier talks to it; auto chooses: [ssh](../ssh.md)",
    "network": "what runs may reach (docker): everything, nothing, or the machine's own network",
    "python": "(venv) the interpreter the environment is made from: a path or a program's name;"
    " without it the first that fits",
    "limits.shm": "(docker) shared memory",
    "limits.memory": "(docker) memory, without swap beside it; no limit without it",
    "env.NAME": "a variable of the worker and of every job there; its value stays out of messages",
    "data.NAME": "a folder there that jobs read as `$RUNNER_DATA/NAME`",
}
"""The keys of hosts/NAME.toml."""

LOCAL_FILE = {
    "runtime": "it is what it is",
    **{key: HOST_FILE[key] for key in ("gpus", "slots", "disk_reserve", "env.NAME", "data.NAME")},
}
"""The keys of hosts/local.toml."""

PROJECT_FILE = {
    "name": "the project's name; the folder's without it",
    "id": "what its runs are known by; of the folder's path without it",
    "code_limit": "how much code may travel in all",
}
"""The keys of runner.toml."""

IMAGES_FILE = {
    "base": "what the image is built on: a tag, or NAME@sha256:…. Required",
    "torch": "the version of torch in it. Required",
    "cuda": 'the CUDA version of that torch; `"none"` for a CPU image. Required',
    "driver_min": 'the oldest NVIDIA driver that runs it; `"0"` for a CPU image. Required',
    "capabilities": 'what torch was compiled for, as `["8.0", "8.6"]`',
    "pip": "the same by pip, for `venv`: lines of a requirements file, every package with `==`",
}
"""The keys of a pin in images.toml."""

JOB_FILE = {
    "entry": "the program, a file beside this one",
    "command": 'or an argv from the project\'s root, as `["python", "train.py"]`',
    "nproc": "ranks",
    "gpus": '`"auto"` (one per rank where the host has them, else none), or a number',
    "launcher": "what starts the ranks; auto: direct for one, torchrun for several",
    "pass": "how parameters reach the program: by `$RUNNER_PARAMS` alone, as words, or not at all",
    "grace": "how long a stopped run may save",
    "metric": "the metric that `ps`, `plot` and `compare` show; without it the first known one",
    "time_limit": "running time, summed over attempts; none without it",
    "restarts": "how many faults of its own are forgiven",
    "stuck_after": "without a sign of life for so long it is stuck; never without it",
    "on_stuck": "what is done then",
    "log_limit": "most bytes of output kept; all without it",
    "keep": "the newest checkpoints that stay; all without it",
    "keep_best": "the best by metric that stay besides (needs keep and metric)",
    "resumable": "names of parameters that `resume` may change",
    "setup.requirements": "packages beside the image's own, or the name of a file that lists them",
    "params.NAME": "a parameter, of the type of its default; `seed = -1` is drawn at submit",
    "flags.NAME": "how the program spells that parameter: [jobs](../jobs.md#a-script-of-your-own)",
}
"""The keys of agents/NAME.toml."""

NOTIFY_FILE = {
    "on": "of what you hear: `ended` (or `failed`: ends that were not good, alone), `stuck`,"
    " `missed`, `disk`; `[]`: of nothing",
    "webhook.url": "where messages are posted; it is a secret: nobody else may read this file then",
    "webhook.url_file": "or a file that holds it",
    "webhook.format": "what is posted",
    "webhook.headers.NAME": 'a header: a text, or `{ file = "token" }`',
    "command.argv": "a program on the worker; the message is on its stdin",
    "heartbeat.url": "pinged while all is well; `{name}` is the host, or the schedule",
    "heartbeat.url_file": "or a file that holds it",
    "heartbeat.every": "how often workers ping it, 1m to 1d; without it only firings do",
}
"""The keys of ~/.config/runner/notify.toml."""

FREE_TYPES = {
    "on": "list of texts",
    "webhook.url": "text",
    "webhook.url_file": "text",
    "webhook.headers.NAME": "text, or a table",
    "heartbeat.url": "text",
    "heartbeat.url_file": "text",
    "gpus": "text, whole number or list",
    "capabilities": "list of texts",
    "pip": "list of texts",
    "stuck_after": "duration",
    "time_limit": "duration",
    "resumable": "list of texts",
    "setup.requirements": "list of texts, or a text",
    "params.NAME": "any",
    "flags.NAME": "text",
    "env.NAME": "text",
    "data.NAME": "text",
}
"""What keys take that fields.py reads as they are."""


class Status(NamedTuple):
    """An exit status: what it means, and whether the same words may work later."""

    text: str
    again: str


STATUSES = {
    0: Status("done; with `wait`, `--wait`: every run ended done", ""),
    1: Status("our part worked, a run ended failed, cancelled or skipped", "no"),
    2: Status("a file, word or option is wrong; no run was made", "no"),
    3: Status(
        "no session with the host: unreachable, key refused, host key unknown or changed; of"
        " `ps` also: no worker where runs were last seen alive",
        "if unreachable",
    ),
    4: Status(
        "the host answered, the worker could not be made or is not there; of `doctor`: a run"
        " would not start",
        "no",
    ),
    5: Status("the worker answered wrongly or refused", "no"),
    6: Status("no such host, run or artifact", "no"),
    7: Status("something is in the way, or `--timeout` passed", "later"),
    8: Status("a digest or record does not match", "no"),
    9: Status(
        "the link broke after the request went out, and the host could not be asked again",
        "the message has the words that settle it; typing them is safe",
    ),
    70: Status("a bug: a short message, the traceback in a file", "no"),
    130: Status("interrupted", ""),
    141: Status(
        "stdout cannot be written: its reader went away, its disk is full; what was asked for may"
        " be done",
        "",
    ),
}
"""Every exit status there is; classes of errors.py have those from 1 to 9."""

STATES = {
    "queued": "it waits: for its turn, a card or a slot, other runs, room on the disk, a pause",
    "starting": "packages are installed, its code is checked, its ranks are started",
    "running": "its ranks are up",
    "stopping": "it was asked to stop, and saves",
    "ended": "nothing of it is left; it has an outcome",
}

OUTCOMES = {
    "done": "every rank ended with 0",
    "failed": "it ended with a fault, and is not repeated",
    "cancelled": "somebody cancelled it",
    "skipped": "a run it was to follow did not end done; or a firing that made no run",
}

CAUSES = {
    "exit": "a rank ended with a status that is not 0",
    "signal": "a rank was killed by a signal",
    "oom": "the kernel killed a process of it: no memory left",
    "cuda-oom": "no memory left on the card",
    "stuck": "no sign of life for longer than `stuck_after`",
    "nan": "a number that is not finite, as the job itself told",
    "time-limit": "it ran for its `time_limit`",
    "disk-full": "no room on the disk, or less than the host's `disk_reserve`",
    "setup": "it cannot run as it is told to: packages, data, parameters, device, environment",
    "cancelled": "somebody cancelled it",
    "dependency": "a run it was to follow did not end done",
    "host-restart": "the host was restarted",
    "worker-lost": "the worker was restarted",
    "launcher-lost": "its launcher was killed",
    "not-started": "it was not started",
    "lease-lost": "its lease was lost",
    "shutdown": "the worker was shut down",
    "overlap": "the last firing's runs had not ended",
    "missed": "the machine was off or asleep at that time",
    "not-submitted": "its submit was refused, or its host did not answer",
}
"""Every kind of cause in states.py."""

VARIABLES = {
    "RUNNER_RUN": "the run's id",
    "RUNNER_ATTEMPT": "1, 2, …",
    "RUNNER_PARAMS": "a JSON file with all parameters",
    "RUNNER_CODE": "the folder of its own copy of the code, where it starts",
    "RUNNER_CHECKPOINTS": "the folder for checkpoints",
    "RUNNER_LOGS": "the folder for logs, event files and videos",
    "RUNNER_DATA": "a folder with an entry for each of the host's `[data]`; empty: none",
    "RUNNER_RESUME": "the checkpoint to go on from, verified; empty when there is none",
    "RUNNER_PROGRESS": "this rank's file for progress lines",
    "RUNNER_SECRETS": "a folder with one file per secret; empty when there is none",
    "RUNNER_GRACE_S": "seconds between TERM and KILL",
    "CUDA_VISIBLE_DEVICES": "UUIDs of the leased cards; empty when none is leased",
    "CUDA_DEVICE_ORDER": "`PCI_BUS_ID`, so that indices are nvidia-smi's",
    "PYTHONUNBUFFERED": "`1`, so that lines arrive as they are printed",
    "HOME": "a folder of the workspace that lasts, for caches",
    "PWD": "the same as `RUNNER_CODE`",
    "RANK": "which rank it is, from 0; with `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`",
    "MASTER_ADDR": "where ranks meet, with several of them; with `MASTER_PORT` and torchrun's"
    " others",
    "OMP_NUM_THREADS": "cores by ranks, with several of them",
}
"""What the launcher sets for a job (provisioning/worker/environment.py, rank.py)."""

SETTINGS = {
    "RUNNER_WORKSPACE": "moves the workspace of `local`",
    "RUNNER_LEASES": "moves the folder of leases of `local`",
    "RUNNER_IDLE_END_S": "seconds after which an idle `local` worker ends; 600 without it",
    "XDG_CONFIG_HOME": "moves `~/.config`, where `runner/notify.toml` is",
    "XDG_STATE_HOME": "moves `~/.local/state`, where the name is by which workers know this client",
    "XDG_CACHE_HOME": "moves `~/.cache`, where tracebacks of bugs lie",
    "NO_COLOR": "no colours, whatever it holds; as `TERM=dumb` and `--color=never`",
}
"""Variables that the command line itself reads."""


class Limit(NamedTuple):
    """A number in the code that people meet: where it stands, its unit, and what it limits."""

    module: str
    name: str
    unit: str
    text: str


LIMITS = (
    Limit("runner.carriers.base", "CONNECT_TIMEOUT_S", "s", "to connect to a host"),
    Limit("runner.wire", "BEAT_S", "s", "between two beats of a conversation"),
    Limit("runner.wire", "CLIENT_PATIENCE_S", "s", "without a frame: the client takes it as cut"),
    Limit("runner.wire", "WORKER_PATIENCE_S", "s", "without a frame: the worker takes it as cut"),
    Limit(
        "runner.carriers.ssh_command", "_PERSIST_S", "s", "a shared connection stays open unused"
    ),
    Limit("runner.carriers.masters", "SILENCE_S", "s", "of a warm connection before a second one"),
    Limit("runner.app.many", "MOST_AT_ONCE", "", "hosts asked at the same time"),
    Limit(
        "runner.app.many",
        "LEAST_S",
        "s",
        "for a silent host among several; longer if others are slow",
    ),
    Limit("runner.app.doctor", "LIMIT_S", "s", "for all that `doctor` asks of hosts"),
    Limit("runner.doctor.questions", "LIMIT_S", "s", "for each tool that `doctor` starts there"),
    Limit("runner.code.guard", "FILE_BYTES", "bytes", "of a file that travels unasked"),
    Limit("runner.grammar.sweeps", "MOST_UNASKED", "", "runs of a sweep without `--yes`"),
    Limit("runner.grammar.sweeps", "MOST", "", "runs of a sweep"),
    Limit("runner.grammar.secret", "MOST_BYTES", "bytes", "of a secret"),
    Limit("runner.grammar.secret", "MOST_BYTES_IN_ALL", "bytes", "of all secrets of a run"),
    Limit("runner.grammar.requirements", "MOST", "", "packages in `[setup]`"),
    Limit("runner.model", "MOST_RANKS", "", "ranks of a run"),
    Limit(
        "runner.states",
        "OUTSIDE_LIMIT",
        "",
        "repeats in a row for causes from outside, without a new checkpoint",
    ),
    Limit("runner.app.firing", "TRY_AGAIN_FOR_S", "s", "a firing asks a silent host again"),
    Limit(
        "runner.schedule.definition", "MOST_KEPT", "", "firings of a schedule that are remembered"
    ),
    Limit(
        "runner.commands.follow", "TAIL_LINES", "", "lines that `tail` begins with on a terminal"
    ),
    Limit("runner.app.repull", "SHORTEST_S", "s", "between two looks of `pull --watch` at least"),
    Limit("runner.app.repull", "LONGEST_S", "s", "between two looks of `pull --watch` at most"),
    Limit("tenure", "IDLE_END_S", "s", "an idle `local` worker lives"),
    Limit("repeats", "LONGEST_PAUSE_S", "s", "of a pause before a repeat"),
    Limit("repeats", "AT_START_S", "s", "an attempt that tells no steps failed at its start"),
    Limit("gpus", "TIMEOUT_S", "s", "for nvidia-smi to answer"),
    Limit("gpus", "STRANGER_MIB", "MiB", "on a card that nobody leased before it is somebody's"),
    Limit("strangers", "GRACE_S", "s", "such a card must look free"),
    Limit("launcher", "MEMORY_WAIT_S", "s", "for a card's memory to be back after a run"),
    Limit("processes", "KILL_WAIT_S", "s", "after KILL before a process counts as one that stays"),
    Limit("watch", "LONGEST_LOOK_S", "s", "between two looks at a run's limits at most"),
    Limit("overlay", "LIMIT_S", "s", "to install the packages of `[setup]`"),
    Limit("overlay", "UNUSED_S", "s", "without a run before `gc` removes packages"),
    Limit("verbs.gc", "YOUNG_S", "s", "old before `gc` removes contents and leftovers"),
    Limit("verbs.gc", "BUNDLE_YOUNG_S", "s", "old before `gc` removes worker programs"),
    Limit("snapshot", "COPY_LIMIT_BYTES", "bytes", "of code that is copied; above it, hard links"),
    Limit("door", "FIRST_LIMIT_S", "s", "for somebody to enter a shell with GPUs"),
    Limit("door", "LAB_LINGER_S", "s", "a Lab with GPUs waits for somebody"),
)
"""What the code limits by a constant that no file and no word changes."""
