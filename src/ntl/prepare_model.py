"""`ntl prepare model`: write a pretrained model with its tokenizer into a folder.

ntl prepare model SmolLM2-135M-Instruct.Q4_1.gguf models/smollm2
"""

from collections.abc import Sequence
from pathlib import Path

from ntl.errors import UserError
from ntl.program import HELP_OPTIONS, run_program

HELP = """\
usage: ntl prepare model SOURCE FOLDER

Write a pretrained model and its tokenizer into a folder that every program loads without a network.
A second call finds the model and does nothing.

  SOURCE   a .gguf file, a folder or a name on the hub
  FOLDER   a new folder, for model_args.model_name_or_path=FOLDER

  ntl prepare model SmolLM2-135M-Instruct.Q4_1.gguf models/smollm2
  ntl prepare model HuggingFaceTB/SmolLM2-135M-Instruct models/smollm2"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on a source and a folder; see `ntl.program.run_program`."""
    return run_program("ntl prepare model", _prepare, arguments, "Nothing was changed.")


def _prepare(arguments: Sequence[str]) -> int:
    if not arguments or HELP_OPTIONS & {*arguments}:
        print(HELP)
        return 0
    if len(arguments) != 2:
        raise UserError(
            f"{' '.join(arguments)}: expected two arguments, SOURCE and FOLDER. "
            "See `ntl prepare model --help`."
        )
    source, folder = arguments
    from ntl.approaches.convert import write_model  # slow: transformers

    is_new = write_model(source, Path(folder).expanduser(), "SOURCE")
    print(f"{source} is in {folder}" + ("" if is_new else " already: nothing to do") + ".")
    return 0
