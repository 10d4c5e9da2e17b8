"""Causal language models that are trained to write numbers: rows and batches, and the weights that change.

    writer = Writer(model, tokenizer, NumberFormat.of(answers))
    rows = writer.encode(writer.prompts(questions), [writer.form.write(answer) for answer in answers])
    logits = writer.logits(writer.collate(rows[:16]))

`NumberRegressor` is trained by it, and so are the decoder-only models of the lab.
"""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.hooks import RemovableHandle
from transformers import AutoModelForCausalLM, AutoTokenizer

from ntloss.engine.targets import IGNORED
from ntloss.numbers import NumberFormat, NumberVocabulary
from ntloss.reading import UnlikelyNumberWarning, number_quantiles

__all__ = [
    # prompts and answers in, batches, logits and quantiles out
    "Writer",
    "pad_left",
    "copy_views",
    # the weights that are trained
    "STATES",
    "UpperLayers",
    "Lora",
    "digest_of_weights",
]

Row = dict[str, Any]
LONGEST = 256  # tokens of a question; of a longer one, the middle is left out
_LAYERS = 4  # that are trained by "upper_layers"
_LORA: dict[str, Any] = {"r": 16, "lora_alpha": 32}
_TOKENS = 1024  # of a pass without gradients
_LAST = 32  # tokens of a long question's end that are kept

STATES = "states"  # the entry of what the frozen layers return, `[tokens, width]` in each row
KEPT = 4e9  # bytes of the frozen layers' output that are kept
_AT_ONCE = 16  # rows whose frozen layers are run together
_INPUTS = ("input_ids", "attention_mask", "position_ids")

_FILES = ("*.safetensors", "pytorch_model*.bin", "adapter_model*.bin")  # also of shards
_BLOCK = 2**20  # bytes that are read at once
_SAMPLED = 2**16  # bytes at each end of a tensor


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
            characters = sorted({*"".join(form.slots)})
            ids = tokenizer.convert_tokens_to_ids(characters)
            for character, token in zip(characters, ids, strict=True):
                if token in (None, tokenizer.unk_token_id):
                    raise ValueError(
                        f"model: the tokenizer of {model.name_or_path} has no token {character!r}; expected "
                        "a model with a token for each digit, the point and the signs"
                    )
            width = model.get_output_embeddings().weight.shape[0]
            vocabulary = NumberVocabulary.from_mapping(dict(zip(ids, characters, strict=True)), width)
            spell = None
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
        if self._spell is None:
            spelled = [self.tokenizer.convert_tokens_to_ids([*answer]) for answer in answers]
        else:
            spelled = self._spell(answers)
        labels = [ids + end for ids in spelled]
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
        rows = [{"input_ids": prompt} for prompt in prompts]
        padded = pad_left(self.model, rows, self.pad_id)
        inputs = {name: padded[name].to(self.model.device) for name in ("input_ids", "attention_mask")}
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
    ids = [torch.tensor(row["input_ids"], dtype=torch.long) for row in rows]
    padded = {
        "input_ids": pad_sequence(ids, True, pad_id, "left"),
        "attention_mask": pad_sequence([*map(torch.ones_like, ids)], True, 0, "left"),
    }
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


class _Reached(Exception):  # noqa: N818, it is no error
    """Carries the output of the last frozen layer out of a forward pass, which ends there."""


