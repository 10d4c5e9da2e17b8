"""A pretrained model whose upper layers are trained on the cached output of its lower ones.

A row is a prompt and, below it, nodes of the tree of answers: each node sees the prompt and its own prefix.
One forward pass gives the logits at the prompt's end and at every node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from ntl.approaches.frozen_layers import FrozenLayers
from studies.pretrained.answers import AnswerTree

BATCH = 16


class UpperLayers(nn.Module):
    """The model, of which the upper layers and the last norm are trained, or adapters of all layers.

    Args:
        folder: A causal language model of transformers.
        layers: Number of layers that are trained.
        lora: Rank of adapters of all linear layers but the head, which are trained in their place.
    """

    def __init__(self, folder: str, layers: int, lora: int | None = None):
        super().__init__()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.frozen = FrozenLayers(self.model, layers)
        if lora is not None:  # freezes all other weights; the adapters' start is drawn
            torch.manual_seed(0)
            options = LoraConfig(r=lora, lora_alpha=2 * lora, target_modules="all-linear")
            self.model = inject_adapter_in_model(options, self.model)
        trained = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        self.trained = list(trained.values())
        self._start = [weight.detach().clone() for weight in self.trained]

    def reset(self) -> None:
        """Restore the pretrained weights."""
        with torch.no_grad():
            for weight, start in zip(self.trained, self._start, strict=True):
                weight.copy_(start)

    def forward(self, rows: Rows, chosen: Sequence[int], nodes: Tensor) -> Tensor:
        """Return the last hidden states at the prompts' ends and at nodes, `[rows, 1 + nodes, width]`.

        Args:
            rows: The rows, of which some are chosen.
            chosen: Their places.
            nodes: Nodes of each row, a path from the prompt or all of them, `[rows, nodes]`.
        """
        inputs = rows.inputs(chosen, nodes)
        if rows.are_cached:
            with self.frozen.given(rows.states(chosen, nodes, self.frozen)):
                hidden = self.model.model(**inputs, use_cache=False).last_hidden_state
        else:
            hidden = self.model.model(**inputs, use_cache=False).last_hidden_state
        return hidden[:, -1 - nodes.shape[1] :].contiguous()  # the head is several times slower on a view

    def head(self, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
        """Return the logits of some tokens, or of all."""
        weight = self.model.lm_head.weight
        return F.linear(hidden, weight if columns is None else weight[columns])


class Rows:
    """Prompts with the tree of answers below each, and the cached output of the frozen layers.

    The cache is a sparse file, filled row by row when a row is first used.

    Args:
        prompts: Token ids of each prompt.
        tree: The tree of answers.
        cache: Path of the cache, without its endings. None: the frozen layers are computed at each use.
        width: Width of the states.
    """

    def __init__(
        self, prompts: Sequence[Sequence[int]], tree: AnswerTree, cache: Path | None = None, width: int = 0
    ):
        self.prompts, self.tree = [list(prompt) for prompt in prompts], tree
        self.are_cached = cache is not None
        if cache is None:
            return
        sizes = [len(prompt) + len(tree.tokens) for prompt in self.prompts]
        self._starts = np.cumsum([0, *sizes])
        text = repr((self.prompts, tree.tokens.tolist()))
        name = f"{cache.name}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
        self._states = _open(cache.with_name(f"{name}.states"), np.float32, (int(self._starts[-1]), width))
        self._done = _open(cache.with_name(f"{name}.done"), np.bool_, (len(sizes),))

    def inputs(self, chosen: Sequence[int], nodes: Tensor) -> dict[str, Tensor]:
        """Return the model's arguments for some rows, with the prompts padded on the left.

        Args:
            chosen: Places of the rows.
            nodes: Nodes of each row, `[rows, nodes]`.
        """
        prompts = [self.prompts[place] for place in chosen]
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest, count = int(lengths.max()), nodes.shape[1]
        padding = longest - lengths
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        for row, prompt in zip(ids, prompts, strict=True):
            row[longest - len(prompt) :] = torch.tensor(prompt)
        positions = (torch.arange(longest) - padding[:, None]).clamp(min=0)
        below = lengths[:, None] - 1 + self.tree.depths[nodes]
        sees = torch.zeros(len(prompts), longest + count, longest + count, dtype=torch.bool)
        sees[:, :, :longest] = (torch.arange(longest) >= padding[:, None])[:, None]
        sees[:, :longest, :longest] &= torch.ones(longest, longest, dtype=torch.bool).tril()
        sees[:, longest:, longest:] = self.tree.above[nodes[:, :, None], nodes[:, None]]
        sees |= torch.eye(
            longest + count, dtype=torch.bool
        )  # padding sees itself: no row of the mask is empty
        return {
            "input_ids": torch.cat([ids, self.tree.tokens[nodes]], 1),
            "position_ids": torch.cat([positions, below], 1),
            "attention_mask": sees[:, None],
        }

    def states(self, chosen: Sequence[int], nodes: Tensor, frozen: FrozenLayers) -> Tensor:
        """Return the cached states of some rows, `[rows, seq, width]`, in the order of `inputs`."""
        if missing := [place for place in chosen if not self._done[place]]:
            self._fill(missing, frozen)
        longest = max(len(self.prompts[place]) for place in chosen)
        states = torch.zeros(len(chosen), longest + nodes.shape[1], frozen.width)
        for row, place, below in zip(states, chosen, nodes, strict=True):
            held = torch.from_numpy(np.array(self._states[self._starts[place] : self._starts[place + 1]]))
            length = len(self.prompts[place])
            row[longest - length : longest] = held[:length]
            row[longest:] = held[length + below]
        return states

    def _fill(self, missing: Sequence[int], frozen: FrozenLayers) -> None:
        for start in range(0, len(missing), BATCH):
            chosen = missing[start : start + BATCH]
            nodes = self.tree.all_nodes.expand(len(chosen), -1)
            found = frozen.states(self.inputs(chosen, nodes)).numpy()
            for place, row in zip(chosen, found, strict=True):
                size = self._starts[place + 1] - self._starts[place]
                self._states[self._starts[place] : self._starts[place + 1]] = row[len(row) - size :]
            self._states.flush()
            self._done[list(chosen)] = True


def _open(path: Path, dtype: type, shape: tuple[int, ...]) -> np.memmap:
    """Open a file of zeros, or the one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize))
    return np.memmap(path, dtype, "r+", shape=shape)
