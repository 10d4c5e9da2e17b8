"""Check a configuration's values: what each key expects, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import inf
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from ntl.config.compose import choices
from ntl.config.known_keys import SIZES
from ntl.config.paper_keys import (
    LOSS_OF_MODEL,
    NUMBER_ENCODINGS,
    NUMBER_TOKEN_LOSS_FUNCTIONS,
    TOKENIZER_TYPES,
)
from ntl.config.settings import FAMILIES, NUMBER_FORMATS, READINGS
from ntl.errors import UserError
from ntloss import criterion_names


class Rule(NamedTuple):
    """A rule for a value.

    `expected` describes valid values in error messages; `example` is one, as the user writes it.
    """

    expected: str
    example: Any
    fits: Callable[[Any], bool]


def check_values(config: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """Check the values of a composed configuration.

    Args:
        config: A composed configuration, whose keys are known.
        files: The same configuration without the overrides. A key that has no rule, and is true or false
            here, accepts only true and false.

    Raises:
        UserError: A value is invalid. The message says what was given, what is expected, and an example.
    """
    rules = _rules()
    if "dataset_args" in config:
        of_data = _data_rules(config["dataset_args"], files["dataset_args"]["dataset_name"])
        rules = {**rules, **{f"dataset_args.{key}": rule for key, rule in of_data.items()}}
    else:  # `ntl prepare`, which has no sections
        rules = {**rules, **_data_rules(config)}
    if "training_args" in config:
        rules = {**rules, **_training_rules()}
    sections = {f"{name}.": content for name, content in files.items() if isinstance(content, Mapping)}
    for section, defaults in {"": files, **sections}.items():
        for name, value in (config[section[:-1]] if section else config).items():
            rule = rules.get(section + name, BOOLEAN if isinstance(defaults.get(name), bool) else None)
            if rule is not None and not rule.fits(value):
                raise UserError(
                    f"{section}{name} is {value!r}; expected {rule.expected}. Pass for example "
                    f"{section}{name}={rule.example}."
                )


def one_of(*names: str) -> Rule:
    """Return a rule that accepts one of several names."""
    return Rule(f"one of: {', '.join(names)}", names[0], lambda value: value in names)


def whole_number(least: int, example: int, most: float = inf) -> Rule:
    """Return a rule that accepts a whole number from `least` to `most`."""
    bounds = f"of at least {least}" if most == inf else f"from {least} to {most}"
    return Rule(f"a whole number {bounds}", example, lambda v: type(v) is int and least <= v <= most)


def number(example: float, above: float = -inf, least: float = -inf, below: float = inf) -> Rule:
    """Return a rule that accepts a number within bounds: `least` itself, but not `above` and `below`."""
    named = {"above": above, "at least": least, "below": below}
    bounds = " and ".join(f"{word} {bound:g}" for word, bound in named.items() if abs(bound) < inf)
    return Rule(
        f"a number that is {bounds}",
        example,
        lambda v: type(v) in (int, float) and above < v < below and v >= least,
    )


def or_null(rule: Rule, meaning: str = "") -> Rule:
    """Return a rule that accepts null too."""
    null = f"null ({meaning})" if meaning else "null"
    return Rule(f"{null} or {rule.expected}", rule.example, lambda v: v is None or rule.fits(v))


def list_of(item: Rule, example: str) -> Rule:
    """Return a rule that accepts a non-empty list without duplicates."""

    def fits(values: Any) -> bool:
        good = isinstance(values, list) and bool(values) and all(map(item.fits, values))
        return good and len(set(values)) == len(values)

    expected = f"a non-empty list without duplicates, in which each item is {item.expected}"
    return Rule(expected, example, fits)


def mapping(example: str) -> Rule:
    """Return a rule that accepts keys and values."""
    return Rule("keys and values", example, lambda value: isinstance(value, Mapping))


BOOLEAN = Rule("true or false", "true", lambda value: isinstance(value, bool))
COUNT = whole_number(1, 8)
SEED = whole_number(0, 1, 2**32 - 1)
NOT_NEGATIVE = number(0.1, least=0)
TEXT = Rule("a non-empty string", "text", lambda value: isinstance(value, str) and value != "")
FOLDER = TEXT._replace(expected="the path of a folder", example="some/folder")
MODEL = TEXT._replace(expected="a folder or a name on the hub", example="google-t5/t5-small")


@cache
def _rules() -> dict[str, Rule]:
    """Map keys to rules. Approaches and transformers check the other values."""
    objectives = [*choices("loss"), *choices("model_args")]
    objective = Rule(
        f"overrides such as 'loss=ntl_was loss.weight=0.8', or one of: {', '.join(objectives)}", "ce",
        lambda value: isinstance(value, str) and ("=" in value or value in objectives),
    )  # fmt: skip
    return {
        "objectives": list_of(objective, "[ce,ntl_was]"),
        "seeds": list_of(SEED, "[0,1,2]"),
        "jobs": or_null(COUNT, "one per core"),
        "output_dir": FOLDER,
        "model_args.family": one_of(*FAMILIES),
        "model_args.number_encoding": one_of(*NUMBER_ENCODINGS),
        "model_args.tokenizer_type": one_of(*TOKENIZER_TYPES),
        "model_args.number_format": one_of(*NUMBER_FORMATS),
        "model_args.number_width": or_null(COUNT, "as many as the training answers need"),
        "model_args.number_places": or_null(whole_number(0, 2), "as many as the training answers need"),
        "model_args.model_name_or_path": or_null(MODEL),
        "model_args.tokenizer_name_or_path": or_null(MODEL),
        "model_args.config_name": TEXT._replace(
            expected="the name of a shape, or a folder that holds config.json", example="t5-tiny"
        ),
        "model_args.config_overrides": or_null(mapping("{dropout_rate: 0.0}")),
        "model_args.number_token_loss_weight": NOT_NEGATIVE,
        "model_args.number_token_loss_function": or_null(one_of(*NUMBER_TOKEN_LOSS_FUNCTIONS)),
        "model_args.label_smoother_sigma": number(1.0, above=0),
        "loss.criterion": or_null(one_of(*criterion_names(), LOSS_OF_MODEL)),
        "loss.options": or_null(mapping("{sigma: 1.0}")),
        "loss.weight": NOT_NEGATIVE,
        "loss.mode": one_of("add", "replace"),
        "loss.label_smoothing": number(0.1, least=0, below=1),
        "evaluation.beams": COUNT,
        "evaluation.max_new_tokens": COUNT,
        "evaluation.read": list_of(one_of(*READINGS), "[greedy,median]"),
        "evaluation.interval": number(0.9, above=0, below=1),
        "evaluation.samples": or_null(COUNT, "all"),
        "evaluation.samples_during_training": or_null(COUNT, "all"),
    }


# Settings of datasets, for training and for `ntl prepare`.
DATA_RULES = {
    **dict.fromkeys(SIZES, COUNT),
    **dict.fromkeys(("data_seed", "split_seed"), whole_number(0, 1)),
    **dict.fromkeys(("source", "destination", "cache_dir", "data_dir"), FOLDER),
    "mode": Rule("null, because only mathematics_dataset has modes", "null", lambda value: value is None),
    "hub": or_null(TEXT._replace(expected="the name of a dataset on the hub", example="openai/gsm8k")),
    "annotations": one_of("remove", "keep"),
    "validation_share": number(0.1, above=0, below=1),
    "noise": NOT_NEGATIVE,
    "weights": Rule(
        "one number per integer of the question", "[5,3,2]",
        lambda v: isinstance(v, list) and bool(v) and {*map(type, v)} <= {int, float},
    ),
    "file": TEXT._replace(expected="the path of a CSV file, or sample", example="sample"),
    "columns": or_null(list_of(TEXT, "[carat,cut]"), "all but the target"),
    "significant_digits": or_null(COUNT, "as they are written"),
}  # fmt: skip


def _data_rules(data: Mapping[str, Any], name: str = "") -> dict[str, Rule]:
    """Map the settings of a dataset to rules, some of which depend on the dataset or on other settings.

    `name` is the dataset's name in its file; the file's other settings belong to that dataset.
    """
    named = f"{name}, as in its file; to choose another dataset, pass dataset_args=NAME with one of: "
    smallest = 1 if data.get("log_scale") is True else 0  # there is no logarithm of 0
    longer = data["digits"] + 1 if type(data.get("digits")) is int else 2
    rules = {
        **DATA_RULES,
        **dict.fromkeys(("smallest", "largest", "largest_answer"), whole_number(smallest, 10)),
        "dataset_name": Rule(named + ", ".join(choices("dataset_args")), name, lambda value: value == name),
        "extrapolate_digits": whole_number(longer, longer),
    }
    if name == "mathematics_dataset":
        rules["mode"] = or_null(one_of("dataset_comparison"))
    if name == "tabular":
        rules["train_size"] = or_null(COUNT, "all rows that are left")
    if "data_seed" in data or data.get("hub"):
        rules["data_dir"] = or_null(FOLDER)
    return rules


@cache
def _training_rules() -> dict[str, Rule]:
    """Map arguments of training to rules: those that transformers does not check, or checks only late."""
    from transformers import Seq2SeqTrainingArguments

    words = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
    examples = {int: 8, float: 0.1, bool: "true"}
    rules = {}
    for key, hint in get_type_hints(Seq2SeqTrainingArguments).items():
        kinds = get_args(hint) or (hint,)
        if {*kinds} <= {*words}:
            accepted = {*kinds, int} if float in kinds else {*kinds}
            expected = " or ".join(words[kind] for kind in kinds)
            rules[key] = Rule(expected, examples[kinds[0]], lambda v, accepted=accepted: type(v) in accepted)
    sizes = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
    rules |= dict.fromkeys(sizes, COUNT)
    rules |= dict.fromkeys(("learning_rate", "weight_decay", "max_grad_norm"), NOT_NEGATIVE)
    rules |= dict.fromkeys(("warmup_steps", "logging_steps", "save_steps"), NOT_NEGATIVE)
    rules |= {
        "eval_steps": or_null(NOT_NEGATIVE, "logging_steps"),
        "num_train_epochs": number(3, above=0),  # with -1, transformers finishes without training
        "max_steps": Rule(
            "a whole number of at least 1, or -1 with training_args.num_train_epochs", 1000,
            lambda v: COUNT.fits(v) or v == -1,
        ),
        "seed": SEED,
        "output_dir": or_null(FOLDER),
        "lr_scheduler_kwargs": or_null(mapping("{factor: 0.5}")),
        "resume_from_checkpoint": Rule(
            "true, null or a checkpoint's folder", "true", lambda v: isinstance(v, bool | str | None)
        ),
    }  # fmt: skip
    return {f"training_args.{key}": rule for key, rule in rules.items()}
