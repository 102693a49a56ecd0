"""Compile the record checks with mypyc if there is a C compiler; otherwise the wheel is pure Python.

`HEADRACE_COMPILE`: `1` compiles or fails, `0` does not compile, `auto` (the default) compiles if possible. Editable
installs do not compile, because compiled modules do not follow changes of the source. `make setup` runs this file,
which compiles into the source tree.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED: Final = ("headrace/wire/record_checks.py",)
MYPY: Final = "mypy==2.4.1"
_SETUP: Final = """
import sys
from mypyc.build import mypycify
from setuptools import setup
options, target = sys.argv.pop(1), sys.argv.pop(1)
modules = mypycify(options.split("\\n"), opt_level="3", target_dir=target)
if sys.platform != "win32":
    # The loop never overflows, so the compiler may drop half of each bounds check. Python's own flags forbid that.
    for module in modules:
        module.extra_compile_args.append("-fno-wrapv")
setup(name="headrace", packages=[], ext_modules=modules)
"""
_SUFFIX: Final = sysconfig.get_config_var("EXT_SUFFIX")
_UNCOMPILED: Final = "record checks are interpreted, which is slower"


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel, and removes those in the source tree of an editable install."""

    _temporary: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        return [MYPY, "setuptools>=65"] if is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            remove_compiled(Path(self.root))
            return
        if not is_wanted():
            self.app.display_warning(f"headrace: no C compiler; {_UNCOMPILED}")
            return
        # The build of a wheel does not touch the source tree, which running processes may use.
        self._temporary = tempfile.TemporaryDirectory()
        library = Path(self._temporary.name, "lib")
        failure = compile_modules(Path(self.root), Path(self._temporary.name))
        if failure and os.environ.get("HEADRACE_COMPILE") == "1":
            raise RuntimeError(failure)
        if failure:
            self.app.display_warning(f"headrace: compiling failed; {_UNCOMPILED}")
            return
        for built in library.rglob(f"*{_SUFFIX}"):
            build_data["force_include"][str(built)] = str(built.relative_to(library))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if self._temporary is not None:
            self._temporary.cleanup()


def is_wanted() -> bool:
    wish = os.environ.get("HEADRACE_COMPILE", "auto")
    return wish == "1" or (wish == "auto" and any(map(shutil.which, ("cc", "gcc", "clang", "cl"))))


def compile_modules(root: Path, directory: Path) -> str:
    """Compile into `lib` in `directory`. Return the compiler's output if it failed, else an empty string."""
    (directory / "setup.py").write_text(_SETUP)
    (directory / "mypy.ini").write_text("[mypy]\nstrict = true\nfollow_imports = silent\n")
    options = "\n".join([f"--config-file={directory / 'mypy.ini'}", *COMPILED])
    command: list[str | Path] = [
        sys.executable,
        directory / "setup.py",
        options,
        directory / "c",
        "build_ext",
        "-q",
    ]
    command += ["--build-lib", directory / "lib", "--build-temp", directory / "tmp"]
    done = subprocess.run(command, cwd=root / "src", capture_output=True, text=True, check=False)
    return done.stdout + done.stderr + f"compiling ended with status {done.returncode}" if done.returncode else ""


def remove_compiled(root: Path) -> None:
    # The module itself, which imports its `__mypyc` library, goes first.
    for built in sorted((root / "src").rglob(f"*{_SUFFIX}")):
        built.unlink()


def compile_in_place(root: Path) -> str:
    """Compile into the source tree, or only remove compiled modules if that is not wanted.

    Return the compiler's output if it failed, else an empty string.
    """
    if not is_wanted():
        remove_compiled(root)
        return ""
    with tempfile.TemporaryDirectory() as temporary:
        failure = compile_modules(root, Path(temporary))
        remove_compiled(root)
        library = Path(temporary, "lib")
        for built in [] if failure else sorted(library.rglob(f"*{_SUFFIX}"), reverse=True):
            _replace(built, root / "src" / built.relative_to(library))
    return failure


def _replace(source: Path, target: Path) -> None:
    """Replace a file with a new inode: processes that have mapped the old one keep it."""
    new = target.with_suffix(".new")
    shutil.copy2(source, new)
    new.replace(target)


if __name__ == "__main__":
    sys.exit(compile_in_place(Path(__file__).resolve().parent) or 0)
