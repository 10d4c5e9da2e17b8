from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_sharded_model_has_the_same_loss_and_answers_as_an_unsharded_one():
    worker = Path(__file__).parents[1] / "sharded_worker.py"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(worker),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
