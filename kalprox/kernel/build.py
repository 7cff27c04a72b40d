"""Compile the kernel beside its sources: `python kalprox/kernel/build.py`. Needs neither kalprox nor NumPy.

With `--targets` it prints the other machines for which it can be compiled.

The library knows nothing of Python: it is loaded by ctypes, so that one build serves every version of Python.
"""

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
OFF = "KALPROX_KERNEL"  # the environment variable that says "off": nothing is compiled, nor used
TARGET = "KALPROX_KERNEL_TARGET"  # that which names a key of `TARGETS`

# Other machines for which ziglang compiles, and the platform of their wheels.
TARGETS = {
    "x86_64-linux-gnu.2.17": "manylinux_2_17_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux_2_17_aarch64",
    "x86_64-linux-musl": "musllinux_1_2_x86_64",
    "aarch64-linux-musl": "musllinux_1_2_aarch64",
    "x86_64-macos.11.0": "macosx_11_0_x86_64",
    "aarch64-macos.11.0": "macosx_11_0_arm64",
    "x86_64-windows-gnu": "win_amd64",
}

# Products and sums are not contracted, so that every instruction set gives the same digits to a row.
FLAGS = ("-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-Wall", "-Wextra")
# Left out one after the other where a compiler does not know them.
_OPTIONAL = (("-fopenmp-simd",), ("-fopenmp-simd", "-DKALPROX_PLAIN"), ("-DKALPROX_PLAIN",))


def library_name(system: str = sys.platform) -> str:
    """Return the name of the library's file on an operating system, as `sys.platform` or a target names it.

    The dot within says that it is no module of Python.
    """
    if system.startswith("win") or "-windows" in system:
        return "kalprox.kernel.dll"
    return "kalprox.kernel.dylib" if system == "darwin" or "-macos" in system else "kalprox.kernel.so"


def compilers() -> list[list[str]]:
    """Return the commands of the C compilers of this machine, the best one first."""
    named = [os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]
    commands = [shlex.split(name) for name in named if name]
    return [command for command in commands if shutil.which(command[0])] + _zig()


def build(folder: Path = FOLDER, target: str | None = None) -> Path | None:
    """Compile the kernel into a folder, unless a library there is newer than the sources.

    Parameters
    ----------
    folder : Path
    target : str, optional
        A key of `TARGETS`, for which ziglang compiles; by default this machine.

    Returns
    -------
    Path or None
        The library; None if there is no compiler for it, which is said on standard error.
    """
    library = folder / library_name(target or sys.platform)
    if target is None and _is_fresh(library):
        return library
    library.unlink(missing_ok=True)  # rather none than an old one
    said = ["no C compiler was found"]
    for command in compilers() if target is None else _zig(target):
        for more in _OPTIONAL:
            failure = compiled(command, library, (*FLAGS, *more), target or sys.platform)
            if failure is None:
                return library
            said.append(f"{shlex.join(command)}: {failure}")
    print(f"kalprox is installed without its compiled kernel: {said[-1]}", file=sys.stderr)
    return None


def compiled(command: list[str], library: Path, flags: tuple[str, ...], system: str = sys.platform) -> str | None:
    """Compile the library by a command with these flags; return None, or what the compiler said against it."""
    flags = ("-shared", *flags)
    libraries: tuple[str, ...] = ()
    if library_name(system) != library_name("win32"):
        flags, libraries = (*flags, "-fPIC"), ("-lm",)
    sources = [str(path) for path in sorted(FOLDER.glob("*.c"))]
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / library.name
        cache = {"ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}
        try:
            done = subprocess.run(
                [*command, *flags, "-o", str(made), *sources, *libraries],
                env={**os.environ, **cache},
                capture_output=True,
                text=True,
                errors="replace",
            )
        except OSError as error:
            return str(error)
        if done.returncode or not made.exists():
            return done.stderr.strip() or f"exit code {done.returncode}"
        partial = library.with_name(f"{library.name}.{os.getpid()}")
        shutil.copyfile(made, partial)
        partial.replace(library)  # a process that has loaded the old one keeps it
    return None


def wheel_platform(target: str | None = None) -> str:
    """Return the platform that the name of a wheel says: that of a target, or of this machine."""
    if target is not None:
        return TARGETS[target]
    if sys.platform == "darwin":  # the Python may be for both kinds of processors; the library is for this one
        return f"macosx_11_0_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _zig(target: str | None = None) -> list[list[str]]:
    """Return the command of the compiler that PyPI has, if it is installed."""
    if importlib.util.find_spec("ziglang") is None:
        return []
    machine = ["-target", target] if target else []
    return [[sys.executable, "-m", "ziglang", "cc", *machine, "-mcpu=baseline"]]


def _is_fresh(library: Path) -> bool:
    sources = [*FOLDER.glob("*.[ch]"), Path(__file__)]
    return library.exists() and library.stat().st_mtime > max(path.stat().st_mtime for path in sources)


if __name__ == "__main__":
    if sys.argv[1:] == ["--targets"]:
        print(*TARGETS)
    else:
        sys.exit(0 if build() else 1)
