from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import pytest
from ntl.config.comparison import load_comparison
from ntl.runs.workers import run_all


def test_a_worker_that_dies_fails_one_run_and_the_others_continue(tiny):
    overrides = ["training_args.max_steps=15", "training_args.eval_steps=15", "seeds=[0,1]"]
    runs = load_comparison([*tiny[:-1], *overrides, "objectives=[ce]", tiny[-1]]).runs
    ended, killed = {}, False
    for run, kind, content in run_all(runs, jobs=1):
        if kind != "progress":
            ended[run] = kind, content
        elif not killed:
            multiprocessing.active_children()[0].kill()
            killed = True
    assert ended["ce, seed 0"][0] == "failed"
    assert "killed by signal 9" in ended["ce, seed 0"][1]
    assert ended["ce, seed 1"][0] == "done"
    assert not multiprocessing.active_children()


@pytest.mark.skipif(os.name != "posix", reason="elsewhere Ctrl-C is no signal to a process")
def test_a_worker_leaves_ctrl_c_to_its_parent(tiny):
    # In a new process, because the first worker of each starts what the next ones are forked from.
    program = """
import multiprocessing, os, signal, sys
from ntl.config.comparison import load_comparison
from ntl.runs.workers import run_all

for _, kind, _ in run_all(load_comparison(sys.argv[1:]).runs, jobs=1):
    if kind == "progress":
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGINT)
    else:
        print(kind)
"""
    arguments = [*tiny[:-1], "seeds=[0]", "objectives=[ce]", tiny[-1]]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.split()[-1] == "done", done.stdout + done.stderr
