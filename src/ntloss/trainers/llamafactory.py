"""A number-aware loss in LLaMA-Factory 0.9.5: a command in place of `llamafactory-cli train`.

    python -m ntloss.trainers.llamafactory train config.yaml

The keys `ntl_weight`, `ntl_criterion`, ... of the YAML file, or of the command line, are
`ntloss.trainers.plug_ins.Options`; all others are LLaMA-Factory's.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

from ntloss.trainers.plug_ins import PREFIX, Options

# Options of LLaMA-Factory whose models do not return the logits that a loss needs, or run elsewhere.
_REFUSED = ("enable_liger_kernel", "use_unsloth", "use_ray")


def run_exp(args: dict[str, Any], **options: Any) -> None:
    """Run LLaMA-Factory's `run_exp` with a number-aware loss, in the stages `sft` and `pt`.

    Args:
        args: LLaMA-Factory's arguments.
        options: see `ntloss.trainers.plug_ins.Options`.

    Raises:
        TypeError, ValueError: an unknown or invalid option; another stage; an argument with another loss.
    """
    of_loss = Options(**options)
    from llamafactory.train import tuner
    from llamafactory.train.pt import workflow as of_pt
    from llamafactory.train.sft import workflow as of_sft

    refused = [name for name in _REFUSED if args.get(name)]
    if refused or args.get("stage", "sft") not in ("sft", "pt"):
        raise ValueError(
            f"{', '.join(refused) or 'stage'}: expected stage sft or pt, without {', '.join(_REFUSED)}, "
            "which would train without the number term"
        )

    def number_aware(module: Any, name: str) -> Any:
        trainer_class = getattr(module, name)
        return mock.patch.object(
            module, name, lambda *own, **given: of_loss.apply(trainer_class(*own, **given))
        )

    # LLaMA-Factory has no hook for a trainer or a loss, so its workflows get trainers that are number-aware.
    with number_aware(of_pt, "CustomTrainer"), number_aware(of_sft, "CustomSeq2SeqTrainer"):
        tuner.run_exp(args)


def main() -> None:
    """Run `llamafactory-cli train` with a number-aware loss."""
    from llamafactory.hparams import read_args

    if sys.argv[1:2] != ["train"] or len(sys.argv) < 3:
        sys.exit("usage: python -m ntloss.trainers.llamafactory train config.yaml [key=value ...]")
    sys.argv.pop(1)
    args = read_args()
    if not isinstance(args, dict):
        sys.exit("expected a YAML or JSON file with LLaMA-Factory's arguments after `train`")
    ours = {key: args.pop(key) for key in list(args) if key.startswith(PREFIX)}
    run_exp(args, **vars(Options.of_keys(ours)))


if __name__ == "__main__":
    main()
