"""Noise in the processes that tests start under `--rounding` (rounding.py): Python imports this first."""

import importlib
import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder


class _AfterTorch(MetaPathFinder):
    """Installs the noise at the end of the import of torch, in processes that import it.

    Some packages only ask where torch is, before they import it: the finder stays until torch is loaded.
    """

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_install(module):
                load(module)
                sys.meta_path.remove(self)
                importlib.import_module("rounding")

            spec.loader.exec_module = load_and_install
        return spec


if "NTLOSS_TEST_ROUNDING" in os.environ:
    sys.meta_path.insert(0, _AfterTorch())
