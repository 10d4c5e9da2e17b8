"""Check a release: `make release-check`.

    python tools/release_check.py            # with the oldest and the newest torch
    python tools/release_check.py newest     # the oldest brings several GB of CUDA packages

Builds sdist and wheel in dist/, checks them, and installs the wheel in a fresh environment for each torch.
There it runs README's code and the `ntloss` command, and measures how long `import ntloss` takes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = {"oldest": "constraints-oldest.txt", "newest": "constraints.txt"}
IN_SDIST = {"docs/evidence.md", "tests/tolerances.py", "Makefile", "studies/pretrained/README.md"}
MOST_IMPORT_TIME = 1.15  # of `import torch`
IMPORTS = """from time import perf_counter as now
start = now(); import torch; middle = now(); import ntloss; print((now() - start) / (middle - start))"""


def main() -> None:
    """Check the release; a defect ends the program with a message."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", ROOT / "dist", ROOT)
    (wheel,), (sdist,) = (ROOT / "dist").glob("*.whl"), (ROOT / "dist").glob("*.tar.gz")
    print(run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist))
    check_sdist(sdist)
    for torch in sys.argv[1:] or CONSTRAINTS:
        with tempfile.TemporaryDirectory(prefix="ntloss-release-") as folder:
            try_wheel(wheel, ROOT / CONSTRAINTS[torch], Path(folder))
    print(f"{wheel.name} can be released")


def require(holds: bool, defect: str) -> None:
    """End the program with the defect unless the condition holds."""
    if not holds:
        sys.exit(f"release-check: {defect}")


def run(*command: str | Path, cwd: Path = ROOT, code: int = 0) -> str:
    """Run a command without the repository's source, and return what it prints; require its exit code."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    shown = f"{' '.join(done.args)}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
    require(done.returncode == code, shown)
    return done.stdout.strip()


def check_sdist(sdist: Path) -> None:
    """Check that the sdist has what the tests need, and no results. Tests check versions and wheel."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = {*IN_SDIST, *CONSTRAINTS.values(), "CITATION.cff"} - names
    require(not missing, f"the sdist lacks {', '.join(sorted(missing))}")
    require(not any(name.startswith("results/") for name in names), "the sdist holds results")


def try_wheel(wheel: Path, constraints: Path, folder: Path) -> None:
    """Install the wheel in a fresh environment in `folder`, and use it."""
    run(sys.executable, "-m", "venv", folder / "venv")
    python, command = folder / "venv/bin/python", folder / "venv/bin/ntloss"
    install = (python, "-m", "pip", "install", "--quiet", "-c", constraints)
    run(*install, f"ntloss @ {wheel.as_uri()}", cwd=folder)
    version = run(command, "--version", cwd=folder)
    require(version.startswith("ntloss "), f"`ntloss --version` prints {version}")
    run(command, "inspect", "no-such-folder/", cwd=folder, code=2)
    run(folder / "venv/bin/ntl", "train", cwd=folder, code=2)  # asks for the extra
    ratio = statistics.median([float(run(python, "-c", IMPORTS, cwd=folder)) for _ in range(6)][1:])
    took = f"{constraints.name}: `import ntloss` takes {ratio:.3f} of `import torch`"
    require(ratio <= MOST_IMPORT_TIME, took)
    run(*install, f"ntloss[transformers] @ {wheel.as_uri()}", cwd=folder)
    imported = run(python, "-c", "import ntloss; print(ntloss.__file__)", cwd=folder)
    require(Path(imported).is_relative_to(folder), f"{imported} is imported, not the wheel")
    run(python, ROOT / "tests/pages.py", cwd=folder)
    print(f"{took}; README's code runs")


if __name__ == "__main__":
    main()