class UpperLayers:
    """Freezes all of a model but its upper layers, the norm behind them, and the given heads.

    Of an encoder-decoder, the encoder is frozen, and only decoder layers are counted. The frozen layers stay
    in evaluation mode: their dropout would make the kept output wrong.

    The frozen layers are not run for a batch that has the entry `states`, `[batch, seq, width]`: what the
    method `states` returned for it.

    Args:
        model: a language model of transformers, or a classifier of sequences; hooks are added to it.
        count: number of upper layers.
        heads: further modules that are trained. Default: none.

    Attributes:
        can_be_kept: whether the output of the frozen layers can be computed once: of causal models with such
            layers, unless a trained head shares its weights with the embeddings, so that the output changes.

    Raises:
        ValueError: the model does not have so many layers, or they cannot be found.
    """

    def __init__(self, model: Any, count: int, heads: Sequence[nn.Module] = ()) -> None:
        decoder, config = model.get_decoder(), model.config.get_text_config(decoder=True)
        known = getattr(config, "num_decoder_layers", None) or config.num_hidden_layers
        parts = [] if decoder is None else [*decoder.modules()]
        layers: Any = next((p for p in parts if isinstance(p, nn.ModuleList) and len(p) == known), None)
        if layers is None:
            raise ValueError(
                f"the layers of {type(model).__name__} cannot be found; expected one list of {known} decoder "
                "layers"
            )
        if not 1 <= count <= known:
            raise ValueError(f"the model has {known} layers; expected 1 to {known}")
        self._model, self._lower = model, layers[:-count]
        embedded = {id(weight) for weight in model.get_input_embeddings().parameters()}
        ties = any(id(weight) in embedded for head in heads for weight in head.parameters())
        self.can_be_kept: bool = len(self._lower) > 0 and not model.config.is_encoder_decoder and not ties
        norms = [  # behind the layers; one before them is called that of the embeddings
            module
            for name, module in decoder.named_children()
            if "norm" in type(module).__name__.lower() and "embed" not in name
        ]
        trained_parts = [part for module in (*layers[-count:], *norms, *heads) for part in module.modules()]
        kept = {id(weight) for part in trained_parts for weight in part.parameters(recurse=False)}
        for weight in model.parameters():
            weight.requires_grad_(id(weight) in kept)
        # Dropout has no weights: that of the trained layers stays on.
        holding = {id(part) for part in trained_parts}
        self._frozen_modules = [
            module
            for module in model.modules()
            if id(module) not in holding and not any(w.requires_grad for w in module.parameters())
        ]
        self._returns_tuple = self._skips = False
        self._hooks = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            model.register_forward_hook(self._after, always_call=True),
        ]

    def remove(self) -> None:
        """Remove the hooks from the model, whose layers stay frozen."""
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the frozen layers; return the output of the last one, `[batch, seq, width]`.

        Args:
            inputs: the model's arguments.
        """

        def stop(module: nn.Module, args: Any, output: Any) -> None:
            raise _Reached(output)

        hook = self._lower[-1].register_forward_hook(stop)
        try:
            self._model(**inputs, use_cache=False)
        except _Reached as reached:
            (output,) = reached.args
        finally:
            hook.remove()
        self._returns_tuple = isinstance(output, tuple)  # as layers of BLOOM do
        states: Tensor = output[0] if self._returns_tuple else output
        return states

    def keep_states(
        self,
        rows: Sequence[MutableMapping[str, Any]],
        collate: Callable[[Sequence[Any]], Mapping[str, Any]],
        progress: Callable[[Any], Any] = iter,
    ) -> bool:
        """Add the frozen layers' output to each row, as its entry `states`, `[tokens, width]`, float32.

        Args:
            rows: each with `input_ids`; they are changed.
            collate: makes a batch of rows that is padded on the left, as `Writer.collate` does.
            progress: called with what is iterated over, for a bar. Default: none.

        Returns:
            Whether it was added: it is not if it changes during training, or takes more than 4 GB.
        """
        width = self._model.config.get_text_config().hidden_size
        if not self.can_be_kept or sum(len(row["input_ids"]) for row in rows) * width * 4 > KEPT:
            return False
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]["input_ids"]))
        for first in progress(range(0, len(order), _AT_ONCE)):
            chosen = [rows[i] for i in order[first : first + _AT_ONCE]]
            batch = collate(chosen)
            inputs = {name: batch[name].to(self._model.device) for name in _INPUTS if name in batch}
            for row, states in zip(chosen, self.states(inputs).float().cpu(), strict=True):
                # A copy: a view would keep the padding of its batch.
                row[STATES] = states[-len(row["input_ids"]) :].clone()
        return True

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Prepare a forward pass: with states, each frozen layer returns these until `_after`."""
        for part in self._frozen_modules:
            part.training = False
        states = kwargs.pop(STATES, None)
        if states is not None:
            output = (states,) if self._returns_tuple else states
            for layer in self._lower:
                vars(layer)["forward"] = lambda *_, **__: output
            self._skips = True
        return args, kwargs

    def _after(self, *_: Any) -> None:
        if self._skips:
            for layer in self._lower:
                del vars(layer)["forward"]
            self._skips = False


