"""A number token loss in LLaMA-Factory: a command in place of `llamafactory-cli train`.

    python -m ntloss.trainers.llamafactory train config.yaml

The keys `ntl_weight`, `ntl_criterion`, ... of the YAML file, or of the command line, are
options of `make_number_aware`; all others are LLaMA-Factory's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from ntloss.trainers import make_number_aware
from ntloss.trainers.share import check_options, given_vocabulary

_OPTIONS = ("weight", "criterion", "mode", "label_smoothing", "thousands", "vocabulary", "chunked")
# Options of LLaMA-Factory whose models do not return the logits that a loss needs, or run elsewhere.
_REFUSED = ("enable_liger_kernel", "use_unsloth", "use_ray")


def run_exp(args: dict[str, Any], **options: Any) -> None:
    """Run LLaMA-Factory's `run_exp` with a number-aware loss, in the stages `sft` and `pt`.

    Args:
        args: LLaMA-Factory's arguments.
        options: of `make_number_aware`: weight, criterion, mode, label_smoothing, thousands,
            chunked, and vocabulary, also as the `module:function` of a function that makes it from the
            tokenizer.

    Raises:
        TypeError, ValueError: an unknown or invalid option; another stage; an argument with another loss.
    """
    _check_names(options)
    check_options(**{name: value for name, value in options.items() if name != "chunked"})
    from llamafactory.train import tuner
    from llamafactory.train.pt import workflow as of_pt
    from llamafactory.train.sft import workflow as of_sft

    refused = [name for name in _REFUSED if args.get(name)]
    if refused or args.get("stage", "sft") not in ("sft", "pt"):
        raise ValueError(
            f"{', '.join(refused) or 'stage'}: expected stage sft or pt, without {', '.join(_REFUSED)}, "
            "which would train without the number term"
        )
    # LLaMA-Factory has no hook for a trainer or a loss, so its workflows get trainers that are number-aware.
    places = ((of_pt, "CustomTrainer"), (of_sft, "CustomSeq2SeqTrainer"))
    stock = [getattr(module, name) for module, name in places]
    try:
        for (module, name), own in zip(places, stock, strict=True):
            setattr(module, name, _number_aware(own, options))
        tuner.run_exp(args)
    finally:
        for (module, name), own in zip(places, stock, strict=True):
            setattr(module, name, own)


def _check_names(given: Iterable[str], prefix: str = "") -> None:
    """Raise a TypeError for names that are no options; the user writes each option with this prefix."""
    expected = [f"{prefix}{name}" for name in _OPTIONS]
    if unknown := sorted({*given} - {*expected}):
        raise TypeError(f"{', '.join(unknown)}: expected {', '.join(expected)}")


def _number_aware(trainer_class: Any, options: dict[str, Any]) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        trainer = trainer_class(*args, **kwargs)
        given = dict(options)
        if "vocabulary" in given:
            given["vocabulary"] = given_vocabulary(given["vocabulary"], trainer.processing_class)
        make_number_aware(trainer, **given)
        return trainer

    return make


def main() -> None:
    """Run `llamafactory-cli train` with a number token loss."""
    try:
        from llamafactory.hparams import read_args
    except ImportError as missing:
        sys.exit(f"ntloss.trainers.llamafactory needs LLaMA-Factory 0.9.5: {missing}")

    if sys.argv[1:2] != ["train"] or len(sys.argv) < 3:
        sys.exit("usage: python -m ntloss.trainers.llamafactory train config.yaml [key=value ...]")
    sys.argv.pop(1)
    args = read_args()
    if not isinstance(args, dict):
        sys.exit("expected a YAML or JSON file with LLaMA-Factory's arguments after `train`")
    ours = {key: args.pop(key) for key in list(args) if key.startswith("ntl_")}
    _check_names(ours, "ntl_")
    run_exp(args, **{key.removeprefix("ntl_"): value for key, value in ours.items()})


if __name__ == "__main__":
    main()
