"""The real vLLM with real SmolLM2 weights. Where this machine cannot run it the lane says why; in CI it fails then."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.models import smollm2_folder
from tests.vllm.environment import in_ci, vllm_program, why_not
from tests.vllm.server import VllmServer

from orchard.gateway import Gateway, GatewayConfig
from orchard.gateway.engine import Engine
from orchard.gateway.engines.vllm import VllmEngine
from orchard.gateway.exact import TokenExact
from orchard.gateway.rendering import load_renderer
from orchard.trajectories import Store

MakeEngine = Callable[..., VllmEngine]
MakeGateway = Callable[[Engine], Any]


@pytest.fixture(scope="session", autouse=True)
def fit() -> None:
    """Whether vLLM can run here at all."""
    if (why := why_not()) is not None:
        (pytest.fail if in_ci() else pytest.skip)(f"vLLM cannot run here: {why}")


@pytest.fixture(scope="session")
def weights(fit: None) -> Path:
    return smollm2_folder()


@pytest.fixture(scope="session")
def server(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """One server for all tests; the last ones change its weights and start it anew."""
    made = VllmServer(vllm_program(), weights, tmp_path_factory.mktemp("vllm") / "log")
    try:
        made.start()
        made.wait()
        yield made
    finally:
        made.kill()


@pytest.fixture
async def engine(server: VllmServer) -> AsyncIterator[VllmEngine]:
    made = VllmEngine(server.url, policy_version="0")
    yield made
    await made.close()


@pytest.fixture
def exact(engine: VllmEngine, weights: Path) -> TokenExact:
    """The engine as the gateway sees it; its answers are short."""
    return TokenExact(engine, load_renderer(weights), max_tokens=16)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as store:
        yield store


@pytest.fixture
async def gateway(store: Store, exact: TokenExact) -> AsyncIterator[Gateway]:
    """A gateway that waits for a server as long as one takes to start."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(Gateway(store, {"vllm": exact}, GatewayConfig(hold_seconds=900)))
