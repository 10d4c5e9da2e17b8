"""Try the wheel and the sdist in `dist/`, as the last part of `make release-check`.

    python tools/release_check.py            # with the oldest and the newest torch
    python tools/release_check.py newest     # the oldest brings several GB of CUDA packages

Installs the wheel in a fresh environment for each torch. There it runs the commands and, with the newest
releases, README's code, which needs TRL; and it measures how long `import ntloss` takes.
"""

import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = {"oldest": "constraints-oldest.txt", "newest": "constraints.txt"}
IN_SDIST = {"docs/evidence.md", "tests/tolerances.py", "Makefile", "CITATION.cff", *CONSTRAINTS.values()}
MOST_IMPORT_TIME = 1.15  # of `import torch`
IMPORTS = """from time import perf_counter as now
start = now(); import torch; middle = now(); import ntloss; print((now() - start) / (middle - start))"""


def main() -> None:
    """Check the release; a defect ends the program with a message."""
    (wheel,), (sdist,) = (ROOT / "dist").glob("*.whl"), (ROOT / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if not names >= IN_SDIST or any("results" in name.split("/") for name in names):
        sys.exit(f"expected no results in the sdist, and {sorted(IN_SDIST - names)}, which it lacks")
    for torch in sys.argv[1:] or CONSTRAINTS:
        with tempfile.TemporaryDirectory(prefix="ntloss-release-") as folder:
            try_wheel(wheel, ROOT / CONSTRAINTS[torch], Path(folder))
    print(f"{wheel.name} can be released")


def try_wheel(wheel: Path, constraints: Path, folder: Path) -> None:
    """Install the wheel in a fresh environment in `folder`, and use it without the repository's source."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(program: str, *arguments: str | Path, code: int = 0) -> str:
        command = [folder / "venv" / "bin" / program, *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode != code:
            sys.exit(f"{command}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    run("pip", "install", "-q", "-c", constraints, f"ntloss @ {wheel.as_uri()}")
    run("ntloss", "--version")
    run("ntloss", "inspect", "no-such-folder/", code=2)
    ratio = statistics.median([float(run("python", "-c", IMPORTS)) for _ in range(6)][1:])
    took = f"{constraints.name}: `import ntloss` takes {ratio:.3f} of `import torch`"
    if ratio > MOST_IMPORT_TIME:
        sys.exit(took)
    newest = constraints.name == CONSTRAINTS["newest"]
    extra, program = ("trl", "tests/pages.py") if newest else ("transformers", "examples/llama.py")
    run("pip", "install", "-q", "-c", constraints, f"ntloss[{extra}] @ {wheel.as_uri()}")
    imported = run("python", "-c", "import ntloss; print(ntloss.__file__)")
    if not Path(imported).is_relative_to(folder):
        sys.exit(f"{imported} is imported, not the wheel")
    run("python", ROOT / program)
    print(f"{took}; {program} runs")


if __name__ == "__main__":
    main()
