"""A causal language model that writes numbers after prompts: rows, batches, logits and quantiles."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.hooks import RemovableHandle
from transformers import AutoModelForCausalLM, AutoTokenizer

from ntloss.engine.targets import IGNORED
from ntloss.numbers import NumberFormat, NumberVocabulary
from ntloss.reading import UnlikelyNumberWarning, number_quantiles
from ntloss.reading.prompts import pad
from ntloss.writing.lora import Lora
from ntloss.writing.upper_layers import STATES, UpperLayers

Row = dict[str, Any]
LONGEST = 256  # tokens of a question; of a longer one, the middle is left out
_LAYERS = 4  # that are trained by "upper_layers"
_LORA: dict[str, Any] = {"r": 16, "lora_alpha": 32}
_TOKENS = 1024  # of a pass without gradients
_LAST = 32  # tokens of a long question's end that are kept


class Writer:
    """A causal language model, and how it writes numbers.

    A row is the tokens of a prompt and of its answer, `input_ids`, and of the answer alone, `labels`.

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer.
        form: how numbers are written. None: answers have no fixed width, and the end token follows them;
            `vocabulary` and `spell` are needed then.
        vocabulary: the tokens that write numbers. Default: a token for each character of the format.
        spell: returns the tokens of each written answer. Default: a token for each character.

    Raises:
        ValueError: the tokenizer has no token for a character of the numbers; or there is no format, and
            `vocabulary` or `spell` is not given.

    Example:
        >>> form = NumberFormat(digits=2, decimals=1)
        >>> writer = Writer(model, tokenizer, form)  # doctest: +SKIP
        >>> writer.encode(writer.prompts(["Great!\\nStars: "]), [form.write(4.5)])  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        form: NumberFormat | None,
        vocabulary: NumberVocabulary | None = None,
        spell: Callable[[Sequence[str]], list[list[int]]] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.form = model, tokenizer, form
        if vocabulary is None or spell is None:
            if form is None:
                raise ValueError("form=None: vocabulary and spell are needed without a format of fixed width")
            ids = _character_ids(model, tokenizer, form)
            width = model.get_output_embeddings().weight.shape[0]
            vocabulary = NumberVocabulary.from_mapping({i: text for text, i in ids.items()}, width)
            spell = partial(_spell_characters, ids)
        self.vocabulary, self._spell = vocabulary, spell
        known = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        self.pad_id = next((i for i in known if i is not None), 0)  # any does: a mask hides it
        self.upper: UpperLayers | None = None
        self.lora: Lora | None = None
        self._hook: RemovableHandle | None = None

    @classmethod
    def from_pretrained(cls, folder: str | Path, form: NumberFormat) -> Writer:
        """Load a model in float32 with its tokenizer, on a GPU if there is one.

        Args:
            folder: folder or name on the Hugging Face hub.
            form: how numbers are written.

        Raises:
            OSError: there is no such model.
        """
        with _quiet():
            try:
                tokenizer = AutoTokenizer.from_pretrained(folder)
                model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            except OSError as error:
                raise OSError(f"the model {folder} cannot be loaded: {error}") from None
        return cls(model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer, form)

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the model and its tokenizer, as transformers does."""
        with _quiet():
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def adapt(self, train: str, seed: int = 0) -> None:
        """Choose the weights that are trained, and prepare the model for batches of `collate`.

        Args:
            train: "upper_layers" for the last four layers and the norm behind them, "lora" for LoRA on all
                layers (which needs peft), or "all".
            seed: of LoRA's weights; the state of global random numbers is left as it is. Default: 0.
        """
        if train == "upper_layers":
            layers: int = self.model.config.get_text_config().num_hidden_layers
            self.upper = UpperLayers(self.model, min(_LAYERS, layers))
        elif train == "lora":
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                self.lora = Lora(self.model, _LORA)
        else:
            self.model.requires_grad_(True)
        self._hook = copy_views(self.model.get_output_embeddings())

    def finish(self) -> None:
        """Make the adapted model an ordinary one again, whose weights are not trained."""
        if self.lora is not None:
            self.lora.merge()
        if self.upper is not None:
            self.upper.remove()
        if self._hook is not None:
            self._hook.remove()
        self.upper = self.lora = self._hook = None
        self.model.requires_grad_(False)

    def prompts(self, questions: Sequence[str]) -> list[list[int]]:
        """Encode questions without an end token; of those over 256 tokens, the middle is left out."""
        rows = self.tokenizer([*questions])["input_ids"] if questions else []
        end = self.tokenizer.eos_token_id
        rows = [row[:-1] if row[-1:] == [end] else row for row in rows]
        return [r if len(r) <= LONGEST else r[: LONGEST - _LAST] + r[-_LAST:] for r in rows]

    def encode(self, prompts: Sequence[Sequence[int]], answers: Sequence[str]) -> list[Row]:
        """Make rows of prompts and their answers.

        Args:
            prompts: token ids.
            answers: as they are written, in the format if there is one.
        """
        # An answer of fixed width ends by itself. A pretrained model does not expect its end token after a
        # digit, and in a short training the large loss of learning that comes at the numbers' cost.
        end = [] if self.form else [self.tokenizer.eos_token_id]
        labels = [ids + end for ids in self._spell(answers)]
        return [{"input_ids": [*p, *ids], "labels": ids} for p, ids in zip(prompts, labels, strict=True)]

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Pad rows on the left, so that all answers are at the end and logits are computed only there.

        The labels, `[batch, answer + 1]`, are those of the last positions, the only ones with logits: each
        predicts the next token, so the one before the answer is needed, too.

        Returns:
            The model's arguments and `labels`, on the CPU.
        """
        longest = 1 + max(len(row["labels"]) for row in rows)
        labels = [[IGNORED] * (longest - len(row["labels"])) + row["labels"] for row in rows]
        options: dict[str, Any] = {"use_cache": False}
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            options["logits_to_keep"] = longest
        return {**pad_left(self.model, rows, self.pad_id), "labels": torch.tensor(labels), **options}

    def logits(self, batch: Mapping[str, Any]) -> Tensor:
        """Compute the logits that predict the answers of a batch of `collate`, `[batch, answer, vocab]`."""
        inputs = {
            name: value.to(self.model.device) if isinstance(value, Tensor) else value
            for name, value in batch.items()
            if name != "labels"
        }
        answer = batch["labels"].shape[1] - 1
        logits: Tensor = self.model(**inputs).logits[:, -answer - 1 : -1]
        return logits

    def batches(self, prompts: Sequence[Sequence[int]], answers: int = 1) -> list[list[int]]:
        """Divide prompts, each with a number of answers of fixed width, into batches of similar length."""
        width = len(self.form.slots) if self.form else 0
        found: list[list[int]] = []
        for i in sorted(range(len(prompts)), key=lambda i: -len(prompts[i])):
            longest = len(prompts[found[-1][0]]) if found else 0
            if not found or (len(found[-1]) + 1) * (longest + answers * width) > _TOKENS:
                found.append([])
            found[-1].append(i)
        return found

    def quantiles(self, prompts: Sequence[Sequence[int]], levels: Sequence[float]) -> NDArray[np.float64]:
        """Read quantiles of the numbers that follow prompts, `[prompts, levels]`.

        Args:
            prompts: token ids.
            levels: above 0 and below 1.
        """
        inputs = pad(prompts, self.model.device, self.pad_id)
        with warnings.catch_warnings():
            # Nothing but numbers of this format is asked for.
            warnings.simplefilter("ignore", UnlikelyNumberWarning)
            read = number_quantiles(self.model, inputs, self.vocabulary, levels, self.form)
        found: NDArray[np.float64] = read.values.cpu().numpy()
        return found


