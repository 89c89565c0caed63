"""Every routine task. `python -m nox -s NAME`; each session sets itself up, with uv.

`demo`, `tests` and `lint` need torch: uv keeps one copy of it, which their environments share by hard links.
"""

import filecmp
import os
import shutil
import sys
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["lint"]

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml("pyproject.toml")
BYTECODE = {"PYTHONDONTWRITEBYTECODE": None}
"""What a process compiles of torch, transformers and the project, the next one finds."""
SIDE_BY_SIDE = ("--numprocesses=auto", "--maxprocesses=4", "--dist=loadfile", "--no-loadscope-reorder")
"""Files side by side, each by one process: tests of a file share runs and warm workers. Longest first (conftest.py)."""
STUB = ROOT / "skippipe" / "_scheduler.pyi"


def install(session: nox.Session, *groups: str, extras: str = "") -> None:
    """Build the extension from the sources (profile wheel-dev) and install the package with dependency groups."""
    wanted = [requirement for group in groups for requirement in nox.project.dependency_groups(PROJECT, group)]
    # Not silent: the first time it downloads several gigabytes and compiles for minutes.
    session.install("--reinstall-package", "skippipe", "--editable", f".{extras}", *wanted, silent=False)


@nox.session
def demo(session: nox.Session) -> None:
    """Train a small Llama on four processes of this machine, by a plan that skips a third of the stages."""
    install(session, extras="[train]")
    session.run("skippipe", "train", *session.posargs, env=BYTECODE)


