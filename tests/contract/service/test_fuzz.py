"""Whatever is sent to the published routes, the answer is never a fault, and always of the published form."""

from pathlib import Path

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from tests.contract.service.conftest import threaded
from tests.support.daemon import DaemonBackend

from orchard.core.errors import CreateFailed
from orchard.sandbox.types import SandboxInfo, SandboxSpec


class NoImages(DaemonBackend):
    """Has no image at all: what is fuzzed is the door, and nothing must be made."""

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        raise CreateFailed("no such image", reason="image_not_found")


def send(case: schemathesis.Case) -> None:
    answer = case.call(timeout=60)
    case.validate_response(answer, checks=[not_a_server_error])
    if answer.status_code >= 400:
        facts = answer.json()
        assert facts["status"] == answer.status_code or facts["reason"] == "method"
        assert facts["code"] != "internal"
        assert facts["request_id"]


def test_no_request_is_answered_with_a_fault(tmp_path: Path) -> None:
    bounded = settings(
        max_examples=8, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )  # fmt: skip
    with threaded(NoImages(tmp_path)) as url:
        document = schemathesis.openapi.from_url(f"{url}/openapi.json")
        operations = [found.ok() for found in document.get_all_operations() if isinstance(found, Ok)]
        assert len(operations) > 40
        for operation in operations:
            bounded(given(case=operation.as_strategy())(send))()
