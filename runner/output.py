"""What people and scripts see: results on stdout, everything else on stderr.

stderr is silent without a terminal, but for errors and for what a script's owner must know.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from runner.app.results import Chosen, Contact, Curve, Listing, RunOnHost
from runner.errors import OutputError, RunFailed, RunnerError, SpecError
from runner.fields import type_name
from runner.model import Host, JobSpec
from runner.show import documents
from runner.show.progress import TerminalReport, is_dumb
from runner.show.rows import ending_line, run_rows
from runner.show.screen import Paint, TailFilter, escaped, table
from runner.show.units import duration, moment, plural, size, took

if TYPE_CHECKING:
    from runner.app.reports import (
        CancelReport,
        CompareReport,
        DownReport,
        DryRun,
        ProvisionReport,
        PullReport,
        StackReport,
        Top,
        WhyReport,
        WorkerVersion,
    )
    from runner.doctor.findings import HostHealth
    from runner.show.live import Place

MOST_NAMED = 5


def coloured(stream: TextIO, choice: str) -> bool:
    """Whether words on this stream get colours."""
    if choice != "auto":
        return choice == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR") and not is_dumb()


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Results are written; raises OutputError when they do not get there."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from error


def unwritten(error: OSError) -> OutputError:
    """Says that stdout is full or broken."""
    return OutputError(f"stdout cannot be written: {error.strerror}")


def error_text(error: RunnerError) -> str:
    """The message, and below it the lines of advice."""
    lines = [error.message, *(f"  {line}" for line in error.advice)]
    return "".join(escaped(line) + "\n" for line in lines)


class Output:
    """Renders results: text for people, one JSON document for programs."""

    def __init__(
        self,
        *,
        as_json: bool = False,
        colour: str = "auto",
        out: TextIO | None = None,
        err: TextIO | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._json = as_json
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._clock = clock
        self._paint = Paint(coloured(self._out, colour))
        self.on_terminal = self._out.isatty()
        self.report = TerminalReport(self._err)

    @property
    def columns(self) -> int | None:
        """The terminal's width; None where nothing is cut."""
        return shutil.get_terminal_size().columns if self.on_terminal else None

    def lines(self, lines: Iterable[str]) -> None:
        """Results, a line each; whoever reads them sees each at once."""
        self.report.done()
        with _writing():
            for line in lines:
                self._out.write(line + "\n")
            self._out.flush()

    def warn(self, text: str) -> None:
        """A line for stderr that cron must see too."""
        self.report.done()
        self._out.flush()
        self._err.write("".join(escaped(line) + "\n" for line in text.split("\n")))
        self._err.flush()

    def error(self, error: RunnerError) -> None:
        """An error, with its way out."""
        self.report.done()
        self._out.flush()
        self._err.write(error_text(error))
        self._err.flush()

    def document(self, body: Mapping[str, Any]) -> None:
        """The JSON document."""
        self.lines([documents.text(body)])

    def table(self, rows: Sequence[Sequence[Any]], right: Iterable[int] = ()) -> None:
        """Results in aligned columns; `right` names those of numbers."""
        self.lines(table(rows, right=right, columns=self.columns, paint=self._paint))

    # What each command shows.

    def submitted(self, ids: Sequence[str], host: str) -> None:
        """The ids alone, so that `id=$(runner submit …)` works."""
        if self._json:
            self.document(documents.submitted(ids, host))
        else:
            self.lines(ids)

    def dry_run(self, report: DryRun) -> None:
        """What would be left out, and by which rule; the rest is said on stderr."""
        for text in report.warnings:
            self.warn(text)
        if self._json:
            self.document(documents.dry_run(report))
        else:
            self.lines(escaped(f"{item.path}  {item.rule}") for item in report.left_out)
        changed = [file for file in report.files if file.changed]
        self.report.note(f"code   {report.code_text}")
        if 0 < len(changed) < len(report.files):
            names = [f"{file.path} {size(file.bytes)}" for file in changed[:MOST_NAMED]]
            names += ["…"] if len(changed) > MOST_NAMED else []
            self.report.note(f"new    {', '.join(names)}")
        self.report.note(f"{report.runs_text}; nothing was sent")

    def listing(self, found: Listing, chosen: Chosen | None = None) -> None:
        """Runs as a table; which hosts did not answer goes to stderr."""
        chosen = chosen or Chosen()
        if self._json:
            self.document(documents.listing(found))
        elif found.runs:
            scores = found.scores if chosen.ended else None
            rows, right = run_rows(
                found.runs, self._clock(), everyone=chosen.everyone, scores=scores
            )
            self.table(rows, right)
        elif not any(contact.error for contact in found.hosts):
            self.report.note(self._nothing(chosen))
        if found.hidden:
            self.report.note(f"{plural(found.hidden, 'older run')} not shown: runner ps --all")
        for contact in found.hosts:
            if contact.state != "ok":
                self.warn(self._silence(contact, found.runs))

    def _nothing(self, chosen: Chosen) -> str:
        """Why a listing is empty."""
        if chosen.since is None:
            return "no run has ended yet" if chosen.ended else "no runs here yet"
        what = "no run ended" if chosen.ended else "no run, and none that ended"
        return f"{what} since {moment(chosen.since, self._clock())}"

    def top(self, found: Top, *, everyone: bool = False) -> None:
        """Hosts and what goes on there, once."""
        from runner.show import live

        if self._json:
            self.document(live.document(found))
            return
        self.lines(
            live.page_lines(
                found, self._clock(), everyone=everyone, columns=self.columns, paint=self._paint
            )
        )
        if not found.runs:
            self.report.note("no run goes on or waits")

    def screen(
        self, found: Top, place: Place, size: tuple[int, int], *, everyone: bool, said: str
    ) -> list[str]:
        """The same as a screen of so many columns and rows. said: a warning."""
        from runner.show.live import screen_lines

        return screen_lines(
            found,
            place,
            self._clock(),
            everyone=everyone,
            columns=size[0],
            rows=size[1],
            paint=self._paint,
            said=said,
        )

    def _silence(self, contact: Contact, runs: Iterable[RunOnHost]) -> str:
        """What is known of a host that did not answer."""
        said = (contact.error or "").removeprefix(contact.host + ": ")
        live = [run.id for run in runs if run.host == contact.host and run.status.state != "ended"]
        names = live[0] if len(live) == 1 else f"{len(live)} runs there"
        heard = moment(contact.at, self._clock()) if contact.at else ""
        if contact.state == "no-worker" or contact.refused:
            text = f"{contact.host}: {said}"
        elif contact.slow:
            text = f"{contact.host}: {said}" + (f", last heard {heard}" if heard else "")
        else:
            text = f"{contact.host}: no answer" + (f" since {heard}" if heard else "")
            text += f" ({said})" if said else ""
        if live and contact.state != "no-worker":
            text += f"; {names} may well be running"
        advice = contact.advice if contact.state == "no-worker" or contact.refused else ()
        return "\n".join([text, *(f"  {line.strip()}" for line in advice)])

    def status(self, run: RunOnHost, host: Host | None = None) -> None:
        """One run in full."""
        from runner.show.sheet import status_lines

        if self._json:
            self.document(documents.status(run))
        else:
            lines = status_lines(
                run, self._clock(), host=host, columns=self.columns, paint=self._paint
            )
            self.lines(lines)
        if run.contact.state != "ok":
            self.warn(self._silence(run.contact, [run]))

    def why(self, report: WhyReport) -> None:
        """Why a run is where it is, and what to type next; commands stand alone on their lines."""
        from runner.show.reasons import explain, reason_lines

        reason = explain(report, self._clock())
        if self._json:
            self.document(documents.why(report, reason))
        else:
            self.lines(reason_lines(report.run, reason, self.columns, self._paint))
        if report.run.contact.state != "ok":
            self.warn(self._silence(report.run.contact, [report.run]))

    def healths(self, healths: Sequence[HostHealth], *, everything: bool) -> None:
        """What `doctor` found, host by host."""
        from runner.show import doctor as show

        if self._json:
            self.document(show.document(healths))
            return
        for number, health in enumerate(healths):
            head = show.header(health)
            if len(healths) == 1:
                self.report.note(head)
            else:
                self.lines([*([""] if number else []), escaped(head)])
            self.lines(
                show.lines(health, everything=everything, columns=self.columns, paint=self._paint)
            )

    def stack(self, report: StackReport) -> None:
        """What each rank was doing; what could not be read goes to stderr."""
        if self._json:
            self.document(documents.stack(report))
        else:
            lines = []
            for rank in report.ranks:
                pid = "" if rank.pid is None else f"  pid {rank.pid}"
                lines += ["", f"rank {rank.rank}{pid}"]
                lines += [f"  {escaped(line)}".rstrip() for line in rank.text.rstrip().split("\n")]
            self.lines(lines[1:])
        if report.problem is not None:
            self.warn(f"{report.host}: {report.problem}")

    def ending(self, run: RunOnHost) -> str:
        """A run and how it ended, on one line of stdout."""
        return ending_line(run, self._paint)

    def failed(self, run: RunOnHost) -> RunFailed:
        """The same as an error, with where to look."""
        look = [f"runner tail {run.id} -n 20"] if run.status.outcome == "failed" else []
        return RunFailed(ending_line(run), *look)

    def curves(self, curves: Sequence[Curve]) -> None:
        """Learning curves, drawn with characters."""
        if self._json:
            self.document(documents.curves(curves))
        else:
            from runner.show.plot import draw

            self.lines(draw(curves, columns=self.columns or 80, paint=self._paint))

    def compared(self, report: CompareReport) -> None:
        """Groups of runs beside each other; silent hosts go to stderr."""
        from runner.show import compare

        if self._json:
            self.document(compare.document(report))
        else:
            self.lines(compare.compare_lines(report.comparison, self.columns, self._paint))
        for contact in report.silent:
            self.warn(self._silence(contact, ()))

    def comparison_file(self, report: CompareReport, path: Path) -> None:
        """The same as a page or a picture; where it is, on stderr."""
        if path.suffix.lower() == ".html":
            from runner.show.page import write_page

            write_page(report.comparison, path, self._clock())
        else:
            from runner.show.picture import write_picture

            write_picture(report.comparison, path)
        self.report.note(f"wrote {path}")

    def jobs(self, jobs: Sequence[JobSpec]) -> None:
        """The jobs of a project."""
        if self._json:
            self.document(documents.jobs(jobs))
        elif not jobs:
            self.report.note("no jobs in agents/")
        else:
            rows: list[Sequence[Any]] = [("JOB", "RUNS", "RANKS", "GPUS", "METRIC", "PARAMETERS")]
            for job in jobs:
                what = job.entry or shlex.join(job.command)
                params = " ".join(job.params)
                rows.append(
                    (job.name, what, str(job.nproc), str(job.gpus), job.metric or "-", params)
                )
            self.table(rows, right=(2,))

    def job(self, job: JobSpec) -> None:
        """One job: how it is started, and its parameters with types and defaults."""
        if self._json:
            self.document(documents.jobs([job]))
            return
        started = f"{job.name}  {shlex.join(job.command)}  nproc={job.nproc}  gpus={job.gpus}"
        lines = [f"{started}  launcher={job.launcher}  grace={job.grace_s:.0f}s", job_limits(job)]
        self.lines([*(escaped(line) for line in lines if line), ""])
        rows: list[Sequence[Any]] = [("PARAMETER", "TYPE", "DEFAULT")]
        for key, value in job.params.items():
            rows.append((key, type_name(value), json.dumps(value, ensure_ascii=False)))
        self.table(rows)

    def hosts(self, hosts: Sequence[Host]) -> None:
        """The inventory."""
        if self._json:
            self.document(documents.hosts(hosts))
            return
        rows: list[Sequence[Any]] = [("HOST", "RUNTIME", "SSH", "IMAGE", "GPUS", "WORKSPACE")]
        for host in hosts:
            local = host.runtime == "local"
            way = host.ssh or "-"
            rows.append(
                (
                    host.name,
                    host.runtime,
                    f"{way} through {host.jump}" if host.jump else way,
                    "-" if local else host.image,
                    host.gpus if isinstance(host.gpus, str) else ",".join(map(str, host.gpus)),
                    "-" if local else host.workspace,
                )
            )
        self.table(rows)

    def pulled(self, report: PullReport) -> None:
        """Where the files are; how many, and what was left, on stderr."""
        if report.nothing_yet is not None:
            self.warn(f"{report.run}: nothing yet; it is {report.nothing_yet}")
        else:
            self.report.note(pulled_text(report))
        for names, why in (
            (report.left_out, "not plain files"),
            (report.too_long, "names too long for this disk"),
        ):
            if names:
                first = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
                self.warn(f"{len(names)} left out, {why}: {first}")
        for name in report.kept:
            self.warn(f"{report.path / name}: not from a pull, or edited here; left as it is")
        if self._json:
            self.document(documents.pulled(report))
        elif report.nothing_yet is None:
            path = os.path.relpath(report.path)
            self.lines([escaped(str(report.path) if path.startswith("..") else path)])

    def pulled_round(self, report: PullReport) -> None:
        """What a look of `pull --watch` brought."""
        at = time.strftime("%H:%M:%S", time.localtime(self._clock()))
        self.report.note(f"{at}  {report.run}: {pulled_text(report)}")

    def cancelled(self, reports: Sequence[CancelReport], *, whole: bool = False) -> None:
        """What became of each run; what could not be stopped goes to stderr.

        whole: all runs of the hosts were meant.
        """
        from runner.show.stops import missed_lines

        if self._json:
            self.document(documents.cancelled(reports))
        else:
            rows = [_cancel_row(report) for report in reports if report.error is None]
            self.table(rows)
        for line in missed_lines(reports, whole=whole):
            self.warn(line)

    def versions(self, client: Mapping[str, Any], workers: Sequence[WorkerVersion]) -> None:
        """Client, worker, image and launchers."""
        if self._json:
            self.document(documents.versions(client, workers))
            return
        rows: list[Sequence[Any]] = [("client", _facts(client))]
        rows += [
            (worker.host, _facts(worker.facts))
            for worker in workers
            if worker.contact.state == "ok"
        ]
        self.table(rows)
        for worker in workers:
            if worker.contact.state != "ok":
                self.warn(self._silence(worker.contact, ()))

    def provisioned(self, report: ProvisionReport) -> None:
        """That the worker is ready, and how long it took."""
        if self._json:
            self.document(documents.made(**dataclasses.asdict(report)))
            return
        word = "ready in" if report.changed else "is as it should be; looked at in"
        gpus = plural(report.gpus, "GPU") if report.gpus else "no GPU"
        torch = f"torch {report.torch}" if report.torch else "no torch"
        text = f"{report.host} {word} {took(report.seconds)}; {torch}, {gpus}"
        self.lines([escaped(text)])

    def taken_down(self, report: DownReport) -> None:
        """What was taken away from a host."""
        if self._json:
            self.document(documents.made(**dataclasses.asdict(report)))
            return
        if report.runtime == "venv":
            what = ", ".join(dict.fromkeys(report.removed)) or "nothing was there to be"
            kept = f"; {plural(report.runs, 'run')} and the workspace stay"
            stays = "" if report.purged else kept
            self.lines([escaped(f"{report.host}: {what} taken away{stays}")])
            return
        count = len(report.containers)
        what = plural(count, "container") if count else "no container"
        if report.purged:
            stays = f"; for others stays: {', '.join(report.kept[:3])}" if report.kept else ""
            gone = "workspace and images are" if report.image is None else "its images are"
            rest = f"{gone} gone{stays}"
        else:
            rest = f"{plural(report.runs, 'run')} and the images stay"
        self.lines([escaped(f"{report.host}: {what} taken away; {rest}")])

    def made(self, lines: Sequence[str], **facts: Any) -> None:
        """The result of a command that makes something."""
        if self._json:
            self.document(documents.made(**facts))
        else:
            self.lines([escaped(line) for line in lines])

    def job_writer(self) -> tuple[Callable[[bytes], None], Callable[[], None]]:
        """Where a job's bytes go: exactly as they are into a pipe, filtered on a terminal.

        Returns the writer and what is to be called at the end.
        """
        if not self.on_terminal:
            return self._write_exactly, self._out.flush
        passed = TailFilter(colours=self._paint.on)

        def write(data: bytes) -> None:
            self.report.done()
            with _writing():
                self._out.write(passed.feed(data))
                self._out.flush()

        def finish() -> None:
            with _writing():
                self._out.write(passed.finish() + "\n" * passed.is_inside_line)
                self._out.flush()

        return write, finish

    def ranks_writer(self) -> tuple[Callable[[int, int, bytes], None], Callable[[], None]]:
        """The same for all ranks of a job in whole lines; takes rank, their number and bytes."""
        from runner.show.merged import MergedLines

        merged = MergedLines(redraws=self.on_terminal)

        def put(lines: bytes) -> None:
            if not lines:
                return
            if not self.on_terminal:
                self._write_exactly(lines)
                return
            text = ""
            for line in lines.split(b"\n")[:-1]:
                passed = TailFilter(colours=self._paint.on)  # none goes on in another rank's line
                text += passed.feed(line) + passed.finish() + "\n"
            self.report.done()
            with _writing():
                self._out.write(text)
                self._out.flush()

        def write(rank: int, ranks: int, data: bytes) -> None:
            put(merged.feed(rank, ranks, data))

        def finish() -> None:
            put(merged.finish())

        return write, finish

    def _write_exactly(self, data: bytes) -> None:
        stream = getattr(self._out, "buffer", None)
        if stream is None:
            raise SpecError("stdout is not a byte stream")
        with _writing():
            stream.write(data)
            stream.flush()