_BASE = ".base_layer."  # between the names of a layer and of its own weight


class Lora:
    """Adds a trainable product of two matrices to linear layers, but trains the given heads as a whole.

    The model computes the same until it is trained. This needs peft.

    Args:
        model: a model of transformers; it is changed.
        options: arguments of peft's `LoraConfig`; by default, all linear layers are adapted.
        heads: modules of the model that are trained as a whole. Default: none.

    Raises:
        TypeError, ValueError: peft does not know an option, or cannot adapt such a model; an option adds more
            than a product to a layer's weight, as DoRA (`use_dora`) and `lora_bias` do.

    Source: Hu et al., "LoRA: Low-rank adaptation of large language models", 2021.
    """

    def __init__(self, model: Any, options: Mapping[str, Any], heads: Sequence[nn.Module] = ()) -> None:
        from peft import LoraConfig, LoraModel
        from peft.tuners.lora import LoraLayer

        own = [name for name, module in model.named_modules() if module in heads]
        config = LoraConfig(**{"target_modules": "all-linear", "exclude_modules": own or None, **options})
        self._tuner = LoraModel(model, config, "default")
        layers = [module for module in self._tuner.modules() if isinstance(module, LoraLayer)]
        if config.lora_bias or any(layer.lora_variant for layer in layers):
            raise ValueError(
                f"options={dict(options)}: expected plain LoRA, whose layers get a product of two matrices "
                "and nothing else: omit use_dora, lora_bias and other variants"
            )
        for head in heads:
            head.requires_grad_(True)

    def weights(self) -> dict[str, Tensor]:
        """Return the merged weights under the names of the model without LoRA, and LoRA's own beside them.

        A checkpoint that holds them is both a model for `from_pretrained`, and the state of training.
        """
        from peft.tuners.lora import LoraLayer

        weights = self._tuner.model.state_dict()
        for name, module in self._tuner.model.named_modules():
            if isinstance(module, LoraLayer):
                added = module.get_delta_weight("default")  # type: ignore[attr-defined]  # all subclasses have it
                weights[f"{name}{_BASE}weight"] = module.get_base_layer().weight + added
        return {name.replace(_BASE, "."): weight.detach() for name, weight in weights.items()}

    def merge(self) -> None:
        """Add the products to the model's weights, and make its layers ordinary ones again."""
        self._tuner.merge_and_unload()


def digest_of_weights(model: str | Path) -> str | None:
    """Return a digest of the files of weights in a folder, or None if it holds none, as a name on the hub.

    It tells a model from another one that takes its place by the names and sizes of the files, the names and
    shapes of the tensors, and 64 KiB at both ends of each, which training changes: reading all of a large
    model would take too long before each run. Files of other kinds than safetensors are read whole.
    """
    digest = hashlib.sha256()
    files = sorted(file for pattern in _FILES for file in Path(model).expanduser().glob(pattern))
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        if path.suffix != ".safetensors":
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
            continue
        with safe_open(path, framework="pt") as tensors:
            for name in sorted(tensors.keys()):
                tensor = tensors.get_tensor(name)  # a view of the file: only what is used is read
                digest.update(f"{name} {[*tensor.shape]} {tensor.dtype}\n".encode())
                written = tensor.flatten().view(torch.uint8)
                for end in (written[:_SAMPLED], written[-_SAMPLED:]):
                    digest.update(end.numpy().tobytes())
    return digest.hexdigest() if files else None