def pad_left(model: Any, rows: Sequence[Mapping[str, Any]], pad_id: int) -> dict[str, Tensor]:
    """Pad rows on the left, as arguments of a causal model on the CPU.

    Args:
        model: the model, whose `forward` says whether it takes positions.
        rows: each with `input_ids`, and with the `states` of `UpperLayers` where these are kept.
        pad_id: the token that pads.

    Returns:
        `input_ids` and `attention_mask`, `[batch, seq]`, and where they apply `position_ids` and `states`.
    """
    padded = pad([row["input_ids"] for row in rows], torch.device("cpu"), pad_id)
    if "position_ids" in inspect.signature(model.forward).parameters:
        padded["position_ids"] = (padded["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    states = [row[STATES] for row in rows if STATES in row]
    return padded | ({STATES: pad_sequence(states, True, padding_side="left")} if states else {})


def copy_views(head: nn.Module) -> RemovableHandle:
    """Let a head multiply a copy of its input, on which PyTorch's CPU product is up to ten times as fast.

    With `logits_to_keep`, the input is a view.

    Returns:
        The hook, whose `remove` ends this.
    """
    return head.register_forward_pre_hook(lambda _, args: (args[0].contiguous(), *args[1:]))


def _spell_characters(ids: Mapping[str, int], texts: Sequence[str]) -> list[list[int]]:
    return [[ids[character] for character in text] for text in texts]


def _character_ids(model: Any, tokenizer: Any, form: NumberFormat) -> dict[str, int]:
    """Return the token of each character of a format."""
    ids = {}
    for character in sorted({character for slot in form.slots for character in slot}):
        ids[character] = tokenizer.convert_tokens_to_ids(character)
        if ids[character] in (None, tokenizer.unk_token_id):
            raise ValueError(
                f"model: the tokenizer of {model.name_or_path} has no token {character!r}; expected a model "
                "with a token for each digit, the point and the signs"
            )
    return ids


@contextmanager
def _quiet() -> Iterator[None]:
    """Load and save models without transformers' bars and advice."""
    level, shown = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if shown:
            transformers.logging.enable_progress_bar()
