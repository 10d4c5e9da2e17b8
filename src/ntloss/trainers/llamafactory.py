"""A number-aware loss in LLaMA-Factory 0.9.5: `python -m ntloss.trainers.llamafactory train config.yaml`.

Keys such as `ntl_weight` are `ntloss.trainers.plug_ins.Options`; all others are LLaMA-Factory's.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

from ntloss.trainers.plug_ins import PREFIX, Options

# Options of LLaMA-Factory whose models do not return the logits that a loss needs, or run elsewhere.
_REFUSED = ("enable_liger_kernel", "use_unsloth", "use_ray")


def run_exp(args: dict[str, Any]) -> None:
    """Run LLaMA-Factory's `run_exp` on its arguments and those of the loss, in the stages `sft` and `pt`.

    Raise a TypeError or ValueError for an unknown or invalid option, or an argument with another loss.
    """
    of_loss = Options.of_keys(args)
    from llamafactory.train import tuner
    from llamafactory.train.pt import workflow as of_pt
    from llamafactory.train.sft import workflow as of_sft

    refused = [name for name in _REFUSED if args.get(name)]
    if refused or args.get("stage", "sft") not in ("sft", "pt"):
        raise ValueError(f"{refused or 'stage'}: expected stage sft or pt, without {', '.join(_REFUSED)}")

    def number_aware(module: Any, name: str) -> Any:
        trainer = getattr(module, name)
        return mock.patch.object(module, name, lambda *own, **given: of_loss.apply(trainer(*own, **given)))

    # LLaMA-Factory has no hook for a trainer or a loss, so its workflows get trainers that are number-aware.
    with number_aware(of_pt, "CustomTrainer"), number_aware(of_sft, "CustomSeq2SeqTrainer"):
        tuner.run_exp({key: value for key, value in args.items() if not key.startswith(PREFIX)})


if __name__ == "__main__":
    from llamafactory.hparams import read_args

    if sys.argv[1:2] != ["train"] or len(sys.argv) < 3:
        sys.exit("usage: python -m ntloss.trainers.llamafactory train config.yaml [key=value ...]")
    del sys.argv[1]
    args = read_args()
    if not isinstance(args, dict):
        sys.exit("expected a YAML or JSON file with LLaMA-Factory's arguments after train")
    run_exp(args)
