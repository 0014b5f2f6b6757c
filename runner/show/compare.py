"""A comparison as lines of text and as a document (pure).

`compare`: metric at_step lower_is_better confidence resamples decided_below_p groups[{label job
params{} nproc image snapshot code pooled_codes[] iqm{value, interval} mean{…} worst best
iqm_if_missing_were_worst seeds[{run, host, seed, use, score, state, outcome, cause, step, problem}]
}] pairs[{better, than, probability, interval, p, decided, more_seeds_of_each,
probability_if_missing_were_worst, differ{}}] differ{job, params{}, nproc, images[], codes[]} gone[]
held_back[] hosts[]. `use` is counted, missing or same-seed; better and than count the groups from
0; an interval is null where seeds are too few.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner import states
from runner.comparing import bootstrap
from runner.comparing.comparison import SAME_SEED, Comparison, Estimate, Pair, Seed, Summary
from runner.comparing.groups import Differences
from runner.comparing.scores import is_evaluation
from runner.show.documents import FORMAT, host_contact
from runner.show.readings import COLOURS, short_cause
from runner.show.screen import Paint, cut, escaped, table, width
from runner.show.units import number, plural, some, steps

if TYPE_CHECKING:
    from runner.app.reports import CompareReport

MOST_MISSING = 6
MOST_CODES = 4
_PERCENT = round(bootstrap.CONFIDENCE * 100)


def compare_lines(
    found: Comparison, columns: int | None = None, paint: Paint | None = None
) -> list[str]:
    """Headline, a table of the groups, and what follows from it in sentences."""
    paint = paint or Paint()
    lines = _wrapped(headline(found), columns)
    lines += ["", *_table(found, columns), ""]
    for sentence in sentences(found):
        lines += _wrapped(sentence, columns, paint)
    return lines


def headline(found: Comparison) -> str:
    """What is compared, where, and how."""
    what = "" if is_evaluation(found.metric) else ", mean of the last tenth"
    smaller = ", smaller is better" if found.lower else ""
    return (
        f"{found.metric} at {steps(found.step)} steps{what}{smaller}; IQM and mean over seeds, "
        f"{_PERCENT}% intervals by stratified bootstrap"
    )


def _table(found: Comparison, columns: int | None) -> list[str]:
    head = ["", "", "SEEDS", "IQM", "INTERVAL", "MEAN", "INTERVAL", "WORST", "BEST"]
    rows = [
        head,
        *([group.label, runs_text(group), *figures(found, group)] for group in found.groups),
    ]
    right = range(2, 9)
    one_line = table(rows, right=right)
    if columns is None or max(map(width, one_line)) <= columns:
        return one_line
    numbers = table([["  ", *row[2:]] for row in rows], right=range(1, 8), columns=columns)
    lines = numbers[:1]
    for row, text in zip(rows[1:], numbers[1:], strict=True):
        lines += [cut(escaped(f"{row[0]}  {row[1]}"), columns), text]
    return lines


def figures(found: Comparison, group: Summary) -> list[str]:
    """A group's row: seeds, IQM, its interval, mean, its interval, worst, best."""
    counted, whole = len(group.counted), len(group.counted) + len(group.missing)
    scores = sorted(group.scores, reverse=found.lower)
    ends = [number(scores[0]), number(scores[-1])] if scores else ["-", "-"]
    return [
        f"{counted} of {whole}",
        *(number(group.iqm.value) if group.iqm else "-", interval_text(group.iqm)),
        *(number(group.mean.value) if group.mean else "-", interval_text(group.mean)),
        *ends,
    ]


def interval_text(found: Estimate | None) -> str:
    """`[451, 500]`, or `-`."""
    return _interval(found.interval) if found and found.interval else "-"


def _interval(found: bootstrap.Interval) -> str:
    return f"[{number(found[0])}, {number(found[1])}]"


def runs_text(group: Summary) -> str:
    """The sweep's id, or the first runs'."""
    names = []
    for seed in group.seeds:
        run = seed.series.run
        names.append(run.sweep or run.id)
    return some(list(dict.fromkeys(names)), 2)


def sentences(found: Comparison) -> list[str]:
    """What follows from the figures, what is missing, and in what the groups differ."""
    lines = []
    for pair in found.pairs:
        lines += pair_sentences(found, pair)
    lines += _held_back(found)
    lines += pooled_sentences(found)
    if any(len(group.counted) < bootstrap.LEAST_SEEDS for group in found.groups):
        lines.append(f"Fewer than {bootstrap.LEAST_SEEDS} seeds give no interval.")
    return lines + missing_sentences(found) + [*_same_seeds(found), difference_sentence(found)]


