import hashlib
import stat
from pathlib import Path

import pytest

from orchard.core.errors import Conflict, InvalidArgument, RateLimited, Unauthorized
from orchard.service.keys import Caller, KeyRing
from orchard.service.limits import Rates


def test_a_new_key_works_at_once_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "keys.toml"
    ring = KeyRing(path)
    key = ring.add("alice", tenant="team", quota=3, rate=2.5)
    assert ring.caller(key) == Caller("alice", "team", 3, 2.5)
    assert key not in path.read_text()
    assert hashlib.sha256(key.encode()).hexdigest() in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("shown", [None, "", "orchard-x", "orchard-é"])
def test_no_key_and_unknown_keys_are_refused(tmp_path: Path, shown: str | None) -> None:
    ring = KeyRing(tmp_path / "keys.toml")
    ring.add("alice")
    with pytest.raises(Unauthorized):
        ring.caller(shown)


def test_names_are_unique_and_fit_a_label(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys.toml")
    ring.add("alice")
    with pytest.raises(Conflict):
        ring.add("alice")
    for wrong in ('x"\nquota = 1', "", "a b", "x" * 64, "-a"):
        with pytest.raises(InvalidArgument):
            ring.add(wrong)
    with pytest.raises(InvalidArgument):
        ring.add("bob", rate=0)


def test_a_key_added_by_another_process_works_and_a_deleted_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.service.keys._RELOAD_AFTER", 0.0)
    path = tmp_path / "keys.toml"
    ring = KeyRing(path)
    assert ring.keys == []
    key = KeyRing(path).add("alice")
    assert ring.caller(key).tenant == "alice"
    path.unlink()
    with pytest.raises(Unauthorized):
        ring.caller(key)


@pytest.mark.parametrize(
    "text", ["[[keys", "[[keys]]\nname = 1\n", "keys = 3\n", '[[keys]]\nname="a"\nsha256="x"\ntenant="t"\n']
)
def test_a_file_that_is_none_of_keys_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"keys\.toml"):
        _ = KeyRing(path).keys


def test_a_file_that_is_no_text_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_bytes(b"\xff\xfe[\x00keys")
    with pytest.raises(InvalidArgument, match="is not a file of API keys"):
        _ = KeyRing(path).keys


def test_a_rate_lets_a_burst_through_and_says_when_to_come_back() -> None:
    rates, caller = Rates(), Caller("a", "t", rate=10.0)
    for _ in range(20):
        rates.take(caller)
    with pytest.raises(RateLimited) as caught:
        rates.take(caller)
    assert 0 < caught.value.retry_after <= 0.1
    rates.take(Caller("b", "t", rate=10.0))
    for _ in range(100):
        rates.take(Caller("c", "t"))
