"""Scores of a judge: the exact probability of each level that a model may answer with."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import torch

from ntloss.callers import UnlikelyNumberWarning, warn_caller
from ntloss.numbers.vocabulary import NumberVocabulary
from ntloss.reading.prompts import (
    encode_after,
    likeliest_after,
    read_each,
    tokenizer_of,
    vocabulary_of,
    write_questions,
)
from ntloss.reading.source import Continuations
from ntloss.scores.levels import DIGIT, Levels, Node, Scale, walk_levels
from ntloss.scores.readings import MOST_NONE, ScoreReading, reading_of

_MOST_ROWS = 1024  # of levels after all prompts that are run at once
_Path = tuple[int, ...]  # the tokens of a level
_ANOTHER = "0000000001"  # stands for all digits that make a number of a level which is none


def read_scores(model: Any, tokenizer: Any, question: Any, levels: Levels = range(1, 6)) -> Any:
    """Read the exact probability of each level of a score, after a question or each of several.

    A level is written if the answer begins with it and does not go on as another number: `10`, `4.5` and
    `2024` are none of the levels 1 to 5. `4.0` is 4, and so is `4.05` where each digit is a token, because
    what follows the zero is not asked. A number counts in all spellings (`10` also as `1`, `0`), a word as
    the tokenizer writes it. Levels of one token each take one pass of the model, numbers two more for what
    follows them, and any further tokens one each.

    Args:
        model: a causal or encoder-decoder model of transformers, in evaluation mode; a server, or an engine;
            see `read_number`.
        tokenizer: its tokenizer, or its processor for questions with images.
        question: a text or a `Question`, or several. A judge's reasons and `"Score: "` are its prefill.
        levels: the scores, such as `range(1, 11)`; or words with their values, such as
            `{"calm": 0, "annoyed": 1, "angry": 2}`. Default: 1 to 5.

    Returns:
        A `ScoreReading` for one question, a list of them for several.

    Raises:
        TypeError: not a model or a tokenizer of transformers, or a question that is no text.
        ValueError: fewer than two levels, or two that are written alike; see `read_number`.

    Warns:
        UnlikelyNumberWarning: a level is written with a probability below 0.5.

    Example:
        >>> from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM
        >>> tokenizer = ByT5Tokenizer()
        >>> config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8,
        ...                      num_hidden_layers=1, num_attention_heads=2)
        >>> scores = read_scores(LlamaForCausalLM(config).eval(), tokenizer, "How good?", levels=range(1, 11))
        >>> round(sum(scores.probabilities.values()) + scores.none, 6)
        1.0
    """
    scale = Scale(levels)
    source, prompts, single = write_questions(model, tokenizer, question)
    processor, tokenizer = tokenizer, tokenizer_of(tokenizer)
    vocabulary = vocabulary_of(tokenizer, source)
    texts = [*scale.texts.values()]

    @torch.no_grad()
    def read(
        index: list[int], inputs: Any, prefix_ids: list[int], kept: list[list[int]]
    ) -> list[ScoreReading]:
        ids = [
            [tuple(encode_after(tokenizer, prompts[i], row, text)) for text in texts]
            for i, row in zip(index, kept, strict=True)
        ]
        unknown = getattr(tokenizer, "unk_token_id", None)
        for of_prompt in ids:
            if any(unknown in path for path in of_prompt) or len({*of_prompt} - {()}) < len(texts):
                raise ValueError(f"levels: the tokenizer does not write {texts} with different tokens each")
        tokens = _Tokens(vocabulary, scale.levels, [dict(zip(texts, each, strict=True)) for each in ids])
        root = source.continuations(inputs, tokens.texts, prefix_ids)
        starts = [(i, ()) for i in range(len(index))]
        found = walk_levels(functools.partial(tokens.after, root), starts, scale.levels, rest_is_known=True)
        readings = [reading_of(shares, scale.values) for shares in found]
        rare = [i for i, reading in enumerate(readings) if reading.none > MOST_NONE]
        if rare:
            shown = likeliest_after(root, rare[0], vocabulary)
            warn_caller(
                f"after {len(rare)} of {len(readings)} prompts the model hardly answers with a level (with "
                f"probability {1 - readings[rare[0]].none:.2g} after one, where {shown} is likeliest): end "
                "the prompt or prefill where the score begins. Where digits or a point follow the level, "
                "train the model on labels that end with the end token",
                UnlikelyNumberWarning,
            )
        return readings

    endings, most = [["", *texts]] * len(prompts), max(1, _MOST_ROWS // len(texts))
    readings = read_each(source, processor, prompts, endings, read, most=most)
    return readings[0] if single else readings


class _Tokens:
    """Asks a model about tokens that write a level, or make another number of it; see `walk_levels`.

    A number is written by any tokens of its digits, a word as the tokenizer writes it, for each prompt by the
    tokens `ids`. The state of a text is its prompt and its tokens.
    """

    def __init__(
        self, vocabulary: NumberVocabulary, levels: Mapping[str, Any], ids: Sequence[Mapping[str, _Path]]
    ) -> None:
        self.levels, known = levels, vocabulary.texts
        numbers = [name for name in levels if name[-1].isdigit()]
        parts = {name[i:j] for name in numbers for i in range(len(name)) for j in range(i + 1, len(name) + 1)}
        written = {i for of_prompt in ids for path in of_prompt.values() for i in path}
        written |= {i for i, text in known.items() if text.strip().replace(",", ".") in {*parts, "."}}
        digits = {i for i, text in known.items() if DIGIT.match(text)}
        decimals = {i for i, text in known.items() if text[:1] in (".", ",") and DIGIT.match(text[1:])}
        zeros = {i for i in digits | decimals if not known[i].strip("0.,")}
        self.texts = {i: known.get(i) or vocabulary.text_of(i) or "" for i in written | digits | decimals}
        self.columns = {token: i for i, token in enumerate(sorted(self.texts))}
        self.by_text: dict[str, list[int]] = {}
        for i in sorted(written):
            self.by_text.setdefault(self.texts[i], []).append(i)
        # What makes another number of a level without a point (`0`, `.5`), and with one.
        self.others = (digits | decimals - zeros, digits - zeros)
        columns = [[self.columns[i] for i in ids] for ids in self.others]
        self.other_columns = [torch.tensor(each, dtype=torch.int64) for each in columns]
        # Of each prompt: after the first tokens of a level, each next one with the text so far.
        self.longer = [dict[_Path, dict[int, str]]() for _ in ids]
        for longer, of_prompt in zip(self.longer, ids, strict=True):
            whole = {path: name for name, path in of_prompt.items()}
            begun: dict[_Path, str] = {(): ""}
            names: dict[_Path, list[str]] = {}
            for path, name in whole.items():
                for n in range(1, len(path) + 1):
                    names.setdefault(path[:n], []).append(name)
            for path in sorted(names, key=len):
                text = (begun[path[:-1]] + self.texts[path[-1]]).lstrip()
                # A token may be a part of a character, or be decoded with a space before it.
                if not all(name.startswith(text) for name in names[path]):
                    text = os.path.commonprefix([*names[path], min(names[path], key=len)[:-1]])  # noqa: RUF071
                begun[path] = whole.get(path, text)
                longer.setdefault(path[:-1], {})[path[-1]] = begun[path]

    def after(self, root: Continuations, nodes: Sequence[Node]) -> list[list[tuple[str, float, Any]] | None]:
        """Return what may follow each text; None for a word that begins no longer level."""
        asked = [
            any(name.startswith(text) and name != text for name in self.levels)
            or text[-1] in ".,"
            or text[-1].isdigit()
            for text in (node.text.lstrip() for node in nodes)
        ]
        if not any(asked):
            return [None] * len(nodes)
        ids = torch.tensor([*self.columns], device=root.device)
        shares = root.next_tokens([node.state for node in compress(nodes, asked)], ids).exp().cpu()
        others = torch.stack([shares[:, of_kind].sum(-1) for of_kind in self.other_columns], -1)
        found = zip(shares.tolist(), others.tolist(), strict=True)
        return [
            self._pieces(node, *next(found)) if is_asked else None
            for node, is_asked in zip(nodes, asked, strict=True)
        ]

    def _pieces(
        self, node: Node, shares: Sequence[float], others: Sequence[float]
    ) -> list[tuple[str, float, Any]]:
        (prompt, path), text = node.state, node.text.lstrip()
        rests = [name[len(text) :] for name in self.levels if name.startswith((text, text.replace(",", ".")))]
        pieces = {rest[:n] for rest in rests for n in range(1, len(rest) + 1)}
        pieces |= {piece.replace(".", ",") for piece in pieces}
        if not path:
            pieces |= {" " + piece for piece in pieces}
        is_number = text[-1:].isdigit() or text[-1:] in (".", ",")
        pieces |= {".", ","} if is_number else set()
        tokens = {token: piece for piece in pieces for token in self.by_text.get(piece, ())}
        written = tokens | {
            token: longer[len(text) :] for token, longer in self.longer[prompt].get(path, {}).items()
        }
        found = [
            (piece, shares[self.columns[t]], (prompt, (*path, t))) for t, piece in sorted(written.items())
        ]
        if is_number:
            has_point = "." in text or "," in text
            counted = sum(shares[self.columns[token]] for token in {*tokens} & self.others[has_point])
            return [*found, (_ANOTHER, max(others[has_point] - counted, 0.0), None)]
        return found