_HARDLY = 0.55
"""Below it nobody would call one the better."""


def pair_sentences(found: Comparison, pair: Pair) -> list[str]:
    """Which is better and how surely, and what would decide it."""
    best, other, better = found.groups[pair.best].label, found.groups[pair.other].label, pair.better
    shown = f" {_probability(better.interval)}" if better.interval else ""
    text = f"{best} is better than {other} with probability {better.probability:.2f}{shown}: "
    if not better.decided and better.probability < _HARDLY:
        text = f"Hardly a difference between {best} and {other}: the one is better with probability"
        return [f"{text} {better.probability:.2f}{shown} (rank-sum p {p_text(better.p)})."]
    if better.decided:
        return [f"{text}decided (rank-sum p {p_text(better.p)})."]
    text += f"not decided (rank-sum p {p_text(better.p)})."
    if better.more_seeds is None:
        return [
            text,
            f"More than {bootstrap.MOST_SEEDS} seeds of each would be needed: the difference is "
            "small beside what seeds differ by.",
        ]
    more = plural(better.more_seeds, "more seed")
    return [
        text,
        f"About {more} of each would decide it in 4 of 5 cases, if the effect is real.",
    ]


def _probability(found: bootstrap.Interval) -> str:
    return f"[{found[0]:.2f}, {found[1]:.2f}]"


