"""CRC-32C, computed in hardware if the CPU supports it.

Importing the package `crc32c` looks up its version, which takes longer than importing the rest of `wire`. So only its
compiled module is loaded.
"""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from headrace.types import Buffer


def _compiled() -> Callable[[Buffer], int]:
    package = PathFinder.find_spec("crc32c")
    if package is not None:
        spec = PathFinder.find_spec("_crc32c", package.submodule_search_locations)
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            compiled: Callable[[Buffer], int] = module.crc32c
            return compiled
    from crc32c import crc32c  # the layout of the package has changed

    return crc32c


crc32c: Callable[[Buffer], int] = _compiled()
