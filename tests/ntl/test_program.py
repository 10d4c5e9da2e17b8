"""How every program of the lab ends, whatever stops it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from published_commands import PROGRAM

import ntl
from ntl.program import run_program

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    [["-c", "from ntl.cli import main; raise SystemExit(main(['--help']))"], [PROGRAM, "--help"]],
    ids=" ".join,
)
def test_help_piped_to_head_ends_without_a_traceback(command):
    reads, writes = os.pipe()
    os.close(reads)  # as `| head -1` does after its line
    done = subprocess.run(
        [sys.executable, *command],
        stdout=writes,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={"PYTHONPATH": str(Path(ntl.__file__).parents[1])},
        timeout=120,
    )
    os.close(writes)
    assert done.stderr.decode() == ""
    assert done.returncode == 141


def test_a_broken_pipe_during_training_is_raised():
    def run(arguments):
        raise BrokenPipeError("a tracker's process is gone")

    with pytest.raises(BrokenPipeError, match="tracker"):
        run_program("ntl", run, ["train"])


def test_a_message_without_advice_ends_with_its_last_sentence(capsys):
    def run(arguments):
        raise KeyboardInterrupt

    assert run_program("ntl", run, ["report"]) == 130
    assert capsys.readouterr().err.endswith(".\n")
