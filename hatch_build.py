"""Compile the kernel when kalprox is built or installed. Where nothing can compile it, kalprox is installed without."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FILE = Path(__file__).parent / "kalprox" / "kernel" / "build.py"
_SPEC = importlib.util.spec_from_file_location("kalprox_kernel_build", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
build = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(build)


class KernelHook(BuildHookInterface):
    """The library is compiled beside its sources, where an editable install finds it, and goes into the wheel."""

    def dependencies(self) -> list[str]:
        """Return ziglang, which has a C compiler for many machines, if it is needed and the package index has it."""
        if self._target:
            return ["ziglang"]
        wanted = os.environ.get(build.OFF) != "off" and not build.compilers()
        return ["ziglang"] if wanted and _index_has("ziglang") else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        target, folder = self._target, build.FOLDER
        if target is not None:
            folder = Path(self.root) / "build" / target  # the library of this machine stays where it is
            folder.mkdir(parents=True, exist_ok=True)
        library = None if os.environ.get(build.OFF) == "off" else build.build(folder, target)
        if library is None and target is not None:
            raise RuntimeError(f"ziglang cannot compile the kernel for {target}")
        if library is not None and version != "editable":
            build_data["force_include"][str(library)] = f"kalprox/kernel/{library.name}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{build.wheel_platform(target)}"

    @property
    def _target(self) -> str | None:
        return os.environ.get(build.TARGET) or None


def _index_has(package: str) -> bool:
    """Whether pip can get a package: an install must not fail because what only makes it faster cannot be had."""
    # -I: the environment of a build hides pip
    command = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "index", "versions", package]
    return subprocess.run(command, capture_output=True).returncode == 0
