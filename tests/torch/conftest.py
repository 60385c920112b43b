"""Models on one thread: two fight over the processor as soon as anything else runs."""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.models import smollm2_folder, tiny_model

from orchard.gateway.engines.transformers import TransformersEngine
from orchard.gateway.engines.transformers_engine import libraries

MakeEngine = Callable[..., TransformersEngine]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    libraries.torch().set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model."""
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def endless(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, whose answers come to no end of their own: it knows no id that ends one."""
    folder = tmp_path_factory.mktemp("models") / "endless"
    shutil.copytree(tiny, folder)
    (folder / "generation_config.json").write_text("{}")
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return smollm2_folder()


@pytest.fixture
async def make_engine() -> AsyncIterator[MakeEngine]:
    """Makes engines that are closed afterwards."""
    async with AsyncExitStack() as held:

        def make(folder: Path, **options: Any) -> TransformersEngine:
            engine = TransformersEngine(folder, **options)
            held.push_async_callback(engine.close)
            return engine

        yield make