@nox.session
def demo_plan(session: nox.Session) -> None:
    """Plan 20 nodes over 12 cloud regions, and print what skipping and routing gain."""
    install(session)
    session.run(
        "skippipe", "plan", "cluster=geo20", "compare=[full,full-routed,random-skip,skippipe-no-tc2]",
        "planner.time_limit_s=5", *session.posargs,
    )  # fmt: skip


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests of the Rust core, then those in Python; arguments after `--` go to pytest."""
    install(session, "tests", "bench", extras="[train]")
    if not session.posargs:
        session.run("cargo", "test", "--locked", "--package", "skippipe-core", external=True)
    session.run("pytest", *(session.posargs or SIDE_BY_SIDE), env=BYTECODE)


@nox.session
def thorough(session: nox.Session) -> None:
    """Run the Python tests with all random cases of each property, of which `tests` tries a share."""
    install(session, "tests", "bench", extras="[train]")
    session.run("pytest", "--hypothesis-profile=thorough", *SIDE_BY_SIDE, *session.posargs, env=BYTECODE)


@nox.session
def rig(session: nox.Session) -> None:
    """Run the tests over real links between network namespaces: needs root, and a machine that does nothing else."""
    install(session, "tests", "bench", extras="[train]")
    session.run("pytest", "tests/rig", "-m", "rig", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check format, rules and types, in Python and Rust, and that the type stub of the extension is up to date."""
    wanted = nox.project.dependency_groups(PROJECT, "lint", "typing")
    session.install(*wanted, *PROJECT["project"]["optional-dependencies"]["train"])
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
    session.run("cargo", "fmt", "--all", "--check", external=True)
    session.run(
        "cargo", "clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings", external=True
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if not filecmp.cmp(generate_stub(session, Path(folder)), STUB, shallow=False):
            session.error(f"{STUB.name} is out of date: run `python -m nox -s stubs`")


@nox.session
def stubs(session: nox.Session) -> None:
    """Write the type stub of the extension anew, from its Rust sources."""
    session.install(*nox.project.dependency_groups(PROJECT, "lint"))
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(generate_stub(session, Path(folder)), STUB)


@nox.session
def docs(session: nox.Session) -> None:
    """Write docs/commands.md anew, from the list of commands."""
    install(session)
    session.run("python", "tools/command_reference.py")


def generate_stub(session: nox.Session, folder: Path) -> Path:
    """Have maturin write the stub into `folder`."""
    session.run("maturin", "generate-stubs", "--profile", "wheel-dev", "--locked", "--quiet", "--out", str(folder))
    (stub,) = folder.rglob("_scheduler.pyi")
    return stub


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the inner loops (criterion), then simulator, planner and allocator; figures go to benchmarks/out."""
    session.run("cargo", "bench", "--locked", "--package", "skippipe-core", external=True)
    wanted = nox.project.dependency_groups(PROJECT, "bench")
    session.install("--reinstall-package", "skippipe", ".", *wanted)
    out = ROOT / "benchmarks" / "out"
    out.mkdir(exist_ok=True)
    # Run outside the checkout, so that the installed wheel is what is measured.
    session.chdir(session.create_tmp())
    for what in ("simulator", "planner", "allocator"):
        session.run("skippipe", "bench", what, f"output={out / what}.json", *session.posargs)
    small = (f"set={ROOT / 'benchmarks' / 'small'}", "strategies=[skippipe]", f"output={out / 'small.json'}")
    session.run("skippipe", "bench", "planner", *small, *session.posargs)


@nox.session
def studies(session: nox.Session) -> None:
    """Run the studies of `benchmarks`, some three hours in all; arguments after `--`: one study and its arguments."""
    session.install(".", *nox.project.dependency_groups(PROJECT, "bench"))
    name, *arguments = session.posargs or [""]
    for study in [name] if name else ["tc2", "heterogeneity", "effort", "allocate", "unequal", "leave_one_out"]:
        session.run("python", str(ROOT / "benchmarks" / f"{study}.py"), *arguments)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Fuzz the readers of clusters and plans, a minute each; arguments after `--` go to libFuzzer."""
    tools = Path(session.create_tmp())
    session.run("cargo", "install", "cargo-fuzz", "--locked", "--quiet", "--root", str(tools), external=True)
    folder = ROOT / "scheduler_rs" / "fuzz"
    # Coverage is an unstable option of the compiler; sanitizers are for unsafe code, of which the core has none.
    environment = {"PATH": f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}", "RUSTC_BOOTSTRAP": "1"}
    arguments = session.posargs or ["-max_total_time=60"]
    for target in ("cluster", "plan"):
        corpus = folder / "corpus" / target
        corpus.mkdir(parents=True, exist_ok=True)
        options = ("--fuzz-dir", str(folder), "--sanitizer", "none", "-O", "--debug-assertions")
        inputs = (str(corpus), str(folder / "seeds" / target), "--", "-max_len=16384", *arguments)
        session.run("cargo", "fuzz", "run", *options, target, *inputs, env=environment, external=True)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the sdist, a wheel from it, and use that in a clean environment outside the checkout."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("uv", "build", "--python", sys.executable, "--out-dir", str(dist), external=True)
    (built,) = dist.glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        session.chdir(folder)
        session.run("uv", "venv", "--quiet", "--python", sys.executable, "clean", external=True)
        session.run("uv", "pip", "install", "--quiet", "--python", "clean", str(built), external=True)
        check_installed(session, Path(folder))


def check_installed(session: nox.Session, folder: Path) -> None:
    """Run the commands of a wheel installed in `folder`/clean, in a folder that holds nothing else."""
    binaries = folder / "clean" / "bin"
    work = folder / "work"
    work.mkdir()
    session.chdir(work)
    modules = "skippipe.commands.plan, skippipe.commands.report"
    without_torch = f"import importlib.util as u, {modules}; assert u.find_spec('torch') is None"
    session.run(str(binaries / "python"), "-c", without_torch, external=True)
    for arguments in (
        ["--version"], ["--help"], ["plan", "--help"], ["plan", "cluster=local4", "output=plan.json"],
        ["plan", "cluster=geo20"], ["simulate", "plan=plan.json", "output=simulated.json"],
        ["report", "plan=plan.json"],
    ):  # fmt: skip
        session.run(str(binaries / "skippipe"), *arguments, external=True, silent="--help" in arguments)
    left = sorted(path.name for path in work.iterdir())
    if left != ["plan.json", "report.html", "simulated.json"]:
        session.error(f"the commands left {left} behind")
