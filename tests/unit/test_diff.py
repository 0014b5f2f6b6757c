"""Parts of a diff about what does not travel go; on real ones see contract/test_tree.py."""

from __future__ import annotations

from runner.code.diff import filtered

TEXT = b"index 1..2 100644\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n"
GONE = b"deleted file mode 100644\nindex 1..0\n"


def part(head: bytes, body: bytes = TEXT) -> bytes:
    return b"diff --git " + head + b"\n" + body


def kept(diff: bytes, *paths: bytes) -> bytes:
    return filtered(diff, paths.__contains__)


def test_only_parts_of_what_travels_stay() -> None:
    diff = part(b"a/a b/a") + part(b"a/b b/b") + part(b"a/c b/c")
    assert kept(diff, b"b") == part(b"a/b b/b")
    assert kept(diff) == b""
    assert kept(b"", b"b") == b""


def test_paths_with_blanks_and_quotes_are_read_right() -> None:
    for head, path in {
        b"a/x b/x b/x b/x": b"x b/x",
        b"a/ b/ ": b" ",
        rb'"a/\"\t\303\274\\" "b/\"\t\303\274\\"': b'"\t\xc3\xbc\\',
    }.items():
        assert kept(part(head), path) == part(head)
        assert kept(part(head), b"other") == b""


def test_a_deletion_stays_as_a_fact() -> None:
    assert kept(part(b"a/a b/a", GONE)) == part(b"a/a b/a", GONE)


def test_what_says_nothing_goes() -> None:
    diff = part(b"a/a b/a", b"") + b"* Unmerged path a\n" + part(b"a/b b/b")
    assert kept(diff, b"a", b"b") == part(b"a/b b/b")


def test_a_head_within_a_text_is_no_head() -> None:
    body = TEXT + b"+diff --git a/y b/y\n-* Unmerged path z\n"
    assert kept(part(b"a/a b/a", body), b"y") == b""
    assert kept(part(b"a/a b/a", body), b"a") == part(b"a/a b/a", body)
