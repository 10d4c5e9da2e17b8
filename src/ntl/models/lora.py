"""LoRA (Hu et al., 2021): train small additions to all linear layers, and merge them at the end."""

from collections.abc import Mapping, Sequence
from typing import Any

from peft import LoraConfig, LoraModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from ntl.errors import UserError

BASE = ".base_layer."  # between the names of a layer and of its own weight


class Lora:
    """Adds a trainable product of two matrices to linear layers, but trains the given heads as a whole.

    The model computes the same until it is trained.

    Args:
        model: The model.
        options: Arguments of peft's `LoraConfig`; by default, all linear layers are adapted.
        heads: Modules that are trained as a whole.
    """

    def __init__(self, model: PreTrainedModel, options: Mapping[str, Any], heads: Sequence[nn.Module] = ()):
        own = [name for name, module in model.named_modules() if module in heads]
        try:
            config = LoraConfig(**{"target_modules": "all-linear", "exclude_modules": own or None, **options})
            self._tuner = LoraModel(model, config, "default")
        except (TypeError, ValueError) as error:
            raise UserError(f"weights.lora={dict(options)} cannot be used: {error}. Correct it.") from error
        for head in heads:
            head.requires_grad_(True)

    def weights(self) -> dict[str, Tensor]:
        """Return the merged weights under the names of the model without LoRA, and LoRA's own beside them.

        A checkpoint that holds them is both a model for `from_pretrained`, and the state of training.
        """
        weights = self._tuner.model.state_dict()
        for name, module in self._tuner.model.named_modules():
            if isinstance(module, LoraLayer):
                added = module.get_delta_weight("default")  # type: ignore[attr-defined]  # all subclasses have it
                weights[f"{name}{BASE}weight"] = module.get_base_layer().weight + added
        return {name.replace(BASE, "."): weight.detach() for name, weight in weights.items()}

    def merge(self) -> None:
        """Add the products to the model's weights, and make its layers ordinary ones again."""
        self._tuner.merge_and_unload()
