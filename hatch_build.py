"""Compiles the record walk with mypyc where there is a C compiler; without one the wheel is pure Python.

`HEADRACE_COMPILE` decides: `1` compiles or fails, `0` does not compile, `auto` (the default) compiles if it can.
Editable installs compile with `1` alone: what is compiled does not follow changes of the source.
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
setup(name="headrace", packages=[], ext_modules=mypycify(options.split("\\n"), opt_level="3", target_dir=target))
"""
_UNCOMPILED: Final = "records are checked by interpreted code, more slowly"


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel, or to the source tree of an editable install."""

    def dependencies(self) -> list[str]:
        return [MYPY, "setuptools>=65"] if self._is_wanted() else []

    def _is_wanted(self) -> bool:
        wish = os.environ.get("HEADRACE_COMPILE", "auto")
        return wish == "1" or (wish == "auto" and has_compiler())

    def clean(self, versions: list[str]) -> None:  # noqa: ARG002  (hatchling's)
        for built in self._built_in_place():
            built.unlink()

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        is_editable = version == "editable"
        if is_editable:
            self.clean([version])
            if os.environ.get("HEADRACE_COMPILE") != "1":
                return
        if not self._is_wanted():
            self.app.display_warning(f"headrace: no C compiler; {_UNCOMPILED}")
            return
        # until this process ends: what a wheel has of it is copied after this
        self._temporary = tempfile.TemporaryDirectory()
        failure = self._compile(Path(self._temporary.name))
        if failure and os.environ.get("HEADRACE_COMPILE") == "1":
            raise RuntimeError(failure)
        if failure:
            self.app.display_warning(f"headrace: compiling failed; {_UNCOMPILED}")
            return
        library = Path(self._temporary.name, "lib")
        for built in library.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):
            place = built.relative_to(library)
            if is_editable:
                shutil.copy2(built, Path(self.root, "src", place))
            else:
                build_data["force_include"][str(built)] = str(place)
        if not is_editable:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def _compile(self, directory: Path) -> str:
        """Compile into `lib` below `directory`; what the compiler said if it failed."""
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
        done = subprocess.run(command, cwd=Path(self.root, "src"), capture_output=True, text=True, check=False)
        return done.stdout + done.stderr if done.returncode else ""

    def _built_in_place(self) -> list[Path]:
        """The compiled modules in the source tree, of any Python."""
        source = Path(self.root, "src")
        return [built for each in COMPILED for built in (source / each).parent.glob(f"{Path(each).stem}*.so")]


def has_compiler() -> bool:
    return any(map(shutil.which, ("cc", "gcc", "clang", "cl")))
