"""What a layer holds: two manifests side by side."""

import base64
import json
from typing import Any

import pytest

from orchard.core.errors import FileError, Unsupported
from orchard.sandbox.kubernetes.changes import Changes, changes_of


def manifest(*names: str, **other: dict[str, Any]) -> list[bytes]:
    """Lines for ``a``, ``a/`` (a folder), ``a=content``, with facts of ``other`` by name; as sandboxd sorts them."""
    lines: dict[bytes, bytes] = {}
    for given in names:
        name, _, content = given.partition("=")
        raw = name.rstrip("/").encode("utf-8", "surrogateescape")
        facts: dict[str, Any] = {"path": raw.decode("utf-8", "replace")}
        if "\ufffd" in facts["path"]:
            facts = {"path_b64": base64.b64encode(raw).decode()}
        facts |= {"type": "dir" if name.endswith("/") else "file", "mode": 0o644, "size": len(content), "mtime": 1.25}
        facts |= {"uid": 0, "gid": 0, "target": None, "sha256": None if name.endswith("/") else f"h{content}"}
        facts |= other.get(name.rstrip("/"), {})
        lines[raw] = json.dumps(facts, separators=(",", ":")).encode() + b"\n"
    end = json.dumps({"end": True, "count": len(lines)}, separators=(",", ":")).encode() + b"\n"
    return [*(lines[raw] for raw in sorted(lines)), end]


def told(changes: Changes) -> tuple[list[bytes], list[bytes]]:
    return list(changes.files), changes.deleted


def test_nothing_changed_is_nothing() -> None:
    same = manifest("a/", "a/b=1", "c")
    assert told(changes_of(same, list(same), [])) == ([], [])


def test_new_and_changed_files_come_with_the_folders_on_their_way() -> None:
    before = manifest("a/", "a-b/", "a-b/y=1", "a/deep/", "a/deep/x=1", "z=1")
    now = manifest("a/", "a-b/", "a-b/y=1", "a/deep/", "a/deep/new=1", "a/deep/x=2", "new/", "new/n", "z=1")
    files = [b"a", b"a/deep", b"a/deep/new", b"a/deep/x", b"new", b"new/n"]
    assert told(changes_of(before, now, [])) == (files, [])


def test_of_a_deleted_tree_the_top_is_told_whatever_lies_between() -> None:
    before = manifest("a/", "a-b/", "a-b/y", "a/s/", "a/s/x", "a/x", "k/", "k/gone", "k/here")
    assert told(changes_of(before, manifest("k/", "k/here"), [])) == ([b"k"], [b"a", b"a-b", b"k/gone"])


def test_a_folder_that_became_a_file_hides_what_was_in_it() -> None:
    before = manifest("a/", "a-b", "a/s/", "a/s/x")
    assert told(changes_of(before, manifest("a=now", "a-b"), [])) == ([b"a"], [])
    assert told(changes_of(manifest("a=was"), manifest("a/", "a/x"), [])) == ([b"a", b"a/x"], [])


def test_what_no_layer_can_hold_is_left_out_and_hides_what_was_there() -> None:
    pipe = {"type": "other", "sha256": None}
    before, now = manifest("f=1"), manifest("f", "g", f=pipe, g=pipe)
    assert told(changes_of(before, now, [])) == ([], [b"f"])


@pytest.mark.parametrize("facts", [{"mode": 0o600}, {"uid": 5}, {"gid": 5}, {"mtime": 2.0}, {"target": "x"}])
def test_owner_mode_and_time_are_changes_too(facts: dict[str, Any]) -> None:
    assert told(changes_of(manifest("f"), manifest("f", f=facts), [])) == ([b"f"], [])


def test_parts_of_a_second_are_none() -> None:
    assert told(changes_of(manifest("f"), manifest("f", f={"mtime": 1.0}), [])) == ([], [])


def test_mounts_are_left_out_on_both_sides() -> None:
    before, now = manifest("dev/", "dev/x", "e", "m/", "m/y"), manifest("dev=new", "e", "p/", "p/z")
    assert told(changes_of(before, now, [b"dev", b"m", b"p"])) == ([], [])
    assert told(changes_of(before, now, [b"m"])) == ([b"dev", b"p", b"p/z"], [])


def test_names_that_are_no_text_are_kept() -> None:
    changes = changes_of(manifest(), manifest("d\udcff/", "d\udcff/x"), [])
    assert told(changes) == ([b"d\xff", b"d\xff/x"], [])


def test_what_cannot_be_read_is_named_unless_it_is_as_it_was() -> None:
    closed = {"sha256": None, "error": "EACCES"}
    before = manifest("f", f=closed)
    assert told(changes_of(before, manifest("f", f=closed), [])) == ([], [])
    with pytest.raises(FileError) as caught:
        changes_of(before, manifest("f", f={**closed, "mtime": 9.0}), [])
    assert (caught.value.path, caught.value.errno_name) == ("/f", "EACCES")


def test_a_name_that_means_deleted_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"\.wh\.x"):
        changes_of(manifest("d/"), manifest("d/", "d/.wh.x"), [])


def test_changes_beyond_a_size_are_refused() -> None:
    changes = changes_of(manifest("was=12345"), manifest("new=123", "other=4567", "was=12345"), [])
    changes.check(7)
    with pytest.raises(Unsupported) as caught:
        changes.check(6)
    assert caught.value.reason == "too_large"
