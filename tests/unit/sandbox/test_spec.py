"""What a sandbox may be asked to be: each field that is not sane is refused by name."""

from dataclasses import fields, replace
from typing import Any

import pytest

from orchard.core.errors import InvalidArgument
from orchard.sandbox.orchard import spec_of
from orchard.sandbox.remote.models import SpecBody
from orchard.sandbox.types import LEAST_MEMORY, LEAST_PIDS, MOST_PIDS, SandboxSpec

DIGEST = f"sha256:{'0' * 64}"
TOOL = f"busy-box@{DIGEST}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workdir", "work"), ("workdir", ""), ("workdir", "/a\0b"), ("workdir", 5), ("env", ["a"]), ("env", {5: "a"}),
        ("tools", "a"), ("tools", 5), ("tools", ["node"]), ("tools", ["node@sha256:12"]), ("tools", [f"../a@{DIGEST}"]),
        ("tools", [f"@{DIGEST}"]), ("tools", [f"A@{DIGEST}"]), ("tools", [TOOL, TOOL]),
        ("tools", [f"{'a' * 64}@{DIGEST}"]),
        ("labels", ["a"]), ("labels", {5: "a"}), ("network", None), ("pids", LEAST_PIDS - 1), ("pids", True),
        ("pids", MOST_PIDS + 1), ("memory", LEAST_MEMORY - 1), ("memory", "512"), ("ttl", 10**400),
        ("memory", "9" * 400), ("disk", "9" * 400), ("user", 5), ("user", "a\0"), ("user", "\udc80"),
        ("workdir", "/\udc80"), ("env", {"A": "\udc80"}), ("entrypoint", "sh -c true"), ("entrypoint", 5),
        ("entrypoint", [5]), ("entrypoint", ["\udc80"]), ("labels", {"a..b/c": "d"}), ("labels", {"a.-b/c": "d"}),
        ("labels", {f"{'a' * 254}/c": "d"}),
    ],
    ids=lambda value: ascii(value)[:40],
)  # fmt: skip
def test_an_option_that_is_not_sane_is_refused_by_name(field: str, value: Any) -> None:
    options: Any = {field: value}
    for make in (lambda: SandboxSpec("host", **options).validated(), lambda: spec_of("host", options, heartbeat=None)):
        with pytest.raises(InvalidArgument) as refused:
            make()
        assert refused.value.field == field


def test_what_is_left_out_or_sane_passes() -> None:
    options: Any = {"env": None, "labels": {"a": "b"}, "workdir": "/work", "pids": LEAST_PIDS, "network": "none"}
    spec = spec_of("host", options, heartbeat=None)
    assert (spec.env, spec.labels, spec.workdir, spec.pids) == ({}, {"a": "b"}, "/work", LEAST_PIDS)


def test_the_body_of_a_create_has_the_fields_and_defaults_of_a_spec() -> None:
    assert list(SpecBody.model_fields) == [one.name for one in fields(SandboxSpec)]
    plain = SandboxSpec("host")
    assert SpecBody.model_validate({"image": "host"}) == SpecBody.of(plain)
    whole = SandboxSpec(
        "x", cpu=1, memory=5 << 20, disk=6, pids=7, env={"A": "b"}, user="u", workdir="/w", labels={"c": "d"}, ttl=8,
        max_ttl=9, idle=10, heartbeat=11, create_timeout=12, entrypoint=("e",), tools=(TOOL,),
    )  # fmt: skip
    again = SpecBody.of(whole).to_spec()
    assert again == replace(whole, entrypoint=["e"], tools=[TOOL])
