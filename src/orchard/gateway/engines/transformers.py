"""An embedded engine: a model of transformers in this process, for small models on a CPU or one GPU.

One thread runs a batch that answers join and leave at every step. Conversations stay in memory: a session's next turn
computes only what is new. Log-probabilities are those of the distribution that was drawn from.

Why a loop of our own: transformers' continuous batching (5.19) gives log-probabilities, but no seed for each answer, no
greedy answers beside drawn ones, and no place between steps where weights could be replaced. On a processor it makes 41
tokens a CPU-second at sixteen sessions, where this makes 59 and a static batch 69: it masks one attention over all
conversations, and here each sees its own (``python -m bench --only transformers-engine``).

The GPU path differs by ``device`` and ``dtype`` alone; it was never run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from orchard.core.errors import InvalidArgument, OrchardError
from orchard.core.tasks import settled
from orchard.gateway.engines.transformers_engine.batch import Answer, Batch
from orchard.gateway.engines.transformers_engine.memory import Memory
from orchard.gateway.engines.transformers_engine.model import Model, context_of
from orchard.gateway.errors import EngineUnavailable
from orchard.gateway.tokens import Ended, TokenRequest, Tokens


class TransformersEngine:
    """A ``TokenEngine`` over the model in a folder; loaded at its first use. Needs the extra ``transformers``.

    Args:
        folder: ``config.json`` and weights.
        device: ``cpu``, ``cuda`` ….
        dtype: ``float32``, ``bfloat16`` …; None: float32 on a CPU, else bfloat16.
        policy_version: of the weights in the folder.
        context: most ids of prompt and answer together; None: as the model was made for, or the memory holds.
        memory: bytes for keys and values of all conversations together.
        most: answers that are sampled at once; others wait.

    Raises:
        InvalidArgument: there is no model in the folder.
    """

    name = "transformers"

    def __init__(
        self,
        folder: Path | str,
        *,
        device: str = "cpu",
        dtype: str | None = None,
        policy_version: str = "0",
        context: int | None = None,
        memory: int = 2 << 30,
        most: int = 16,
    ) -> None:
        self._folder, self._device, self._dtype = Path(folder), device, dtype
        self._memory, self._most = memory, most
        self.policy_version = policy_version
        told = context_of(self._folder)
        self.context = min((each for each in (told, context) if each is not None), default=None)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="orchard-transformers")
        self._batch: Future[Batch] | None = None
        self._model: Model | None = None
        self._stepping = self._closed = False
        self._updating = asyncio.Lock()

    async def ready(self) -> None:
        """Return when the model is loaded.

        Raises:
            MachineUnfit: torch or transformers are not installed.
            Unsupported: its architecture cannot be run here.
            InvalidArgument: the folder's files are no model, the device is not here, or the memory is too small.
        """
        if self._batch is None:
            self._batch = self._submit(self._load)
        await asyncio.shield(asyncio.wrap_future(self._batch))

    async def generate(self, request: TokenRequest) -> AsyncGenerator[Tokens | Ended]:
        """Yield each id as it is sampled, then the end. Closing the generator ends the sampling."""
        await self.ready()
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Tokens | Ended | OrchardError] = asyncio.Queue()
        answer = Answer(request, lambda part: _hand_over(loop, arrived, part))
        self._change(lambda batch: batch.add(answer))
        over = False
        try:
            while not over:
                part = await arrived.get()
                over = not isinstance(part, Tokens)
                if isinstance(part, OrchardError):
                    raise part
                yield part
        finally:
            if not over and not self._closed:
                self._change(lambda batch: batch.end(lambda one: one is answer))

    async def abort(self, session: str) -> None:
        """End whatever is being sampled for a session."""
        if self._batch is not None and not self._closed:
            await self._changed(lambda batch: batch.end(lambda one: one.request.session == session))

    async def update_weights(self, path: Path, version: str) -> None:
        """Sample with the weights in a folder from the next step on. They are read while sampling goes on.

        An answer that is running goes on under the new weights, computed anew from its ids; its record says which ids
        are whose. What was kept of conversations is forgotten.

        Raises:
            EngineRefused: they are not weights of this model; the old ones stay.
        """
        await self.ready()
        async with self._updating:
            assert self._model is not None
            weights = await asyncio.to_thread(self._model.read, path)
            await self._changed(lambda batch: batch.renew(weights, version))
            self.policy_version = version

    async def close(self) -> None:
        """End what is being sampled, as aborted, and release the model."""
        if self._batch is not None and not self._closed:
            await settled(asyncio.wrap_future(self._batch))
            if self._batch.exception() is None:
                await self._changed(lambda batch: batch.end(lambda _: True))
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown)
        self._batch = self._model = None

    def _load(self) -> Batch:
        model = Model(self._folder, self._device, self._dtype)
        memory = Memory(self._memory // model.bytes_each)
        context = min(memory.positions, self.context or memory.positions)
        if context < 1:
            raise InvalidArgument(f"{self._memory} bytes of memory hold no conversation", field="memory")
        self._model, self.context = model, context
        return Batch(model, memory, self.policy_version, context=context, most=self._most)

    def _submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._closed:
            raise EngineUnavailable("the transformers engine is closed")
        return self._thread.submit(work, *args)

    def _change(self, what: Callable[[Batch], None]) -> Future[None]:
        """Do something to the batch between two steps."""
        return self._submit(self._between, what)

    async def _changed(self, what: Callable[[Batch], None]) -> None:
        await asyncio.shield(asyncio.wrap_future(self._change(what)))

    def _between(self, what: Callable[[Batch], None]) -> None:
        assert self._batch is not None
        batch = self._batch.result()
        what(batch)
        if batch.busy and not self._stepping:
            self._stepping = True
            self._submit(self._step)

    def _step(self) -> None:
        assert self._batch is not None
        batch = self._batch.result()
        batch.step()
        self._stepping = batch.busy
        if self._stepping:
            self._submit(self._step)


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    to: asyncio.Queue[Tokens | Ended | OrchardError],
    part: Tokens | Ended | OrchardError,
) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(to.put_nowait, part)
