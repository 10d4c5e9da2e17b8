"""How every program of the lab runs, and prints the errors that its user can fix."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn

from ntl.errors import UserError, unknown_key
from ntl.terminal import print_error, print_keys

HELP_OPTIONS = {"-h", "--help"}
# Hydra refuses `+` before a key that exists; the paper's commands have it before this one.
WITH_PLUS = "+model_args.number_token_loss_function="
TEXTS = ("dataset_args.prompt", "dataset_args.target", "model_args.separator")
# Hydra deletes a group with ~; objectives and presets are empty instead, because sweeps choose among them.
GROUPS = (
    "dataset_args", "model_args", "weights", "loss", "training_args", "evaluation", "objective", "preset",
    "run_specific_config@_global_",
)  # fmt: skip
STUDY = "study"  # the choice of the group preset that a file becomes, whatever its name
NO_GROUP = {f"{group}=null": f"~{group}" for group in ("dataset_args", "model_args", "weights", "loss")}
NO_GROUP |= {f"{group}=null": f"{group}=none" for group in ("objective", "preset")}


def run_program(
    name: str,
    program: Callable[[Sequence[str]], int],
    arguments: Sequence[str] | None,
    advice: str | Callable[[], str] = "",
) -> int:
    """Run a program. If the user can fix its error, print one line instead of a traceback.

    Args:
        name: Name of the program, for messages.
        program: Function from the arguments to the exit code.
        arguments: Command-line arguments. Default: `sys.argv[1:]`.
        advice: How to continue after an interrupt, or what says so then.

    Returns:
        The exit code: the program's own, 2 for a user-fixable error, 130 if interrupted, 141 if the reader of
        `--help` closed the pipe.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = program(arguments)
        sys.stdout.flush()
        return code
    except UserError as error:
        message, code = str(error), 2
    except KeyboardInterrupt:
        message, code = f"interrupted. {advice() if callable(advice) else advice}", 130
    except BrokenPipeError:
        if not HELP_OPTIONS & {*arguments}:  # during training, the broken pipe may not be stdout
            raise
        return discard_output()
    if is_first_process():  # under torchrun every process raises the same error
        print_error(name, message)
    return code


def is_first_process() -> bool:
    """Return whether this is the process that writes and prints, under torchrun and elsewhere."""
    return os.environ.get("RANK", "0") == "0"


def discard_output() -> int:
    """Discard all that is still printed, because `| head` has closed stdout; return the exit code for it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141  # the shell's exit code for SIGPIPE


def run_hydra(command: str, task: Callable[[Any], Any], arguments: Sequence[str]) -> int:
    """Run a Hydra application, whose primary file is `conf/<command>.yaml`.

    Args:
        command: Name of the command.
        task: Hydra's task function.
        arguments: Options and overrides of Hydra. The path of a YAML file, if it comes first, is a choice of
            the group `preset`; its folder joins Hydra's search path. With `--help`, the keys of the groups
            that are chosen are printed, or else the page in that file.

    Raises:
        UserError: Hydra refuses the configuration.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    arguments = [NO_GROUP.get(each, each) for each in arguments]
    arguments = [f"+{each}" if each.startswith(WITH_PLUS) else literal(each) for each in arguments]
    if arguments and arguments[0].endswith((".yaml", ".yml")):
        arguments = [*_store_preset(Path(arguments[0])), *arguments[1:]]
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    overrides = find_overrides(arguments)
    options = [argument for argument in arguments if argument not in overrides]
    sys.argv = [sys.argv[0], *overrides, *_name_jobs_by(overrides, options), *options]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors, which are printed here
    try:
        if HELP_OPTIONS & {*options}:
            if not _print_choices(command, overrides):
                _print_page(command)
            return 0
        hydra.main(config_path="pkg://ntl.conf", config_name=command, version_base="1.3")(task)()
    except SystemExit as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_explain(error)) from None
    finally:
        sys.argv = before[0]
        if before[1] is None:
            del os.environ["HYDRA_FULL_ERROR"]
    return 0


