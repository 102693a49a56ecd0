"""Install everything that `make demo`, `make test` and `make bench` need into this checkout. Run by `make setup`.

Needs only the standard library. Skips steps whose inputs have not changed since their last success, so a second run
takes a second. Steps that do not need each other run at the same time: most of them download. The end lists missing
things, and how to get them. The run fails only if Python packages are missing, or under CI, if anything is.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
BUILD = ROOT / ".build"
LOCK = ROOT / "requirements.lock"
RECORD_CHECKS = ROOT / "src" / "headrace" / "wire" / "record_checks.py"
SPARK_POM = ROOT / "src" / "headrace" / "pipeline" / "jars.pom.xml"
KAFKA_POM = ROOT / "tests" / "clients" / "kafka.pom.xml"
KAFKA_39_POM = ROOT / "tests" / "adoption" / "kafka-3.9.pom.xml"
SPARK_JARS = "lib/*/site-packages/pyspark/jars/*.jar"
NODE_CLIENTS = ROOT / "tests" / "clients" / "node"
PACKAGES = "Python packages"
COMPILED = "Compiled record checks"
SPARK_CLASSES = "Spark's classes"

# Programs for tests, with their Debian and Homebrew packages.
PROGRAMS = {
    "mvn": ("maven", "maven"),
    "kcat": ("kcat", "kcat"),
    "node": ("nodejs", "node"),
    "npm": ("npm", "node"),
    "tmux": ("tmux", "tmux"),
}


class MissingError(Exception):
    """Something is missing; the message says what needs it and how to get it."""


class Step(NamedTuple):
    """A step, which follows those in `after`.

    It runs again if an input changes, an output or program is missing, or `holds` returns False.
    """

    name: str
    run: Callable[[], None]
    after: Sequence[str] = ()
    inputs: Sequence[Path] = ()
    outputs: Sequence[Path] = ()
    programs: Sequence[str] = ()
    holds: Callable[[], bool] = lambda: True

    @property
    def stamp(self) -> Path:
        return BUILD / "stamps" / self.file_name

    @property
    def log(self) -> Path:
        return BUILD / "logs" / self.file_name

    @property
    def file_name(self) -> str:
        return re.sub(r"\W+", "-", self.name.lower())

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{sys.version} {ROOT}".encode())
        for path in self.inputs:
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def is_done(self) -> bool:
        return (
            self.stamp.exists()
            and self.stamp.read_text() == self.fingerprint()
            and all(path.exists() for path in self.outputs)
            and all(shutil.which(program) for program in self.programs)
            and self.holds()
        )


log_of_step: ContextVar[Path] = ContextVar("log_of_step")


def run(*command: str | Path, hint: str) -> None:
    """Run a command, with output to the step's log. If it fails, raise MissingError with `hint` and that output."""
    log = log_of_step.get()
    with log.open("ab") as output:
        start = output.tell()
        try:
            status = subprocess.run(
                command, check=False, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            ).returncode
        except FileNotFoundError:
            status = 127
    if status in (-signal.SIGINT, 128 + signal.SIGINT):
        raise KeyboardInterrupt  # Ctrl-C ends the command and is raised in the main thread: no step goes on without it
    if status:
        tail = log.read_bytes()[start:].decode(errors="replace").splitlines()[-12:]
        shown = " ".join(str(part) for part in command[:4])
        raise MissingError("\n".join([hint, f"`{shown} ...` failed with status {status}:", *tail]))


def python_packages() -> None:
    try:
        import ensurepip  # noqa: F401  (a separate package on Debian)
    except ImportError:
        raise MissingError("This Python cannot create virtual environments: run apt-get install python3-venv") from None
    if venv_is_of_this_python():
        fill_venv()
        return
    if VENV.is_symlink():
        raise MissingError(f".venv is a link to {VENV.resolve()}, which uses another Python: remove the link.")
    before = BUILD / "venv-before"
    shutil.rmtree(before, ignore_errors=True)
    if VENV.is_dir():
        VENV.rename(before)
    try:
        run(sys.executable, "-m", "venv", VENV, hint="Could not create the virtual environment .venv.")
        fill_venv()
    except BaseException:
        if before.exists():
            shutil.rmtree(VENV, ignore_errors=True)
            before.rename(VENV)
        raise
    shutil.rmtree(before, ignore_errors=True)


