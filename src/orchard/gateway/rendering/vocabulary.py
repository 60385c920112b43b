"""A tokenizer: text to ids, and sampled ids back to text as they come."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

_BROKEN = "\ufffd"


class Vocabulary:
    """A tokenizer as the gateway uses it: no padding, no truncation, no tokens of its own accord.

    Args:
        tokenizer: as loaded from ``tokenizer.json``; it is changed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.added = {token.content: number for number, token in added.items()}
        """Ids of the tokens that are never split."""
        self.fingerprint = hashlib.blake2b(tokenizer.to_str().encode(), digest_size=16).hexdigest()
        self._special = frozenset(number for number, token in added.items() if token.special)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return ids as text, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def id_of(self, token: str) -> int | None:
        """Return the id of a token; None where there is none of this name."""
        return self._tokenizer.token_to_id(token)

    def spelling(self, shown: Iterable[str] = ()) -> Spelling:
        """Return what spells an answer; of its special tokens only those in ``shown`` are part of the text."""
        return Spelling(self, self._special - {self.added[token] for token in shown if token in self.added})


class Spelling:
    """Sampled ids as text, in any portions. A character whose bytes are split over ids comes once it is whole."""

    def __init__(self, vocabulary: Vocabulary, hidden: frozenset[int]) -> None:
        self._vocabulary, self._hidden = vocabulary, hidden
        self._ids: list[int] = []
        self._said = 0
        """How many of ``_ids`` are spelled; they stay, since some tokenizers leave out a first word's blank."""
        self._told = 0
        """How many characters of them were given."""

    def feed(self, ids: Iterable[int]) -> str:
        """Return the text that is whole by now."""
        self._ids += [number for number in ids if number not in self._hidden]
        return self._spell(hold=True)

    def end(self) -> str:
        """Return the rest; bytes that make no character are U+FFFD."""
        return self._spell(hold=False)

    def _spell(self, *, hold: bool) -> str:
        if len(self._ids) == self._said:
            return ""
        whole = self._vocabulary.decode(self._ids)
        sure = whole.rstrip(_BROKEN) if hold else whole
        text, self._told = sure[self._told :], max(self._told, len(sure))
        if sure == whole:
            self._ids = self._ids[self._said :]
            self._said, self._told = len(self._ids), len(self._vocabulary.decode(self._ids))
        return text
