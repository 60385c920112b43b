"""Without torch the embedded engine is there, and says what it lacks when it is used."""

import sys
from pathlib import Path

import pytest

from orchard.core.errors import MachineUnfit
from orchard.gateway.engines import TOKEN_ENGINES
from orchard.gateway.tokens import Sampling, TokenRequest


async def test_a_missing_library_is_told_with_what_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, library, None)  # an import of it fails, here and where it is installed
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    engine = TOKEN_ENGINES["transformers"](tmp_path)
    assert (engine.name, engine.context, engine.policy_version) == ("transformers", 64, "0")
    with pytest.raises(MachineUnfit, match=r"pip install 'orchard-env\[transformers\]'"):
        await anext(engine.generate(TokenRequest("s", [1], Sampling())))
    await engine.close()