def venv_is_of_this_python() -> bool:
    return PYTHON.exists() and PYTHON.resolve() == Path(sys.executable).resolve()


def fill_venv() -> None:
    if not any(VENV.glob("lib/*/site-packages/pip")):  # for example, if uv created it
        run(PYTHON, "-m", "ensurepip", hint="Could not install pip into the virtual environment .venv.")
    # uv takes a second, pip two minutes. It is in the lock file too.
    uv_lock = BUILD / "uv.lock.txt"
    uv_lock.write_text(locked("uv"))
    hint = (
        "Could not install the Python packages of requirements.lock. Is the package index reachable (pip config list)? "
        "For a package without a wheel for this machine, install a C compiler: apt-get install build-essential, or "
        "xcode-select --install."
    )
    run(PYTHON, "-m", "pip", "install", "-q", "--require-hashes", "-r", uv_lock, hint=hint)
    try:
        sync = ("pip", "sync", "--python", PYTHON, "--require-hashes", LOCK)
        run(VENV / "bin" / "uv", *sync, hint=hint)
    except MissingError:
        # pip reads settings (mirrors, certificates) that uv ignores.
        run(PYTHON, "-m", "pip", "install", "-q", "--require-hashes", "-r", LOCK, hint=hint)
    install = ("pip", "install", "--python", PYTHON, "--no-deps", "--no-build-isolation", "-e", ROOT)
    run(VENV / "bin" / "uv", *install, hint="Could not install Headrace.")
    # Brokers start fast only with byte code, which PYTHONDONTWRITEBYTECODE would prevent. Python compiles the packages
    # when they are first imported: compiling all of them takes longer.
    run(PYTHON, "-m", "compileall", "-q", ROOT / "src", hint="Could not compile Headrace's own modules.")


def compile_record_checks() -> None:
    """Compile, unless `HEADRACE_COMPILE` is 0 or there is no C compiler. Failures count only if it is 1."""
    if not (VENV / "bin" / "headrace").exists():
        raise MissingError("Headrace is not installed.")
    try:
        run(PYTHON, ROOT / "hatch_build.py", hint="Compiling failed.")
    except MissingError:
        if os.environ.get("HEADRACE_COMPILE") == "1":
            raise
        say(f"setup: compiling failed, so record checks are slower ({log_of_step.get()})")


def locked(package: str) -> str:
    """Return the lines of the lock file for a package."""
    match = re.search(rf"^{package}==.*\n(?:    .*\n)*", LOCK.read_text(), re.MULTILINE)
    if match is None:
        raise MissingError(f"{LOCK.name} has no {package}: run `make lock`.")
    return match.group()


def java() -> None:
    sys.path.insert(0, str(ROOT / "src"))
    from headrace.pipeline.errors import PipelineError
    from headrace.pipeline.requirements import check_java

    try:
        check_java()
    except PipelineError as error:
        raise MissingError(f"{error} Spark (make demo) and Kafka's own tools (tests) need it.") from None


def programs() -> None:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if not missing:
        return
    names = sorted({PROGRAMS[program][0] for program in missing})
    by_hand = f"Missing programs: {', '.join(missing)} (for tests of real clients, and for Spark's jars). "
    if shutil.which("apt-get") is None:
        brew = sorted({PROGRAMS[program][1] for program in missing})
        raise MissingError(f"{by_hand}Install them with: brew install {' '.join(brew)}")
    hint = f"{by_hand}Install them with: sudo apt-get install {' '.join(names)}"
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    run(*sudo, "apt-get", "update", "-q", hint=hint)
    install = ["apt-get", "install", "-qy", "--no-install-recommends", *names]
    run(*sudo, "env", "DEBIAN_FRONTEND=noninteractive", *install, hint=hint)


