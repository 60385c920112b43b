"""Names, ids, tokens, and the proof that a Pod is ours."""

import hashlib
import re
from typing import Any

import pytest

from orchard.core.ids import check_id
from orchard.sandbox.kubernetes.identity import ID, MAC, Identity, ServiceKey, name_of, new_sandbox_id, pod_name
from orchard.sandbox.kubernetes.labels import TENANT

KEY = ServiceKey(b"k" * 32)


def proven(**changes: str) -> dict[str, Any]:
    name = pod_name("t", "key")
    who = Identity("boxes", name, new_sandbox_id(name), "t")
    pod: dict[str, Any] = {
        "metadata": {
            "namespace": who.namespace, "name": name, "labels": {TENANT: "t"},
            "annotations": {ID: who.id, MAC: KEY.mac(who)},
        }
    }  # fmt: skip
    for where, value in changes.items():
        part = {"id": "annotations", "mac": "annotations", "tenant": "labels"}.get(where)
        field = {"id": ID, "mac": MAC, "tenant": TENANT}.get(where, where)
        (pod["metadata"][part] if part else pod["metadata"])[field] = value
    return pod


def test_a_name_follows_from_tenant_and_key_and_is_a_name_of_a_pod() -> None:
    assert pod_name("a", "b") == pod_name("a", "b")
    assert len({pod_name("a", "b"), pod_name("a", "c"), pod_name("", "b"), pod_name("ab", "")}) == 4
    assert re.fullmatch(r"sb-[a-z2-7]{26}", pod_name("a", "b"))


def test_each_pod_has_an_id_of_its_own_that_leads_to_its_name() -> None:
    name = pod_name("a", "b")
    ids = {new_sandbox_id(name) for _ in range(100)}
    assert len(ids) == 100
    assert {name_of(check_id(each, "id")) for each in ids} == {name}


def test_the_token_follows_from_key_and_id_and_the_daemon_learns_its_hash_only() -> None:
    assert KEY.token("a") == KEY.token("a") != KEY.token("b")
    assert ServiceKey(b"x" * 32).token("a") != KEY.token("a")
    assert KEY.token_sha256("a") == hashlib.sha256(KEY.token("a").encode()).hexdigest()


def test_a_proven_pod_is_ours() -> None:
    who = KEY.owner(proven(), TENANT)
    assert who is not None
    assert who.tenant == "t"


@pytest.mark.parametrize(
    "change",
    [{"namespace": "other"}, {"name": "sb-other"}, {"id": "sb-x-1"}, {"tenant": "u"}, {"mac": "0"}, {"mac": "é"}],
)
def test_a_pod_whose_proof_does_not_fit_is_nobodys(change: dict[str, str]) -> None:
    assert KEY.owner(proven(**change), TENANT) is None


def test_a_pod_without_labels_and_annotations_is_nobodys() -> None:
    assert KEY.owner({"metadata": {"namespace": "boxes", "name": "sb-x"}}, TENANT) is None


def test_a_mac_is_no_token() -> None:
    assert ServiceKey(b"k" * 32).mac(Identity("a", "b", "c", "d")) != KEY.token("a\0b\0c\0d")
