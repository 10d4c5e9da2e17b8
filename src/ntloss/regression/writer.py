"""A language model that writes answers of one width after questions: its training, and what it believes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ntloss import NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.reading import UnlikelyNumberWarning, number_quantiles
from ntloss.reading.prompts import pad
from ntloss.upper_layers import UpperLayers, copy_views

LAYERS = 4  # that are trained by train="upper_layers"
LONGEST = 256  # tokens of a question; of a longer one, the middle is left out
KEPT = 4e9  # bytes of the frozen layers' output that are kept in memory
TOKENS = 1024  # of a pass without gradients
_LORA: dict[str, Any] = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
_LAST = 32  # tokens of a long question's end that are kept


@dataclass(frozen=True)
class Rows:
    """Questions and answers as tokens.

    Args:
        questions: token ids of each question.
        answers: `[rows, slots]`, index of each character in its slot.
        states: for each row, the frozen layers' output for the question and all of the answer but its last
            token, `[tokens, width]`; None if no layer is frozen.
    """

    questions: list[list[int]]
    answers: Tensor
    states: list[Tensor] | None = None

    def __len__(self) -> int:
        return len(self.questions)

    def take(self, index: Sequence[int]) -> Rows:
        """Select rows."""
        states = None if self.states is None else [self.states[i] for i in index]
        return Rows([self.questions[i] for i in index], self.answers[list(index)], states)


class Beliefs(NamedTuple):
    """What a model believes about true answers; each `[rows]`, float64."""

    below: Tensor  # the probability of smaller numbers than the true one
    upto: Tensor  # the probability of the true number and smaller ones
    crps: Tensor  # the continuous ranked probability score between the rows' smallest and largest answer


class Writer:
    """A causal language model and the tokens with which it writes numbers of one width, one for each slot.

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer, with a token for each digit.
        form: how numbers are written.

    Raises:
        ValueError: the tokenizer has no token for a character of the numbers.
    """

    def __init__(self, model: Any, tokenizer: Any, form: NumberFormat) -> None:
        self.model, self.tokenizer, self.form = model, tokenizer, form
        characters = sorted({character for slot in form.slots for character in slot})
        ids = {}
        for character in characters:
            ids[character] = tokenizer.convert_tokens_to_ids(character)
            if ids[character] in (None, tokenizer.unk_token_id):
                raise ValueError(
                    f"model: the tokenizer of {model.name_or_path} has no token {character!r}; expected a "
                    "model with a token for each digit, the point and the signs"
                )
        width = model.get_output_embeddings().weight.shape[0]
        self.vocabulary = NumberVocabulary.from_mapping({i: text for text, i in ids.items()}, width)
        self.slot_ids = [torch.tensor([ids[each] for each in slot]) for slot in form.slots]
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self.upper: UpperLayers | None = None
        self._lora: Any = None

    def adapt(self, weights: str) -> None:
        """Choose the weights that are trained: "upper_layers", "lora" or "all"."""
        if weights == "upper_layers":
            layers = find_layers(self.model)
            self.model.requires_grad_(False)
            for layer in layers[-LAYERS:]:
                layer.requires_grad_(True)
            self.upper = UpperLayers(self.model, layers, LAYERS)
        elif weights == "lora":
            from peft import LoraConfig, LoraModel

            head = [name for name, m in self.model.named_modules() if m is self.model.get_output_embeddings()]
            self._lora = LoraModel(self.model, LoraConfig(**_LORA, exclude_modules=head), "default")
        else:
            self.model.requires_grad_(True)

    def finish(self) -> Any:
        """Return the model as transformers saves it."""
        if self._lora is not None:
            self.model = self._lora.merge_and_unload()
        return self.model.requires_grad_(False)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    def prompts(self, questions: Sequence[str]) -> list[list[int]]:
        """Encode questions; of a very long one, the middle is left out."""
        rows = self.tokenizer([*questions])["input_ids"] if questions else []
        end = self.tokenizer.eos_token_id
        rows = [row[:-1] if row[-1:] == [end] else row for row in rows]
        return [r if len(r) <= LONGEST else r[: LONGEST - _LAST] + r[-_LAST:] for r in rows]

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> Rows:
        """Encode questions and their answers, which are written in the format."""
        codes = [
            [slot.index(each) for slot, each in zip(self.form.slots, answer, strict=True)]
            for answer in answers
        ]
        return Rows(self.prompts(questions), torch.tensor(codes))

    def with_states(self, rows: Rows, progress: Callable[[Any], Any] = iter) -> Rows:
        """Add the output of the frozen layers, unless it takes too much memory."""
        if self.upper is None:
            return rows
        tokens = sum(map(len, rows.questions)) + len(rows) * (len(self.form.slots) - 1)
        if tokens * self.model.config.get_text_config().hidden_size * 4 > KEPT:
            return rows
        states: list[Tensor] = [torch.empty(0)] * len(rows)
        for index in progress(self.batches(rows.questions)):
            part = rows.take(index)
            computed = self.upper.states(self.inputs(part)).float().cpu()
            for i, question, row in zip(index, part.questions, computed, strict=True):
                # A copy: a view would keep the padding of its batch.
                states[i] = row[-(len(question) + len(self.form.slots) - 1) :].clone()
        return replace(rows, states=states)

    def batches(self, prompts: Sequence[Sequence[int]], answers: int = 1) -> list[list[int]]:
        """Divide prompts, each with a number of answers, into batches of similar length."""
        found: list[list[int]] = []
        for i in sorted(range(len(prompts)), key=lambda i: -len(prompts[i])):
            longest = len(prompts[found[-1][0]]) if found else 0
            if not found or (len(found[-1]) + 1) * (longest + answers * len(self.form.slots)) > TOKENS:
                found.append([])
            found[-1].append(i)
        return found

    def token_ids(self, rows: Rows) -> Tensor:
        """Return the tokens of the answers, `[rows, slots]`."""
        return torch.stack([ids[rows.answers[:, s]] for s, ids in enumerate(self.slot_ids)], -1)

    def inputs(self, rows: Rows) -> dict[str, Tensor]:
        """Pad questions and answers but for their last tokens on the left, as the model's arguments."""
        answers = self.token_ids(rows)[:, :-1].tolist()
        return pad([q + a for q, a in zip(rows.questions, answers, strict=True)], self.device, self.pad_id)

    def logits(self, rows: Rows) -> Tensor:
        """Compute the logits of each token of the answers, given those before it: `[rows, slots, vocab]`."""
        inputs = self.inputs(rows)
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        with self._fast_head(), self._given(rows):
            kept = self.model(**inputs, logits_to_keep=len(self.form.slots), use_cache=False)
        logits: Tensor = kept.logits
        return logits

    @contextmanager
    def _fast_head(self) -> Iterator[None]:
        hook = copy_views(self.model.get_output_embeddings())
        try:
            yield
        finally:
            hook.remove()

    def _given(self, rows: Rows) -> AbstractContextManager[None]:
        """Let the model use the states of rows, if they have any."""
        if self.upper is None or rows.states is None:
            return nullcontext()
        return self.upper.given(pad_sequence(rows.states, True, padding_side="left").to(self.device))

    def quantiles(self, prompts: Sequence[Sequence[int]], levels: Sequence[float]) -> NDArray[np.float64]:
        """Read quantiles of the numbers that follow prompts, `[prompts, levels]`.

        Args:
            prompts: token ids.
            levels: above 0 and below 1.
        """
        inputs = pad(prompts, self.device, self.pad_id)
        with warnings.catch_warnings():
            # Nothing but numbers of this format is asked for.
            warnings.simplefilter("ignore", UnlikelyNumberWarning)
            read = number_quantiles(self.model, inputs, self.vocabulary, levels, self.form)
        found: NDArray[np.float64] = read.values.cpu().numpy()
        return found

    @torch.no_grad()
    def beliefs(self, rows: Rows) -> Beliefs:
        """Find out what the model believes about the true answers, in one pass without walks.

        Given the digits before it, each digit of the true answer divides the numbers into ten cells, of which
        the model knows the probabilities. Together they are its distribution, finest around the truth. Within
        a cell it is taken to be uniform, so a cell reaches only as far as the answers of these rows: the
        positive numbers of a format with a sign and two digits are one cell, and may end at 1.6.
        """
        numbers = self._numbers(rows.answers)
        low, high = float(numbers.min()), float(numbers.max())
        found = [torch.empty(0)] * len(rows)
        for index in self.batches(rows.questions):
            part = rows.take(index)
            for i, row in zip(
                index, self._beliefs(self.logits(part), part.answers.to(self.device), low, high), strict=True
            ):
                found[i] = row
        return Beliefs(*torch.stack(found).cpu().unbind(-1))

    def _numbers(self, codes: Tensor) -> Tensor:
        """Return the numbers that are written by codes, `[rows, slots]`."""
        mantissa = torch.zeros(len(codes), dtype=torch.float64)
        sign = torch.ones_like(mantissa)
        for slot, code in zip(self.form.slots, codes.unbind(-1), strict=True):
            if len(slot) == 2:
                sign = 2.0 * code - 1
            elif len(slot) == 10:
                mantissa = 10 * mantissa + code
        numbers: Tensor = sign * mantissa / 10**self.form.decimals
        return numbers

    def _beliefs(self, logits: Tensor, codes: Tensor, low: float, high: float) -> Tensor:
        mass = logits.new_ones(len(codes), dtype=torch.float64)
        below, above, crps = (torch.zeros_like(mass) for _ in range(3))
        negative = torch.zeros(len(codes), dtype=torch.bool, device=codes.device)
        size = 10.0**self.form.digits  # of a cell, in units
        start = torch.zeros_like(mass) - size * self.form.signed  # of the first cell
        for slot, ids in enumerate(self.slot_ids):
            if len(ids) == 1:
                continue  # the point
            chosen = logits[:, slot, ids.to(logits.device)].double().softmax(-1) * mass[:, None]
            code = codes[:, slot]
            if len(ids) == 10:
                size /= 10
                # In negative numbers, the largest digit is the smallest number.
                chosen = torch.where(negative[:, None], chosen.flip(-1), chosen)
                code = torch.where(negative, 9 - code, code)
            else:
                negative = code == 0
            cells = torch.arange(len(ids), device=codes.device)
            is_below, is_above = cells < code[:, None], cells > code[:, None]
            starts = start[:, None] + size * cells
            lengths = ((starts + size).clamp(max=high) - starts.clamp(min=low)).clamp(min=0)
            under = torch.where(is_below, chosen, 0).cumsum(-1) + below[:, None]
            over = torch.where(is_above, chosen, 0).flip(-1).cumsum(-1).flip(-1) + above[:, None]
            crps += (_square(under - chosen, under) * is_below * lengths).sum(-1)
            crps += (_square(over - chosen, over) * is_above * lengths).sum(-1)
            start = start + size * code
            mass = chosen.gather(-1, code[:, None]).squeeze(-1)
            below, above = under[:, -1], over[:, 0]
        crps += (_square(below, below + mass / 2) + _square(above, above + mass / 2)) * size / 2
        return torch.stack([below, 1 - above, crps], -1)


def _square(low: Tensor, high: Tensor) -> Tensor:
    """Integrate the square of a function that rises linearly from low to high between 0 and 1."""
    return (low * low + low * high + high * high) / 3


def find_layers(model: Any) -> nn.ModuleList:
    """Find the list of a causal language model's layers."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(
        f"train='upper_layers': the {count} layers of {type(model).__name__} cannot be found; "
        "pass train='all'"
    )
