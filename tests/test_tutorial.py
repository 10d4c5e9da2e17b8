"""The tutorial runs, and its saved outputs are those of its code.

    python tests/test_tutorial.py

executes it and saves the outputs, which takes some minutes of one core; run it after changing the tutorial.
"""

import hashlib
import importlib.metadata
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from pages import check_code

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[1]
PATH = ROOT / "examples" / "tutorial.ipynb"
NEEDED = (ROOT / ".models/smollm2", ROOT / "data/packages/vaderSentiment-3.3.2.tar.gz")
SIZES = ("TRAINING_ROWS, TEST_ROWS, EPOCHS = 300, 100, 2", "epochs=4")
SMALL = ("TRAINING_ROWS, TEST_ROWS, EPOCHS = 72, 6, 0.2", "epochs=1")
AGAIN = "run `python tests/test_tutorial.py` to save outputs of"


def read():
    return nbformat.read(PATH, as_version=4)


def execute(notebook):
    """Run the notebook and return it with the outputs; an error in a cell is raised."""
    # The file may name a kernel of another environment.
    manager = jupyter_client.AsyncKernelManager(kernel_name="python3")
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONWARNINGS"] = "ignore:IProgress not found"  # progress bars need ipywidgets
    client = nbclient.NotebookClient(notebook, km=manager, timeout=3600, coalesce_streams=True)
    client.execute(env=environment, cwd=str(PATH.parent))
    return notebook


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def fingerprint(notebook):
    """A hash of the code, which is saved with its outputs."""
    return hashlib.sha256("\n\n".join(cell.source for cell in code_cells(notebook)).encode()).hexdigest()


def kinds_of(cell):
    """Types of a cell's outputs, without warnings: after few steps, the model does not write numbers."""
    return [output.output_type for output in cell.outputs if output.get("name") != "stderr"]


@pytest.mark.slow
@pytest.mark.skipif(
    not all(path.exists() for path in NEEDED), reason="`make model data/sentiment.csv` has not been run"
)
def test_a_short_run_has_the_kinds_of_outputs_that_are_saved():
    short = read()
    for size, small in zip(SIZES, SMALL, strict=True):
        (cell,) = [cell for cell in code_cells(short) if size in cell.source]
        cell.source = cell.source.replace(size, small)
    for before, after in zip(code_cells(read()), code_cells(execute(short)), strict=True):
        kinds = [kinds_of(cell) for cell in (before, after)]
        assert kinds[0] == kinds[1], f"{AGAIN}:\n{after.source}"


def test_the_cells_compile_and_import_what_exists():
    check_code("\n".join(cell.source for cell in code_cells(read())))


@pytest.mark.parametrize(
    ("source", "installed", "command"),
    [
        ("git+https://example.org/ntloss", "0.3.2", "ntloss[regression] @ git+https://example.org/ntloss"),
        (str(ROOT), None, f"ntloss[regression] @ {ROOT.as_uri()}"),
        (str(ROOT), "1.0.0", None),
        ("an empty folder", "0.3.2", FileNotFoundError),
    ],
)
def test_the_first_cell_installs_from_an_address_or_a_clone_and_not_from_the_index(
    source, installed, command, monkeypatch
):
    def version(name):
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    commands = []
    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.setattr("subprocess.run", lambda command, check: commands.append(command[-1]))
    cell = code_cells(read())[0].source.replace('SOURCE = ".."', f'SOURCE = "{source}"')
    with pytest.raises(command) if command is FileNotFoundError else nullcontext():
        exec(cell, {})
    assert commands == ([command] if isinstance(command, str) else [])


def test_the_saved_outputs_are_of_a_complete_run_of_this_code_and_name_no_machine():
    notebook = read()
    cells = code_cells(notebook)
    nbformat.validate(notebook)
    assert notebook.metadata.get("outputs_of") == fingerprint(notebook), f"{AGAIN} the changed code"
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert "stderr" not in [output.get("name") for cell in cells for output in cell.outputs]
    assert notebook.cells[-1].cell_type == "code"  # it ends with a picture
    assert "image/png" in notebook.cells[-1].outputs[-1]["data"]
    text = PATH.read_text()
    assert not [folder for folder in ("/tmp", "/home", "/root", "/Users", "site-packages") if folder in text]


if __name__ == "__main__":
    executed = execute(read())
    # Without times, names of environments, progress bars and warnings.
    executed.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "outputs_of": fingerprint(executed),
    }
    for cell in executed.cells:
        cell.metadata = {}
    for cell in code_cells(executed):
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(executed, PATH)
