"""Options of a command that says what answers, and the engine that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from orchard.cli import console
from orchard.core.errors import InvalidArgument

if TYPE_CHECKING:
    from orchard.gateway import Engine
    from orchard.gateway.rendering.base import Renderer
    from orchard.gateway.tokens import TokenEngine
    from orchard.trajectories import Trajectory

KINDS = ("openai", "vllm", "sglang", "transformers")


@dataclass(frozen=True)
class Answering:
    """What a person said of the engine."""

    engine: str | None = None
    """One of ``KINDS``."""
    base_urls: Sequence[str] = ()
    model: str = ""
    """A name at the server, or for ``transformers`` a folder."""
    api_key: str = ""
    tokenizer: Path | None = None
    """Folder with tokenizer and chat template, where prompts are rendered here; that of the model by default."""
    mode: str = "splice"
    script: Path | None = None
    replay: str | None = None
    """Id of a rollout or session."""
    store: Path | None = None
    """Where it was recorded."""
    calls: int | None = None
    exact: bool = False
    """Of a replay: what the clock and chance have changed in a request is a difference too."""
    device: str | None = None
    """Where ``transformers`` computes; its own default."""
    dtype: str | None = None
    """Of its weights."""
    token_ids: bool = False
    """Ask a server of text for token ids too."""

    @property
    def asked_model(self) -> str:
        """The name under which the engine is asked, whatever the harness asks for; "" leaves the harness's."""
        return "" if self.engine == "transformers" else self.model

    async def open(self) -> Engine:
        """Return the engine; a model of this process is loaded then, so what is wrong with it is told at once.

        Raises:
            InvalidArgument: the options name none, or two that exclude each other, or a model that cannot be loaded.
            MachineUnfit: torch or transformers are not installed.
            NotFound: no such recording, or no tokenizer in the folder.
            Unsupported: the model cannot be run here.
        """
        if self.engine != "transformers" and (self.device or self.dtype):
            option = "device" if self.device else "dtype"
            raise InvalidArgument(f"--{option} is for --engine transformers: a server has its own", field=option)
        if self.mode not in ("splice", "template"):
            raise InvalidArgument(f"mode must be splice or template, not {self.mode!r}", field="mode")
        replaying = {"calls": self.calls is not None, "store": self.store is not None, "exact": self.exact}
        if self.replay is None and any(replaying.values()):
            option = next(name for name, given in replaying.items() if given)
            raise InvalidArgument(f"--{option} is for a replay: give --replay ID too", field=option)
        if [self.script, self.replay or self.engine].count(None) != 1:
            raise InvalidArgument(
                "say what answers: either --script, or --engine, or --replay (with --engine for what comes after it)",
                field="engine", hint="such as --engine openai --base-url http://127.0.0.1:8000/v1 --model NAME",
            )  # fmt: skip
        if self.script is not None:
            from orchard.gateway import ScriptEngine

            return ScriptEngine.load(self.script)
        live = await self._live() if self.engine is not None else None
        if self.replay is None:
            assert live is not None
            return live
        from orchard.gateway import ReplayEngine

        return ReplayEngine(self._recorded(self.replay), calls=self.calls, then=live, exact=self.exact)

    def _recorded(self, name: str) -> Trajectory:
        from orchard.cli.stores import open_store, recorded

        with open_store(self.store) as store:
            return recorded(store, name)

    async def _live(self) -> Engine:
        if self.engine not in KINDS:
            raise InvalidArgument(f"engine must be one of {', '.join(KINDS)}, not {self.engine!r}", field="engine")
        if self.engine == "transformers":
            return await self._embedded(Path(self.model or ""))
        from orchard.gateway.exact import TokenExact
        from orchard.rollout.policies import check_url

        if not self.base_urls:
            raise InvalidArgument(f"--engine {self.engine} needs --base-url", field="base_url")
        for url in self.base_urls:
            check_url(url)
        if self.engine == "openai":
            return self._servers()
        renderer = self._renderer(self.tokenizer or Path(self.model), "--tokenizer")
        return TokenExact(self._served(self.engine), renderer, mode=cast('Literal["splice"]', self.mode))

    async def _embedded(self, folder: Path) -> Engine:
        from orchard.gateway.engines.transformers import TransformersEngine
        from orchard.gateway.exact import TokenExact

        renderer = self._renderer(folder, "--model")
        engine = TransformersEngine(folder, device=self.device or "cpu", dtype=self.dtype)
        try:
            with console.working(f"loading {folder}"):
                await engine.ready()
        except BaseException:
            await engine.close()
            raise
        return TokenExact(engine, renderer, mode=cast('Literal["splice"]', self.mode))

    def _servers(self) -> Engine:
        from orchard.gateway import OpenAIEngine
        from orchard.gateway.engines.replicas import Replicas

        engines = [OpenAIEngine(url, api_key=self.api_key, token_ids=self.token_ids) for url in self.base_urls]
        return engines[0] if len(engines) == 1 else Replicas(engines)

    def _renderer(self, folder: Path, option: str) -> Renderer:
        from orchard.gateway.rendering.load import load_renderer

        if not (folder / "tokenizer.json").is_file():
            raise InvalidArgument(
                f"--engine {self.engine} renders the prompts itself and needs the model's tokenizer: {option} FOLDER",
                field="tokenizer", hint="a folder with tokenizer.json and tokenizer_config.json",
            )  # fmt: skip
        return load_renderer(self.tokenizer or folder)

    def _served(self, kind: str) -> TokenEngine:
        from orchard.gateway.engines import TOKEN_ENGINES
        from orchard.gateway.engines.replicas import TokenReplicas

        make = TOKEN_ENGINES[kind]
        model = None if Path(self.model).is_dir() else self.model or None
        engines = [make(url, model=model, api_key=self.api_key) for url in self.base_urls]
        return engines[0] if len(engines) == 1 else TokenReplicas(engines)