def jars(pom: Path, directory: Path) -> Callable[[], None]:
    def copy() -> None:
        name = pom.relative_to(ROOT)
        if shutil.which("mvn") is None:
            raise MissingError(f"Maven (mvn), needed for the jars of {name}, is not installed.")
        fresh = directory.with_name(f"{directory.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={fresh}"]
        hint = (
            f"Maven could not download the jars of {name}. Is Maven Central, or the mirror in ~/.m2/settings.xml, up?"
        )
        run("mvn", "--batch-mode", "--quiet", "--file", pom, *goal, hint=hint)
        shutil.rmtree(directory, ignore_errors=True)
        fresh.rename(directory)

    return copy


def jar_step(name: str, pom: Path, directory: Path, *, after: str) -> Step:
    return Step(name, jars(pom, directory), after=[after], inputs=[pom], outputs=[directory])


def spark_classes() -> None:
    hint = "Spark did not start, or Java did not archive its classes. Without the archive, Spark starts more slowly."
    run(PYTHON, ROOT / "scripts" / "spark_classes.py", hint=hint)


def kafka_classes() -> None:
    hint = "Kafka did not start, or Java did not archive its classes. Without the archives, tests take longer."
    run(PYTHON, ROOT / "scripts" / "kafka_classes.py", hint=hint)


def byte_code_of_tests() -> None:
    hint = (
        "pytest could not collect the tests. Without their byte code, each process of the first `make test` makes it."
    )
    run(VENV / "bin" / "pytest", "--collect-only", "-q", ROOT / "tests", hint=hint)


def npm_packages() -> None:
    if shutil.which("npm") is None:
        raise MissingError("npm, needed for the KafkaJS tests in tests/clients, is not installed.")
    hint = "npm could not install the packages of tests/clients/node. Is the npm registry reachable?"
    run("npm", "ci", "--prefix", NODE_CLIENTS, "--no-audit", "--no-fund", hint=hint)


def steps() -> list[Step]:
    """Return all steps; under CI, without the archive of Spark's classes.

    Making it takes the processor time that it saves in ten starts of Spark. CI has one.
    """
    return [step for step in all_steps() if step.name != SPARK_CLASSES or not os.environ.get("CI")]


def all_steps() -> list[Step]:
    spark, kafka, kafka_39 = (BUILD / "jars" / name for name in ("spark", "kafka", "kafka-3.9"))
    npm_lock = NODE_CLIENTS / "package-lock.json"
    return [
        Step(
            PACKAGES,
            python_packages,
            inputs=[LOCK, ROOT / "pyproject.toml"],
            outputs=[VENV / "bin" / "headrace"],
            holds=venv_is_of_this_python,
        ),
        Step(COMPILED, compile_record_checks, after=[PACKAGES], inputs=[ROOT / "hatch_build.py", RECORD_CHECKS]),
        Step("Java", java, programs=["java"]),
        Step("Programs for tests", programs, programs=list(PROGRAMS)),
        # One Maven at a time: they share ~/.m2.
        jar_step("Spark's Kafka connector and Delta Lake", SPARK_POM, spark, after="Programs for tests"),
        jar_step("Kafka's own tools", KAFKA_POM, kafka, after="Spark's Kafka connector and Delta Lake"),
        jar_step("Kafka with ZooKeeper", KAFKA_39_POM, kafka_39, after="Kafka's own tools"),
        Step(
            SPARK_CLASSES,
            spark_classes,
            after=[PACKAGES, "Java", "Spark's Kafka connector and Delta Lake"],
            inputs=[LOCK, SPARK_POM, ROOT / "scripts" / "spark_classes.py"],
            outputs=[spark.with_suffix(".jsa")],
            holds=lambda: is_newer(spark.with_suffix(".jsa"), *spark.glob("*.jar"), *VENV.glob(SPARK_JARS)),
        ),
        Step(
            "Kafka's classes",
            kafka_classes,
            after=[PACKAGES, "Java", "Kafka with ZooKeeper"],
            inputs=[KAFKA_POM, KAFKA_39_POM, ROOT / "scripts" / "kafka_classes.py"],
            outputs=[jars.with_name(f"{jars.name}-broker.jsa") for jars in (kafka, kafka_39)],
            holds=lambda: all(
                is_newer(jars.with_name(f"{jars.name}-broker.jsa"), *jars.glob("*.jar")) for jars in (kafka, kafka_39)
            ),
        ),
        Step(
            "npm packages",
            npm_packages,
            after=["Programs for tests"],
            inputs=[npm_lock],
            outputs=[NODE_CLIENTS / "node_modules"],
        ),
        Step("Byte code of the tests", byte_code_of_tests, after=[PACKAGES], inputs=[LOCK]),
    ]


