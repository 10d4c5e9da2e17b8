"""LoRA (Hu et al., 2021): train small additions to all linear layers, and merge them at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

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
