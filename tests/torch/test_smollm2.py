"""Real weights: what is served equals a plain forward pass, alone, together, and from memory."""

from pathlib import Path

from tests.torch.conftest import MakeEngine
from tests.torch.reference import CLOSE, ask, ask_all, farthest, off_by

from orchard.gateway.rendering import load_renderer

QUESTIONS = ("Name a river.", "What is seven times eight?", "Write a line of Python.", "Who wrote Hamlet?")


def prompts(folder: Path, count: int) -> list[list[int]]:
    """Chats of different lengths that begin alike."""
    renderer = load_renderer(folder)
    asked = [{"role": "user", "content": QUESTIONS[at % 4] + " Be brief." * at} for at in range(count)]
    return [renderer.render([message]) for message in asked]


async def test_it_answers(smollm2: Path, make_engine: MakeEngine) -> None:
    renderer = load_renderer(smollm2)
    prompt = renderer.render([{"role": "user", "content": "What is the capital of France?"}])
    said = await ask(make_engine(smollm2), prompt, temperature=0, stop_ids=renderer.stop_ids)
    assert "Paris" in renderer.text(said.ids)
    assert said.end.finish_reason == "stop"
    assert said.ids[-1] in renderer.stop_ids


async def test_sixteen_at_once_are_what_each_is_alone(smollm2: Path, make_engine: MakeEngine) -> None:
    asked = prompts(smollm2, 16)
    together = await ask_all(make_engine(smollm2), asked, max_tokens=12)
    assert max(off_by(smollm2, said) for said in together) < CLOSE
    engine = make_engine(smollm2)
    for at, said in enumerate(together):
        alone = await ask(engine, asked[at], f"s{at}", seed=at, max_tokens=12)
        assert alone.ids == said.ids
        assert farthest(alone.logprobs, said.logprobs) < CLOSE


async def test_a_conversation_goes_on_from_memory(smollm2: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(smollm2)
    ids = prompts(smollm2, 1)[0] + list(range(1000, 1700))
    for turn in range(3):
        said = await ask(engine, ids, temperature=0.7, seed=turn, max_tokens=16)
        assert said.end.cached_tokens == (len(ids) - 4 if turn else 0)
        assert off_by(smollm2, said, 0.7) < CLOSE
        ids = [*said.whole, 2, 198, 1]
