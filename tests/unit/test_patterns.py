"""Single lines of rule files; that they mean the same to git is shown in contract/test_tree.py."""

from __future__ import annotations

import pytest

from runner.code.patterns import RuleFile, by_byte, escaped, parse_rules


def matches(rule: str, path: str) -> bool:
    name = path.removesuffix("/")
    return RuleFile(rule.encode(), "f").last_match(by_byte(name), path.endswith("/")) is not None


@pytest.mark.parametrize(
    ("rule", "yes", "no"),
    [
        ("a", ["a", "x/a", "a/"], ["ab", "a/b"]),
        ("/a", ["a"], ["x/a"]),
        ("a/", ["a/", "x/a/"], ["a"]),
        ("a/b", ["a/b"], ["x/a/b"]),
        ("**/a/b", ["a/b", "x/y/a/b"], ["xa/b"]),
        ("a/**/b", ["a/b", "a/x/y/b"], ["ab", "a/xb"]),
        ("a/**", ["a/b", "a/b/c"], ["a/"]),
        ("a**/b", ["a/b", "ax/b", "a/x/b"], ["b"]),
        ("x/a**/b", ["x/a/b", "x/a/y/b"], ["x/b"]),
        ("a?**/b", ["ax/b"], ["a/b", "ax/y/b"]),
        ("*.py", [".py", "x/a.py"], ["a.pyc"]),
        ("*a*b*c", ["abc", "aabbcc", "xaxbxc", "abcbc"], ["acb", "abcd"]),
        ("/*a*b/c*d", ["ab/cd", "aab/ccdd"], ["a/b/cd", "ab/cdx"]),
        ("**/a*b/**/c", ["ab/c", "ax/ab/c", "ab/x/a/c", "x/ab/y/c/c"], ["ax/c", "ab/c/d"]),
        ("[[:digit:]x]", ["1", "x"], ["d", ":"]),
        ("[!a]", ["b", "-"], ["a"]),
        ("[a\\-z]", ["a", "-", "z"], ["b", "\\"]),
        ("[\\]]", ["]"], ["\\"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[z-a]", ["z"], ["a", "m"]),
        ("a\\ ", ["a "], ["a"]),
        ("a  ", ["a"], ["a  "]),
        ("\\#a", ["#a"], ["a"]),
        ("\\!a", ["!a"], ["a"]),
        ("?", ["a"], ["ü", "ab"]),
        ("??", ["ü"], ["a"]),
    ],
)
def test_a_rule_matches(rule: str, yes: list[str], no: list[str]) -> None:
    assert [path for path in yes if not matches(rule, path)] == []
    assert [path for path in no if matches(rule, path)] == []


@pytest.mark.parametrize(
    ("rule", "no"),
    [
        ("*a*a*a*a*a*a*a*a*b", "a" * 100),
        ("x/*?*?*?*?*?*?*?*?*?z", "x/" + "a" * 100),
        ("**/a/**/a/**/a/**/a/**/a/**/b", "/".join("a" * 100)),
        ("**/*a*a/**/*a*a/**/*a*a/**/*a*a/b", "/".join(["a" * 20] * 50)),
    ],
)
def test_many_wildcards_do_not_take_for_ever(rule: str, no: str) -> None:
    """With an expression that tries all ways this would not end within a day."""
    assert not matches(rule, no)
    assert matches(rule, no + "/b" if "**" in rule else no[:-1] + rule[-1])


@pytest.mark.parametrize(
    "line", ["", "# x", "!", "/", "//", "[a", "a\\", "[a-", "[[:x:]]", "[\\", "   "]
)
def test_a_line_that_means_nothing_matches_nothing(line: str) -> None:
    for path in ("a", "a\\", "[a", "x", "", "!", "/", "# x", " "):
        assert not matches(line, path)


def test_the_last_line_that_matches_decides() -> None:
    rules = RuleFile(b"*.log\n!keep.log\nkeep.log/\n", "f")
    keep = rules.last_match("x/keep.log", False)
    assert keep is not None
    assert keep.negated
    assert str(rules.last_match("keep.log", True)) == "f:3: keep.log/"
    assert str(rules.last_match("a.log", False)) == "f:1: *.log"
    assert rules.last_match("a", False) is None


def test_marks_of_other_editors_are_no_part_of_a_rule() -> None:
    rules = parse_rules(b"\xef\xbb\xbfa\r\n\r\nb\0c\r\n\xffd", "f", 3)
    assert [(rule.text, rule.order) for rule in rules] == [
        ("a", (3, 1)),
        ("b", (3, 3)),
        ("\xffd", (3, 4)),
    ]
    assert str(rules[2]) == "f:4: \\xffd"


@pytest.mark.parametrize(
    ("rule", "enter", "pass_by"),
    [
        ("!/a/b/c", ["", "a", "a/b"], ["b", "a/c", "a/b/c", "a/b/c/d"]),
        ("!/a*/b", ["a", "ax"], ["b", "a/b"]),
        ("!a/**/b", ["a", "a/x", "a/x/y"], ["b"]),
        ("!a**/b", ["a", "a/x", "z"], []),
        ("!/a", [""], ["a", "b"]),
        ("!a", ["x", "x/y"], []),
        ("a/b", [], ["", "a"]),
    ],
)
def test_where_something_may_be_brought_back(
    rule: str, enter: list[str], pass_by: list[str]
) -> None:
    rules = RuleFile(rule.encode(), "f")
    assert [folder for folder in enter if not rules.may_bring_back_below(folder)] == []
    assert [folder for folder in pass_by if rules.may_bring_back_below(folder)] == []


@pytest.mark.parametrize(
    "path", ["a", "a/b", "#a", "!a", "a*", "[a]", "a ", "a  ", "a\\", "\\", "?", "a\\*b", "ü"]
)
def test_an_escaped_path_matches_itself_alone(path: str) -> None:
    assert matches(escaped(path), path)
    assert not matches(escaped(path), f"x/{path}")
    assert not matches(escaped("a*"), "ab")
