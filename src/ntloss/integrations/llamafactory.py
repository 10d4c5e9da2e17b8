"""A number token loss in LLaMA-Factory: a callback, and a command in place of `llamafactory-cli train`.

    python -m ntloss.integrations.llamafactory train config.yaml

The keys `ntl_weight`, `ntl_criterion`, `ntl_normalize_by`, ... of the YAML file, or of the command line, are
options of the loss; all others are LLaMA-Factory's.
"""

from __future__ import annotations

import sys
from typing import Any

from transformers import TrainerCallback

from ntloss.integrations.options import options_from_config
from ntloss.integrations.transformers.model import NumberAwareModel, make_number_aware
from ntloss.integrations.transformers.trainer import AnnealCallback

# Options of LLaMA-Factory whose losses do not use the model's own.
_OTHER_LOSSES = ("use_dft_loss", "use_eaft_loss", "use_asft_loss", "enable_liger_kernel", "use_unsloth")


class NumberLossCallback(TrainerCallback):
    """Makes the model's loss number-aware when training starts.

    For `llamafactory.train.tuner.run_exp(args, callbacks=[NumberLossCallback(weight=0.3)])`, stages `sft` and
    `pt`. The training log's `loss` then includes the number term.

    Args:
        options: see `ntloss.integrations.options.options_from_config`: weight, criterion, normalize_by, ...

    Raises:
        TypeError, ValueError: an unknown or invalid option; see `make_number_aware` for when training starts;
            after the first step, an option of the trainer that replaces the model's loss.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options_from_config(options)
        self.handle: NumberAwareModel | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the model number-aware."""
        self.handle = make_number_aware(kwargs["model"], kwargs["processing_class"], **self.options)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Anneal a criterion with a schedule."""
        if (criterion := self.options.get("criterion")) is not None:
            AnnealCallback(criterion).on_step_begin(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check that the trainer used the loss."""
        if self.handle is not None and self.handle.terms is None:
            raise ValueError(
                "the trainer did not use the model's loss, which would train without the number term: omit "
                f"{', '.join(_OTHER_LOSSES)}, and use stage sft or pt"
            )


def main() -> None:
    """Run `llamafactory-cli train` with a number token loss."""
    try:
        from llamafactory.hparams import read_args
        from llamafactory.train.tuner import run_exp
    except ImportError as missing:
        sys.exit(f"ntloss.integrations.llamafactory needs LLaMA-Factory 0.9.5: {missing}")

    if sys.argv[1:2] != ["train"] or len(sys.argv) < 3:
        sys.exit("usage: python -m ntloss.integrations.llamafactory train config.yaml [key=value ...]")
    sys.argv.pop(1)
    args = read_args()
    if not isinstance(args, dict):
        sys.exit("expected a YAML or JSON file with LLaMA-Factory's arguments after `train`")
    ours = {key: args.pop(key) for key in list(args) if key.startswith("ntl_")}
    run_exp(args, callbacks=[NumberLossCallback(**{key.removeprefix("ntl_"): ours[key] for key in ours})])


if __name__ == "__main__":
    main()