def is_newer(archive: Path, *jars: Path) -> bool:
    """Return True if an archive of classes is newer than the jars and Java; otherwise Java does not use it."""
    sources = [*jars, Path(shutil.which("java") or archive).resolve()]
    return archive.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def say(text: str) -> None:
    """Print to standard error: standard output is for the command that follows, as in `make demo DEMO_ARGS=--json`."""
    print(text, file=sys.stderr, flush=True)


def attempt(step: Step) -> tuple[float, str]:
    """Run a step. Return the seconds that it took, and what is missing."""
    started = time.monotonic()
    log_of_step.set(step.log)
    step.log.write_bytes(b"")
    try:
        step.run()
    except (MissingError, OSError) as error:
        return time.monotonic() - started, str(error)
    step.stamp.write_text(step.fingerprint())
    return time.monotonic() - started, ""


def attempt_all(todo: Mapping[str, Step], steps: Sequence[Step]) -> dict[str, str]:
    """Run `todo`, each step as soon as its predecessors in `steps` have ended. Return what is missing, by step."""
    order = TopologicalSorter({step.name: step.after for step in steps})
    order.prepare()
    running: dict[Future[tuple[float, str]], str] = {}
    missing: dict[str, str] = {}
    number = 0
    with ThreadPoolExecutor() as threads:
        while order.is_active():
            ready = order.get_ready()
            order.done(*(name for name in ready if name not in todo))
            if starting := [name for name in ready if name in todo]:
                say(f"setup: starting {', '.join(starting)}")
            running |= {threads.submit(attempt, todo[name]): name for name in starting}
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(ended)
                order.done(name)
                seconds, why = ended.result()
                if why:
                    missing[name] = why
                number += 1
                say(f"setup {number}/{len(todo)}: {name}: {'missing' if why else f'{seconds:.1f} s'}")
    return missing


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036  (this may be any Python)
        say(f"Headrace needs Python 3.11 or newer; this is {sys.version.split()[0]}. Try: make setup PYTHON=python3.11")
        return 1
    for directory in ("stamps", "logs", "jars"):
        (BUILD / directory).mkdir(parents=True, exist_ok=True)
    every = steps()
    todo = {step.name: step for step in every if not step.is_done()}
    if PACKAGES in todo:
        # It removes compiled code. Without the stamp, the next run compiles if this one does not get that far.
        todo |= {step.name: step for step in every if step.name == COMPILED}
        todo[COMPILED].stamp.unlink(missing_ok=True)
    if not todo:
        say("setup: everything is in place")
        return 0
    say(f"setup: using Python {sys.version.split()[0]} from {Path(sys.executable).resolve().parent}")
    try:
        missing = attempt_all(todo, every)
    except KeyboardInterrupt:
        say("setup: interrupted; the next run continues with the steps that are not done")
        return 130
    for name, why in missing.items():
        say(f"\n{name}: {why}")
    if PACKAGES in missing or (missing and os.environ.get("CI")):
        return 1
    if missing:
        say("\nContinuing without them; commands that need them will say so.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