def find_overrides(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that are overrides, side by side as argparse wants them, and not options."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        if unknown := re.search(r"unrecognized arguments: (\S+)", message):
            raise unknown_key("", unknown[1], re.findall(r"--[\w-]+", parser.format_usage()))
        raise UserError(f"{message}. Pass --hydra-help for the options.")

    parser.error = refuse  # type: ignore[method-assign]
    overrides: list[str] = parser.parse_intermixed_args(arguments).overrides
    return overrides


def _print_choices(command: str, overrides: Sequence[str]) -> bool:
    """Print the keys of each chosen group with their values and meaning; return whether there is one."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    given = [override.partition("=") for override in overrides]
    if not any(key in GROUPS for key, *_ in given):
        return False
    with initialize_config_module("ntl.conf", version_base="1.3"):
        composed = compose(command, [*overrides])
    for key, _, choice in given:
        if key in GROUPS and key in composed:
            kind = OmegaConf.get_type(composed, key)
            values = OmegaConf.to_container(composed[key], resolve=False, enum_to_str=True)
            print_keys(f"{key}={choice}", kind, values, f"{key}.")
    return True


def _print_page(command: str) -> None:
    """Print the help of a command with the choices of each group, which takes Hydra a second to collect."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    conf = Path(str(files("ntl.conf")))
    groups = []
    for group in (key.partition("@")[0] for key in GROUPS):
        stored = ConfigStore.instance().list(group) if group in ConfigStore.instance().repo else []
        names = sorted({Path(name).stem for name in (*stored, *conf.glob(f"{group}/*.yaml"))})
        groups.append(fill(f"{group}: {', '.join(names)}", 98, subsequent_indent="  "))
    page: str = OmegaConf.load(conf / f"{command}.yaml").hydra.help.template
    print(page.replace("$APP_CONFIG_GROUPS", "\n".join(groups)).rstrip())


def literal(override: str) -> str:
    """Escape `${` in texts that models read and in the target, where it stands for itself."""
    return escape(override) if override.partition("=")[0] in TEXTS else override


def escape(text: str) -> str:
    """Escape `${`, with which Hydra begins an interpolation."""
    return re.sub(r"(?<!\\)\$\{", r"\\${", text)


def load_settings(path: Path) -> Any:
    """Load a YAML file of settings as a DictConfig; a UserError says why it cannot be used."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        content, settings = yaml.safe_load(path.read_text("utf-8")), OmegaConf.load(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; expected a YAML file with settings. Correct it.") from None
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise UserError(
            f"{path} cannot be read ({reason}); expected a YAML file with settings. Correct it."
        ) from None
    if not isinstance(content, dict):
        held = "nothing" if content is None else f"the {type(content).__name__} {str(content)[:40]!r}"
        raise UserError(f"{path} holds {held}; expected settings, such as margin: 5.0. Correct it.")
    return settings


def _store_preset(path: Path) -> list[str]:
    """Make a file a choice of the group `preset`, and return the arguments that choose it."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(STUDY, load_settings(path), "preset", "_global_")
    return ["--config-dir", str(path.parent), f"preset={STUDY}"]


def _name_jobs_by(overrides: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return an override that leaves keys that are not swept out of the names of a sweep's folders."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if {"--shell-completion", "-sc"} & {*options}:
        return []
    try:
        parsed = OverridesParser.create().parse_overrides([*overrides])
    except HydraException:
        return []  # Hydra will explain it
    fixed = [f"'{override.key_or_group}'" for override in parsed if not override.is_sweep_override()]
    return [f"hydra.job.config.override_dirname.exclude_keys=[{','.join(fixed)}]"]


def _explain(error: Exception) -> str:
    """Return an error of Hydra or omegaconf in two lines, with a close key or choice."""
    cause = error.__cause__ if error.__cause__ is not None else error
    lines = [line.strip() for line in f"{error}\n{cause}".splitlines() if line.strip()]
    lines = [line for line in dict.fromkeys(lines) if not line.startswith("object_type=")]
    text = "\n".join(lines)
    known: list[str] = []
    if found := re.search(r"Available options in '[^']*':\n((?:(?!Config search).+\n?)+)", text):
        known = [line.strip() for line in found[1].splitlines()]
        lines = [lines[0], f"Available: {', '.join(known)}"]
    wrong = re.search(r"[Cc]ould not (?:find|override) '(?:[^'\n]*[/.])?([^'/.\n]+)'", text)
    parent = getattr(cause, "parent_node", None)
    if wrong and not known and parent is not None:
        known = [str(key) for key in parent]
    elif wrong and not known:
        known = [*GROUPS]
    near = difflib.get_close_matches(wrong[1], known, n=1) if wrong else []
    if near:
        return f"{lines[0]}\nDid you mean {near[0]}?"
    return "\n".join(lines[:2])
