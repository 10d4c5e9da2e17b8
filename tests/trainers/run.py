"""Test the plug-ins inside each trainer, in an environment of its own: `make test-trainers [TRAINER=name]`.

The trainers' pins of transformers, TRL and PEFT exclude each other. The environments are made once, in
`.venv-trainers`, and stay.
"""

import os
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv-trainers"
TORCH = "torch==2.13.0"
# torchtitan imports Triton, and transformers reads its tokenizer for us.
TRAINERS = {
    "ms_swift": ["ms-swift==4.6.0"],
    "llamafactory": ["llamafactory==0.9.5"],
    "axolotl": [
        *("transformers==5.16.1", "trl==1.9.0", "peft==0.20.0", "accelerate==1.13.0", "datasets==4.8.4"),
        *("pydantic==2.12.5", "posthog==6.7.11", "schedulefree==1.4.1", "kernels>=0.16,<0.17"),
        *("triton==3.7.1", "torchao==0.17.0", "addict", "fire", "PyYAML", "requests", "einops", "colorama"),
        *("scipy", "python-dotenv", "fastcore", "typer", "art", "numba", "sentencepiece", "mistral-common"),
        *("pandas", "filelock", "wandb"),
    ],
    "torchtitan": ["torchtitan==0.3.0", "triton==3.7.1", "transformers<5.24"],
    "verl": [
        *("transformers>=5.5.3,<5.11,!=5.6.0", "tensordict>=0.8,<=0.10,!=0.9.0", "ray>=2.41", "torchdata"),
        *("codetiming", "hydra-core", "pandas", "dill", "datasets", "peft", "accelerate", "aiohttp"),
    ],
}
# Without what they ask for: pip had not resolved axolotl's storage clients and GPU kernels after 20 minutes,
# and fails on one of verl's.
WITHOUT_DEPENDENCIES = {
    "axolotl": [
        *("axolotl==0.19.0", "axolotl-contribs-lgpl==0.0.7", "axolotl-contribs-mit==0.0.6"),
        *("bitsandbytes==0.50.2", "evaluate==0.4.1", "nvidia-ml-py==12.560.30", "optimum==1.16.2"),
    ],
    "verl": ["verl==0.9.1"],
}
# Wheels of the package index that load CUDA's libraries, which training on text does not need.
NEED_CUDA = {"llamafactory": ["torchvision", "torchaudio"]}


def make_environment(name):
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    if (folder / ".installed").exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(TORCH)
    pip = [str(python), "-m", "pip", "--quiet"]
    subprocess.run([*pip, "install", "-c", str(constraints), *TRAINERS[name], "pytest"], check=True)
    without = [*WITHOUT_DEPENDENCIES.get(name, []), "-e", str(ROOT)]
    subprocess.run([*pip, "install", "--no-deps", *without], check=True)
    for package in NEED_CUDA.get(name, []):
        subprocess.run([*pip, "uninstall", "--yes", package], check=True)
    if name == "llamafactory":  # it imports torchaudio, and uses it for audio only
        next((folder / "lib").glob("python*/site-packages")).joinpath("torchaudio.py").touch()
    (folder / ".installed").touch()
    return python


def describe(name):
    """Return the versions of a trainer and of what it works with, and the disk space of its environment."""
    folder = ENVIRONMENTS / name
    site = [str(path) for path in (folder / "lib").glob("python*/site-packages")]
    found = {one.name.lower().replace("_", "-"): one.version for one in metadata.distributions(path=site)}
    package = name.replace("_", "-")
    versions = ", ".join(f"{one} {found[one]}" for one in ("torch", "transformers", "trl") if one in found)
    size = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file()) / 1e9
    return [f"{package} {found.get(package)}", versions, f"{size:.1f}"]


def main():
    """Test the trainers given on the command line, by default all; print a table."""
    rows, failed = [], False
    tests = ROOT / "tests" / "trainers"
    environment = {**os.environ, "PYTHONPATH": str(tests), "OMP_NUM_THREADS": "1"}
    for name in sys.argv[1:] or TRAINERS:
        if name not in TRAINERS:
            raise SystemExit(f"TRAINER={name}: expected one of {', '.join(TRAINERS)}")
        start = time.monotonic()
        python = make_environment(name)
        installed = time.monotonic()
        options = ["-q", "--noconftest", "-c", os.devnull, f"--rootdir={ROOT}", "-p", "no:cacheprovider"]
        command = [str(python), "-m", "pytest", *options, str(tests / f"test_{name}.py")]
        done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE)
        print(done.stdout)
        failed |= done.returncode != 0
        minutes = [f"{(installed - start) / 60:.1f}", f"{(time.monotonic() - installed) / 60:.1f}"]
        rows.append([*describe(name), *minutes, done.stdout.strip().splitlines()[-1].strip("= ")])
    head = ["| trainer | with | disk, GB | installing, minutes | tests, minutes | tests |"]
    table = [
        *head,
        "| --- | --- | ---: | ---: | ---: | --- |",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    print(*table, sep="\n")
    if not sys.argv[1:]:
        text = (
            "# The plug-ins inside their trainers\n\n`make test-trainers`, on a CPU:\n\n"
            + "\n".join(table)
            + "\n"
        )
        (ROOT / "benchmarks" / "results" / "trainers.md").write_text(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