def p_text(p: float) -> str:
    """`0.15`, `0.008`, `< 0.001`."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _held_back(found: Comparison) -> list[str]:
    """Who ended all curves where they are compared, having gone further."""
    names = [seed.series.run.id for seed in found.held_back]
    if not names:
        return []
    return [
        f"{found.metric} of {some(names, MOST_MISSING)} has no number after {steps(found.step)}, "
        "though training went on: all are compared there. Has it diverged?"
    ]


def missing_sentences(found: Comparison) -> list[str]:
    """Each seed without a score by name, and what would be if it had the worst one."""
    missing = [seed for group in found.groups for seed in group.missing]
    lines = []
    if missing:
        named = some([seed_text(seed) for seed in missing], MOST_MISSING)
        lines.append(f"Missing: {named}. {_why_it_matters(missing)}")
    for group in found.groups:
        if group.iqm_with_missing is not None:
            lines.append(
                f"With {plural(len(group.missing), 'missing seed')} counted as the worst score "
                f"of all, {group.label} would have IQM {number(group.iqm_with_missing)}."
            )
    for pair in found.pairs:
        if pair.with_missing is not None and pair.better.interval is not None:
            lines.append(
                f"Then {found.groups[pair.best].label} would be better than "
                f"{found.groups[pair.other].label} with probability {pair.with_missing:.2f}."
            )
    if found.gone:
        lines.append(f"Not there any more, and not counted: {some(found.gone, MOST_MISSING)}.")
    return lines


def _why_it_matters(missing: Sequence[Seed]) -> str:
    if any(seed.series.problem for seed in missing):
        return "What is not known is not counted."
    if all(seed.series.is_going for seed in missing):
        return "They are not there yet." if len(missing) > 1 else "It is not there yet."
    return "A seed that failed may be a bad seed."


def seed_text(seed: Seed) -> str:
    """`dqn-9x2mp.4 (FAILED at 12k, GPU memory)`."""
    run, reach = seed.series.run, seed.series.reach
    if seed.series.problem:
        return f"{run.id} ({seed.series.problem})"
    word = states.shown(run.state, run.outcome)
    where = f"{word} at {steps(reach)}" if reach is not None else f"{word} without a value"
    cause = short_cause(run)
    return f"{run.id} ({where}{', ' + cause if cause else ''})"


def _same_seeds(found: Comparison) -> list[str]:
    twice = [
        f"{seed.series.run.id} (seed {seed.seed})"
        for group in found.groups
        for seed in group.seeds
        if seed.use == SAME_SEED
    ]
    if not twice:
        return []
    return [f"Not counted, the same seed being there twice: {some(twice, MOST_MISSING)}."]


def pooled_sentences(found: Comparison) -> list[str]:
    """Which groups hold runs of several codes, as `--pool-code` asked for."""
    return [
        f"{group.label} holds runs of {len(codes)} codes, as asked: {some(codes, MOST_CODES)}. "
        "What these differ by is counted as chance."
        for group in found.groups
        if (codes := group.configuration.pooled)
    ]


def difference_sentence(found: Comparison) -> str:
    """`Same code, same image; they differ in lr alone.`"""
    differ = found.differences
    if len(found.groups) < 2:
        return f"One configuration: {configuration_text(found.groups[0])}."
    code = "code differs" if differ.codes else "same code"
    image = f"images {' and '.join(differ.images)}" if differ.images else "same image"
    if not differ.codes and any(group.configuration.pooled for group in found.groups):
        code = "the same codes"
    if differ.codes and not any(group.configuration.pooled for group in found.groups):
        code += f" ({', '.join(code for code in dict.fromkeys(differ.codes) if code) or 'edited'})"
    names = difference_names(differ)
    if not names:
        what = "same parameters"
    else:
        what = f"they differ in {', '.join(names)}" + (" alone" if len(names) == 1 else "")
    text = f"{code}, {image}; {what}."
    return text[0].upper() + text[1:]


def difference_names(differ: Differences) -> list[str]:
    """Job, ranks and parameters that are not the same."""
    return [*(["job"] if differ.jobs else []), *(["nproc"] if differ.nproc else []), *differ.params]


def configuration_text(group: Summary) -> str:
    """`dqn  code main@4f2c91a  image torch-2.6`."""
    found = group.configuration
    parts = [found.job]
    if found.code:
        parts += [found.code if found.pooled else f"code {found.code}"]
    parts += [f"image {found.image}"] if found.image else []
    return ", ".join(parts)


def _wrapped(text: str, columns: int | None, paint: Paint | None = None) -> list[str]:
    """A sentence on lines of the terminal; piped it stays on one."""
    shown = escaped(text)
    lines = [shown]
    if columns is not None:
        lines = textwrap.wrap(shown, columns, break_long_words=False, break_on_hyphens=False)
    if paint is None or not paint.on:
        return lines
    return [line.replace("(FAILED", f"({paint('FAILED', COLOURS['FAILED'])}") for line in lines]


def document(report: CompareReport) -> dict[str, Any]:
    """What `compare` prints."""
    found = report.comparison
    return {
        "format": FORMAT,
        "metric": found.metric,
        "at_step": found.step,
        "lower_is_better": found.lower,
        "confidence": bootstrap.CONFIDENCE,
        "resamples": bootstrap.RESAMPLES,
        "decided_below_p": found.level,
        "groups": [_group(found, group) for group in found.groups],
        "pairs": [_pair(pair) for pair in found.pairs],
        "differ": _differ(found.differences),
        "gone": list(found.gone),
        "held_back": [seed.series.run.id for seed in found.held_back],
        "hosts": [host_contact(contact) for contact in report.silent],
    }


def _group(found: Comparison, group: Summary) -> dict[str, Any]:
    each = group.configuration
    scores = sorted(group.scores, reverse=found.lower)
    return {
        "label": group.label,
        "job": each.job,
        "params": dict(each.params),
        "nproc": each.nproc,
        "image": each.image,
        "snapshot": None if each.pooled else each.snapshot,
        "code": each.code,
        "pooled_codes": list(each.pooled),
        "iqm": _estimate(group.iqm),
        "mean": _estimate(group.mean),
        "worst": scores[0] if scores else None,
        "best": scores[-1] if scores else None,
        "iqm_if_missing_were_worst": group.iqm_with_missing,
        "seeds": [_seed(seed) for seed in group.seeds],
    }


def _seed(seed: Seed) -> dict[str, Any]:
    run = seed.series.run
    return {
        "run": run.id,
        "host": seed.series.host,
        "seed": seed.seed,
        "use": seed.use,
        "score": seed.score,
        "state": run.state,
        "outcome": run.outcome,
        "cause": run.cause,
        "step": seed.series.reach,
        "problem": seed.series.problem,
    }


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else {"value": found.value, "interval": found.interval}


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "better": pair.best,
        "than": pair.other,
        "probability": pair.better.probability,
        "interval": pair.better.interval,
        "p": pair.better.p,
        "decided": pair.better.decided,
        "more_seeds_of_each": pair.better.more_seeds,
        "probability_if_missing_were_worst": pair.with_missing,
        "differ": _differ(pair.differences),
    }


def _differ(found: Differences) -> dict[str, Any]:
    return {
        "job": found.jobs,
        "params": {name: list(values) for name, values in found.params.items()},
        "nproc": found.nproc,
        "images": list(found.images),
        "codes": list(found.codes),
    }