def job_limits(job: JobSpec) -> str:
    """What a job says of its runs' limits, as `key=value`; nothing of what it leaves alone."""
    spans = {"time_limit": job.time_limit_s, "stuck_after": job.stuck_after_s}
    counts = {"restarts": job.restarts, "keep": job.keep, "keep_best": job.keep_best}
    parts = [f"{key}={duration(value)}" for key, value in spans.items() if value is not None]
    parts += [f"on_stuck={job.on_stuck}"] if job.stuck_after_s is not None else []
    parts += [f"{key}={value}" for key, value in counts.items() if value is not None]
    if job.log_limit_bytes is not None:
        parts.append(f"log_limit={size(job.log_limit_bytes)}")
    if job.resumable:
        parts.append(f"resumable={','.join(job.resumable)}")
    if job.how != JobSpec.how:
        parts.append(f"pass={job.how}")
    if job.requirements:
        parts.append(f"requirements={shlex.quote(','.join(job.requirements))}")
    return "  ".join(parts)


def _facts(facts: Mapping[str, Any]) -> str:
    parts = []
    for key, value in facts.items():
        if isinstance(value, (list, tuple)):
            names = (
                item.get("name", item) if isinstance(item, Mapping) else item for item in value
            )
            value = ", ".join(map(str, names))
        parts.append(f"{key} {'-' if value in (None, '') else value}")
    return "  ".join(parts)


def pulled_text(report: PullReport) -> str:
    """`14 files, 2.1 GB in 23s, all verified; 31 unchanged; 1 still being written`."""
    brought = f"{plural(report.files, 'file')}, {size(report.bytes)} in {took(report.seconds)}"
    parts = [f"{brought}, all verified" if report.files else "nothing new"]
    parts += [f"{report.unchanged} unchanged"] if report.unchanged else []
    parts += [f"{len(report.pending)} still being written"] if report.pending else []
    if report.mirrored:
        parts.append(f"{plural(report.mirrored, 'file')} removed here, too")
    return "; ".join(parts)


def _cancel_row(report: CancelReport) -> Sequence[Any]:
    outcome = (report.outcome or "-").upper()
    if report.ended_before:
        return (report.run, outcome, "had ended before")
    parts = [plural(report.processes, "process", "processes") + " ended"]
    used = [f"GPU {gpu.get('index')} back to {gpu.get('used_mib', '-')} MiB" for gpu in report.gpus]
    parts += ["GPU memory could not be read"] if report.unread else used
    if report.left:
        parts.append(f"still there: {', '.join(map(str, report.left))}")
    parts.append(took(report.seconds))
    return (report.run, outcome, ", ".join(parts))
