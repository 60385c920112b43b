"""What a refusal of a Pod means: a ResourceQuota that is used up for now, too small for ever, or a rule."""

import json

import pytest

from orchard.core.errors import CreateFailed, InvalidArgument, QuotaExceeded
from orchard.sandbox.kubernetes.client import Forbidden, failure
from orchard.sandbox.kubernetes.refusals import refusal

FULL = "exceeded quota: q, requested: pods=1,requests.memory=16Mi, used: pods=2,requests.memory=32Mi, limited: "


def forbidden(words: str, name: str = "sb-1") -> Forbidden:
    """The answer of a real API server; all refusals of its own admission look like this."""
    body = {
        "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403,
        "message": words, "details": {"name": name, "kind": "pods"},
    }  # fmt: skip
    error = failure(403, json.dumps(body).encode(), "")
    assert isinstance(error, Forbidden)
    return error


@pytest.mark.parametrize(
    ("limited", "later"),
    [
        ("pods=2,requests.memory=32Mi", True),
        ("pods=2,requests.memory=15Mi", False),  # not even an unused quota holds it
        ("pods=0,requests.memory=1Gi", False),
        ("pods=2,requests.memory=32768Ki", True),
        ("pods=2,requests.memory=odd", True),  # not understood: the wait tells
    ],
)
def test_a_resource_quota_that_is_used_up_is_the_quotas_own_error(limited: str, later: bool) -> None:
    error, passing = refusal(forbidden(f'pods "sb-1" is forbidden: {FULL}{limited}'))
    assert type(error) is QuotaExceeded
    assert (f"of {limited}" in error.message, "ResourceQuota q" in error.message) == (True, True)
    assert passing is later


@pytest.mark.parametrize(
    "words",
    [
        'pods "sb-1" is forbidden: violates PodSecurity "baseline:latest": hostPath volumes (volume "x")',
        'pods "sb-1" is forbidden: failed quota: q: must specify limits.cpu for: sandbox',
        f'admission webhook "w.example" denied the request: pods "sb-1" is forbidden: {FULL}pods=2',
        f"pods \"sb-1\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: {FULL}pods=2",
    ],
)
def test_any_other_refusal_is_for_good_whatever_words_it_quotes(words: str) -> None:
    error, passing = refusal(forbidden(words))
    assert isinstance(error, CreateFailed)
    assert (error.reason, passing) == ("start_failed", False)
    assert words in error.message


WEBHOOK = 'admission webhook "w.example" denied the request: no'


@pytest.mark.parametrize(
    ("status", "details"),
    [
        (400, {}), (403, {}),  # a webhook's: it has no details
        (422, {"name": "sb-1", "kind": "pods", "causes": [{"message": "no"}]}),  # a ValidatingAdmissionPolicy's
    ],
)  # fmt: skip
def test_what_a_rule_of_the_cluster_refuses_is_no_matter_of_rights_or_of_the_callers_words(
    status: int, details: dict[str, object]
) -> None:
    told = failure(status, json.dumps({"message": WEBHOOK, "code": status, "details": details}).encode(), "")
    assert isinstance(told, Forbidden | InvalidArgument)
    assert not isinstance(told, Forbidden) or told.ours
    error, passing = refusal(told)
    assert isinstance(error, CreateFailed)
    assert (error.reason, passing, WEBHOOK in error.message) == ("start_failed", False, True)


def test_what_we_may_not_ask_for_at_all_is_told_apart() -> None:
    words = 'pods is forbidden: User "u" cannot create resource "pods" in API group "" in the namespace "n"'
    told = failure(403, json.dumps({"message": words, "code": 403, "details": {"kind": "pods"}}).encode(), "")
    assert isinstance(told, Forbidden)
    assert not told.ours
