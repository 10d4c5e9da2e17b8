"""Check a release: `make release-check`.

    python tools/release_check.py                  # with the oldest and the newest torch
    python tools/release_check.py --torch=newest   # the oldest brings several GB of CUDA packages

Builds sdist and wheel in dist/, checks their metadata and content, and installs the wheel in a fresh
environment outside of the repository for each torch. There it runs README's code and the `ntloss` command,
and measures how long `import ntloss` takes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
CONSTRAINTS = {"oldest": "constraints-oldest.txt", "newest": "constraints.txt"}
MOST_IMPORT_TIME = 1.15  # of `import torch`
IMPORTS = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import ntloss
print((time.perf_counter() - start) / (middle - start))
"""
README = """
import sys, tempfile
from pathlib import Path
import ntloss
assert Path(ntloss.__file__).is_relative_to(sys.prefix), ntloss.__file__
sys.path.append(sys.argv[1])
import pages
with tempfile.TemporaryDirectory() as folder:
    names = pages.readers_names(Path(folder))
    for snippet in pages.snippets("README.md"):
        exec(snippet, names)
"""


class ReleaseError(Exception):
    """The release has a defect; the message says which."""


def main() -> int:
    """Check the release.

    Returns:
        The exit code: 0, or 1 if the release has a defect.
    """
    parser = argparse.ArgumentParser(description="Build a release, and try it outside of the repository.")
    parser.add_argument("--torch", choices=["oldest", "newest", "both"], default="both")
    arguments = parser.parse_args()
    try:
        version = check_versions()
        wheel, sdist = build()
        check_wheel(wheel, version)
        check_sdist(sdist)
        for torch in CONSTRAINTS if arguments.torch == "both" else [arguments.torch]:
            with tempfile.TemporaryDirectory(prefix="ntloss-release-") as folder:
                try_wheel(wheel, torch, Path(folder))
    except ReleaseError as error:
        print(f"release-check: {error}", file=sys.stderr)
        return 1
    print(f"ntloss {version} can be released")
    return 0


def run(*command: str | Path, cwd: Path = ROOT, code: int = 0) -> str:
    """Run a command outside of the repository's source.

    Returns:
        What it printed.

    Raises:
        ReleaseError: its exit code is another than `code`.
    """
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != code:
        shown = " ".join(map(str, command))
        raise ReleaseError(f"{shown}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_versions() -> str:
    """Check that every file that names the version names the same one, and return it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    source = (ROOT / "src/ntloss/__init__.py").read_text(encoding="utf-8")
    if f'__version__ = "{version}"' not in source:
        raise ReleaseError(f"pyproject.toml has version {version}, and src/ntloss/__init__.py another")
    release = re.sub(r"\.dev\d+$", "", version)
    for name, expected in {"CHANGELOG.md": f"## {release} ", "CITATION.cff": f"version: {release}\n"}.items():
        if expected not in (ROOT / name).read_text(encoding="utf-8"):
            raise ReleaseError(f"{name} lacks {expected.strip()!r}")
    return str(version)


def build() -> tuple[Path, Path]:
    """Build the sdist, and from it the wheel; check their metadata."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    print(run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist).strip())
    return wheel, sdist


def check_wheel(wheel: Path, version: str) -> None:
    """Check that the wheel holds the two packages, and no data but the lab's samples."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
    about = f"ntloss-{version}.dist-info/"
    allowed = re.compile(
        rf"(ntloss|ntl)/([\w/]+\.py|py\.typed)|ntl/(?:config|approaches)/[\w/]+\.yaml|ntl/data/sample/.*|{re.escape(about)}.*"
    )
    if others := sorted(name for name in sizes if not allowed.fullmatch(name)):
        raise ReleaseError(f"the wheel holds {', '.join(others)}")
    samples = sum(size for name, size in sizes.items() if name.startswith("ntl/data/sample/"))
    print(
        f"{wheel.name}: {wheel.stat().st_size / 1024:.0f} KiB, {len(sizes)} files, "
        f"unpacked {sum(sizes.values()) / 1024:.0f} KiB, of these samples {samples / 1024:.0f} KiB"
    )


def check_sdist(sdist: Path) -> None:
    """Check that the sdist has what is needed to test and to document the release."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "tests/tolerances.py",
        "docs/quickstart.md",
        "mkdocs.yml",
        "Makefile",
        "CITATION.cff",
        "studies/small_models/study.yaml",
        *CONSTRAINTS.values(),
    }
    if missing := sorted(needed - names):
        raise ReleaseError(f"the sdist lacks {', '.join(missing)}")
    print(f"{sdist.name}: {sdist.stat().st_size / 1024:.0f} KiB")


def try_wheel(wheel: Path, torch: str, folder: Path) -> None:
    """Install the wheel in a fresh environment in `folder`, and use it."""
    run(sys.executable, "-m", "venv", folder / "venv")
    python, command = folder / "venv/bin/python", folder / "venv/bin/ntloss"
    constraints = ROOT / CONSTRAINTS[torch]
    run(
        python, "-m", "pip", "install", "--quiet", "-c", constraints, f"ntloss @ {wheel.as_uri()}", cwd=folder
    )
    using = f"torch {run(python, '-c', 'import torch; print(torch.__version__)', cwd=folder).strip()}"
    if run(command, "--version", cwd=folder).split()[0] != "ntloss":
        raise ReleaseError("`ntloss --version` prints something else")
    run(command, "inspect", "no-such-folder/", cwd=folder, code=2)
    run(folder / "venv/bin/ntl", "train", cwd=folder, code=2)  # asks for the extra
    ratios = [float(run(python, "-c", IMPORTS, cwd=folder)) for _ in range(6)][1:]
    ratio = statistics.median(ratios)
    if ratio > MOST_IMPORT_TIME:
        raise ReleaseError(f"{using}: `import ntloss` takes {ratio:.2f} of `import torch`: {ratios}")
    requirement = f"ntloss[transformers] @ {wheel.as_uri()}"
    run(python, "-m", "pip", "install", "--quiet", "-c", constraints, requirement, cwd=folder)
    (folder / "readme.py").write_text(README, encoding="utf-8")
    run(python, folder / "readme.py", ROOT / "tests", cwd=folder)
    print(f"{using}: README's code runs; `import ntloss` takes {ratio:.3f} of `import torch`")


if __name__ == "__main__":
    raise SystemExit(main())
