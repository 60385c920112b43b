"""An engine that fails to order."""

from collections.abc import AsyncGenerator, Callable

from orchard.gateway import Delta, EngineRequest, Final
from orchard.trajectories import Usage


class Failing:
    """Says a word, or nothing, then fails, so many times; then it answers."""

    name = "failing"
    policy_version = None

    def __init__(self, error: Exception, word: str = "", times: int = 1) -> None:
        self.error, self.word, self.times = error, word, times

    def back_after(self, count: int, sign: str) -> Callable[[str], None]:
        """Return what is shown an answer as it grows, and lets the engine answer once ``sign`` came so many times."""

        def seen(text: str) -> None:
            if text.count(sign) >= count:
                self.times = 0

        return seen

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Delta | Final]:
        self.times -= 1
        if self.word:
            yield Delta({"content": self.word})
        if self.times >= 0:
            raise self.error
        yield Final({"role": "assistant", "content": "again"}, "stop", Usage())

    async def close(self) -> None: ...


class Answering:
    """Gives one answer, whole."""

    name = "answering"
    policy_version = None

    def __init__(self, final: Final) -> None:
        self.final = final

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Delta | Final]:
        yield self.final

    async def close(self) -> None: ...
