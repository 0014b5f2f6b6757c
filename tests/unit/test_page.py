"""Pages, their charts, and pictures: of what runs said, which may be anything."""

from __future__ import annotations

import dataclasses
import html.parser
from pathlib import Path

import pytest

from runner.comparing.comparison import Comparison
from runner.comparing.curves import SECONDS, STEPS, group_curves
from runner.comparing.scores import Series
from runner.errors import SpecError
from runner.show.charts import chart, ticks
from runner.show.markup import element, text
from runner.show.page import page, write_page
from runner.show.picture import write_picture
from tests.helpers.statuses import BAD, NOW
from tests.unit.test_comparison import HIGH, LOW, compared, seed

EVIL = f"</title><script>alert(1)</script>\"' onload=x & {BAD}"


class Reader(html.parser.HTMLParser):
    """The elements of a page, with whatever could reach out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.reaching: list[tuple[str, str | None]] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.reaching += [
            (name, value)
            for name, value in attrs
            if name in ("href", "src", "srcset", "action") or name.startswith(("on", "xlink"))
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open, "every element is closed"
    return reader


def timed(series: Series) -> Series:
    return dataclasses.replace(series, seconds=tuple(step / 10 for step, _ in series.points))


def with_failed() -> Comparison:
    failed = seed("bad", 3e-4, 9, 20.0, reach=12, outcome="failed")
    return compared([timed(each) for each in [*HIGH, failed, *LOW]])


def test_a_page_holds_all_there_is_and_reaches_nowhere() -> None:
    reader = read(page(with_failed(), NOW))
    assert not reader.reaching and not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert reader.tags.count("svg") == 2, "over steps and over time"
    for word in ("lr=3e-4", "lr=1e-3", "[425, 498]", "FAILED", "eval/return over running time"):
        assert word in reader.words
    for each in (*HIGH, *LOW):
        assert each.run.id in reader.words


def test_what_all_groups_have_alike_stands_once() -> None:
    runs = [
        dataclasses.replace(each, run=each.run._replace(params={**each.run.params, "gamma": 0.99}))
        for each in [*HIGH, *LOW]
    ]
    words = read(page(compared(runs), NOW)).words.partition("Configurations")[2]
    assert words.count("gamma=0.99") == 1 and words.index("alike: ") < words.index("gamma")
    assert words.index("lr=3e-4") < words.index("lr=1e-3") < words.index("alike: ")
    alone = read(page(compared(runs[: len(HIGH)]), NOW)).words.partition("Configurations")[2]
    assert "gamma=0.99  lr=3e-4" in alone and "alike" not in alone


def test_what_a_job_said_stays_text() -> None:
    run = dataclasses.replace(
        HIGH[0], run=HIGH[0].run._replace(params={EVIL: EVIL, "seed": 1}, job=EVIL), host=EVIL
    )
    text_of = page(compared([run, *HIGH[1:], *LOW]), NOW)
    reader = read(text_of)
    assert "script" not in reader.tags and not reader.reaching
    assert "<script>alert(1)</script>" in reader.words
    assert not any(sign in text_of for sign in "\x1b\x07\u202e")


def test_without_times_there_is_no_chart_of_them() -> None:
    reader = read(page(compared(HIGH + LOW), NOW))
    assert reader.tags.count("svg") == 1


def test_attributes_and_text_are_escaped() -> None:
    assert element("p", "<b>", class_="a\"'b") == '<p class="a&quot;&#x27;b">&lt;b&gt;</p>'
    assert element("p", element("br"), aria_hidden=None) == "<p><br></p>"
    assert text("\u202e&") == "\\u202e&amp;"


@pytest.mark.parametrize(
    ("low", "high"), [(0, 50_000), (-1e150, 1e150), (0.0, 1e-12), (-3, 4), (1e6, 1e6 + 1)]
)
def test_ticks_are_few_and_lie_between(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 15
    assert all(low - 1e-9 * abs(low) <= tick <= high * (1 + 1e-9) for tick in found)


def test_a_groups_curve_ends_with_its_shortest_counted_seed() -> None:
    first, second = group_curves(with_failed(), STEPS)
    assert [curve.run for curve in first.seeds if not curve.counted] == ["bad"]
    assert len(first.points) == len(first.low) == 60
    assert first.points[-1] == pytest.approx((100.0, 484.5))
    assert first.low[-1] < 484.5 < first.high[-1]
    assert group_curves(compared(HIGH + LOW), SECONDS)[0].points == ()
    assert second.label == "lr=1e-3"


def test_charts_of_odd_values_are_drawn_too() -> None:
    for score in (0.0, 1e150, -1e150):
        drawn = chart(group_curves(compared([seed("a", 1.0, 1, score)]), STEPS), STEPS, "r")
        assert drawn is not None and "nan" not in drawn and "inf" not in drawn


def test_runs_with_one_point_each_are_dots_on_an_axis_around_them() -> None:
    series = [dataclasses.replace(each, points=((2000, 9.0 + i),)) for i, each in enumerate(LOW)]
    drawn = chart(group_curves(compared(series), STEPS), STEPS, "r")
    assert drawn is not None
    assert drawn.count('class="seed g0 dot"') == len(LOW) and 'class="line g0 dot"' in drawn
    assert drawn.count(">2k<") == 1 and ">1.8k<" in drawn


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    write_page(with_failed(), tmp_path / "c.html", NOW)
    write_picture(with_failed(), tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "d.html").mkdir()
    with pytest.raises(SpecError, match="d.html"):
        write_page(with_failed(), tmp_path / "d.html", NOW)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.html", "c.png", "d.html"]
