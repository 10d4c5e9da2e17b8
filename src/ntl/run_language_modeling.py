"""The paper's program under its published name: the same as `ntl train`.

    python src/ntl/run_language_modeling.py model_args=vanilla_t5 training_args=train \
        run_specific_config@_global_=debug_config
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts a script's folder first on the import path; its modules would shadow installed packages.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from ntl.__main__ import main

    sys.exit(main(["train", *sys.argv[1:]]))
