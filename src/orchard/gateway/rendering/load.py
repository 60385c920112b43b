"""A renderer from a model's folder, as it is published: tokenizer, its configuration, chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from orchard.core.errors import InvalidArgument, NotFound
from orchard.gateway.rendering.chatml import CHATML
from orchard.gateway.rendering.family import Family
from orchard.gateway.rendering.hermes import HERMES
from orchard.gateway.rendering.plain import PLAIN
from orchard.gateway.rendering.qwen3 import QWEN3
from orchard.gateway.rendering.qwen3_coder import QWEN3_CODER
from orchard.gateway.rendering.render import TemplateRenderer
from orchard.gateway.rendering.template import ChatTemplate
from orchard.gateway.rendering.vocabulary import Vocabulary

FAMILIES: Mapping[str, Family] = {family.name: family for family in (QWEN3, QWEN3_CODER, HERMES, CHATML, PLAIN)}
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load_renderer(
    folder: Path, family: str | None = None, *, options: Mapping[str, Any] | None = None
) -> TemplateRenderer:
    """Return the renderer of a model.

    Args:
        folder: holds ``tokenizer.json``; ``tokenizer_config.json``, ``chat_template.jinja``, ``generation_config.json``
            where the model has them.
        family: a name of ``FAMILIES``; by default what the chat template looks like.
        options: names that each rendering gives to the template (``enable_thinking`` …).

    Raises:
        NotFound: there is no tokenizer in the folder.
        InvalidArgument: there is no such family, or a file does not read.
    """
    if not (folder / "tokenizer.json").is_file():
        raise NotFound(f"{folder} holds no tokenizer.json", hint="name the folder of a model with a fast tokenizer")
    if family is not None and family not in FAMILIES:
        raise InvalidArgument(f"no family {family!r}; there are: {', '.join(FAMILIES)}", field="family")
    config = _json(folder / "tokenizer_config.json")
    return make_renderer(
        Tokenizer.from_file(str(folder / "tokenizer.json")), _template(folder, config), _tokens(config),
        family=family, stop=_stops(_json(folder / "generation_config.json")), options=options,
    )  # fmt: skip


def make_renderer(
    tokenizer: Tokenizer,
    template: str | None,
    tokens: Mapping[str, str],
    *,
    family: str | None = None,
    stop: tuple[int, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> TemplateRenderer:
    """Return the renderer of a tokenizer and a chat template.

    Args:
        tokenizer: it is changed: nothing is padded or cut any more.
        template: in Jinja; None takes that of the family.
        tokens: special tokens by the names that templates use (``eos_token`` …).
        family: see ``load_renderer``.
        stop: ids that end an answer beside the end of its turn.
        options: see ``load_renderer``.

    Raises:
        InvalidArgument: the template does not read, or ends a turn with no token.
    """
    vocabulary = Vocabulary(tokenizer)
    chosen = FAMILIES[family or _family_of(template, vocabulary)]
    eos = vocabulary.id_of(tokens["eos_token"]) if "eos_token" in tokens else None
    return TemplateRenderer(
        vocabulary, ChatTemplate(template or chosen.template or CHATML.template or "", tokens), chosen,
        stop=(*([] if eos is None else [eos]), *stop), options=options,
    )  # fmt: skip


def _family_of(template: str | None, vocabulary: Vocabulary) -> str:
    if not template:
        return CHATML.name if "<|im_end|>" in vocabulary.added else PLAIN.name
    if "<function=" in template:
        return QWEN3_CODER.name
    if "<tool_call>" in template:
        return QWEN3.name if "<think>" in template else HERMES.name
    return CHATML.name


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        facts = json.loads(path.read_text())
    except ValueError as error:
        raise InvalidArgument(f"{path} is not JSON: {error}") from error
    return cast("dict[str, Any]", facts) if isinstance(facts, dict) else {}


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the template; of several the one for tools, else the default."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    given: Any = config.get("chat_template")
    if not isinstance(given, list):
        return cast("str | None", given)
    named = {str(one["name"]): str(one["template"]) for one in cast("list[dict[str, Any]]", given)}
    return named.get("tool_use") or named.get("default")


def _tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _TOKENS:
        value: Any = config.get(name)
        text = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _stops(config: Mapping[str, Any]) -> tuple[int, ...]:
    ids: Any = config.get("eos_token_id")
    return tuple(cast("list[int]", ids)) if isinstance(ids, list) else (() if ids is None else (int(ids),))
