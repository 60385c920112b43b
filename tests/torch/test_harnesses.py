"""Real harnesses in real sandboxes with the embedded engine: a forward pass agrees with every sample."""

from pathlib import Path

import pytest
from tests.torch.conftest import MakeEngine
from tests.torch.reference import CLOSE, farthest, plain_logprobs

from orchard.gateway import Budget, Gateway, ReplayEngine, ScriptEngine, Session, bash_step
from orchard.gateway.exact import TokenExact
from orchard.gateway.rendering import load_renderer
from orchard.harness.bash_loop import BashLoop
from orchard.harness.mini_swe_agent.driver import MiniSweAgent
from orchard.harness.protocol import Harness, HarnessLimits, HarnessRequest, HarnessResult, Stop
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.trajectories import Store
from orchard.trajectories.samples import Sample, to_samples

SAMPLES = {"bash-loop": 1, "mini-swe-agent": 2}
"""An answer without a call goes back to the model in the first, is left out in the second."""
SCRIPT = [bash_step("echo one > note; ls"), bash_step("cat note")]


def off_by(folder: Path, sample: Sample) -> float:
    told = [0.0, *plain_logprobs(folder, sample.ids)]
    trained = [at for at, drawn in enumerate(sample.mask) if drawn]
    return farthest([sample.logprobs[at] for at in trained], [told[at] for at in trained])


async def run(harness: Harness, session: Session, door: Orchard, scratch: Path) -> HarnessResult:
    limits = HarnessLimits(turns=9, seconds=600.0, command_seconds=20.0)
    async with door.sandbox("host") as box:
        return await harness.run(
            HarnessRequest("Write a note.", box, "/srv", session.url, session.api_key, "m", scratch, limits)
        )


@pytest.mark.root
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("harness", [BashLoop(), MiniSweAgent()], ids=lambda one: one.name)
async def test_what_was_served_is_what_a_forward_pass_says(
    harness: Harness, smollm2: Path, make_engine: MakeEngine, local_home: Path, tmp_path: Path
) -> None:
    """The model is too small to call tools: two turns are a script's, then it goes on live until its budget ends it."""
    exact = TokenExact(make_engine(smollm2), load_renderer(smollm2), max_tokens=24)
    await harness.install()
    recorded_files, live_files = tmp_path / "recorded", tmp_path / "live"
    recorded_files.mkdir()
    live_files.mkdir()
    with Store(tmp_path / "store") as store:
        async with Orchard(backend=LocalBackend(LocalSettings(home=local_home))) as door:
            async with Gateway(store, {"s": ScriptEngine(SCRIPT)}) as gateway:
                recorded = await gateway.open_session(budget=Budget(turns=2))
                await run(harness, recorded, door, recorded_files)
            branched = ReplayEngine(store.session(recorded.id), calls=2, then=exact)
            async with Gateway(store, {"r": branched}) as gateway:
                session = await gateway.open_session(budget=Budget(turns=4))
                result = await run(harness, session, door, live_files)
            await harness.close()
        trajectory = store.session(session.id)
    assert result.stop is Stop.BUDGET
    live = trajectory.calls[2:]
    assert [call.status for call in live] == ["ok", "ok"]
    assert live[1].kept_ids > 0
    assert live[1].usage.cached_tokens >= live[1].kept_ids - 1
    samples = to_samples(trajectory)
    assert len(samples) == SAMPLES[harness.name]
    assert [call for sample in samples for call in sample.calls] == [call.id for call in live]
    assert sum(sum(sample.mask) for sample in samples) == sum(len(call.sampled_ids or ()) for call in live)
    assert max(off_by(smollm2, sample) for sample in samples) < CLOSE
