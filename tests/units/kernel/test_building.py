"""The kernel is compiled where it can be, found where it is, and done without where it is not."""

import importlib.util
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from kalprox.calibration import Calibration
from kalprox.kernel import build, library

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SANITISED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g")


@pytest.fixture
def anew():
    """The library is looked for anew, by the test and by those after it."""
    library.kernel.cache_clear()
    yield
    library.kernel.cache_clear()


@pytest.fixture
def no_compiler(monkeypatch):
    for name in ("CC", build.OFF, build.TARGET):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)


def test_without_a_compiler_nothing_is_built_and_that_is_said(no_compiler, tmp_path, capsys):
    assert build.compilers() == []
    assert build.build(tmp_path) is None
    assert "without its compiled kernel: no C compiler was found" in capsys.readouterr().err


@pytest.mark.integration
def test_a_compiler_that_fails_is_none(no_compiler, tmp_path, capsys, monkeypatch):
    old = tmp_path / build.library_name()
    old.write_text("an old one")
    os.utime(old, (0, 0))
    monkeypatch.setattr(build, "compilers", lambda: [[str(tmp_path / "nothing")]])
    assert build.build(tmp_path) is None and not list(tmp_path.iterdir())
    assert str(tmp_path / "nothing") in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.skipif(not build.compilers(), reason="there is no C compiler")
def test_it_is_compiled_once_and_again_when_a_source_is_newer(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "FLAGS", ("-std=c11", "-O0"))
    made = build.build(tmp_path)
    assert made == tmp_path / build.library_name() and list(tmp_path.iterdir()) == [made]
    before = made.stat()
    assert build.build(tmp_path).stat().st_mtime_ns == before.st_mtime_ns
    os.utime(made, (0, 0))
    assert build.build(tmp_path).stat().st_mtime > 0


@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("linux", "kalprox.kernel.so"),
        ("darwin", "kalprox.kernel.dylib"),
        ("win32", "kalprox.kernel.dll"),
        *(
            (target, name)
            for name, part in ((".dylib", "macos"), (".dll", "windows"))
            for target in build.TARGETS
            if part in target
        ),
    ],
)
def test_the_library_has_the_name_of_its_system(system, name):
    assert build.library_name(system).endswith(name)


def test_a_missing_library_is_said_once_and_then_numpy_does(anew, monkeypatch, tmp_path):
    monkeypatch.delenv(build.OFF, raising=False)
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    with pytest.warns(library.NotCompiledWarning, match="it has not been compiled: .* Install kalprox anew"):
        first = Calibration().update(np.zeros(3), np.ones(3), np.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert first.update(np.zeros(3), np.ones(3), np.ones(3)).rows == 6


def test_a_library_that_is_none_or_another_one_is_not_used(anew, monkeypatch, tmp_path):
    monkeypatch.delenv(build.OFF, raising=False)
    if library.kernel() is not None:
        library.kernel.cache_clear()
        with monkeypatch.context() as changed:
            changed.setattr(library, "VERSION", library.VERSION + 1)
            with pytest.warns(library.NotCompiledWarning, match="compiled for another version"):
                assert library.kernel() is None
    library.kernel.cache_clear()
    (tmp_path / build.library_name()).write_text("no library")
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    with pytest.warns(library.NotCompiledWarning, match="it cannot be loaded"):
        assert library.kernel() is None


def test_a_hidden_library_is_not_missed(anew, monkeypatch):
    monkeypatch.setenv(build.OFF, "off")
    assert library.kernel() is None


def test_the_wheel_asks_for_ziglang_only_where_there_is_no_compiler_and_never_insists(no_compiler, monkeypatch):
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hook = module.KernelHook.__new__(module.KernelHook)
    monkeypatch.setattr(module.build, "compilers", lambda: [])
    for there in (True, False):
        monkeypatch.setattr(module, "_index_has", lambda package, there=there: there)
        assert hook.dependencies() == (["ziglang"] if there else [])
    monkeypatch.setattr(module, "_index_has", lambda package: True)
    monkeypatch.setattr(module.build, "compilers", lambda: [["cc"]])
    assert hook.dependencies() == []


@pytest.mark.slow
@pytest.mark.integration
def test_the_functions_under_sanitisers(tmp_path):
    for command in build.compilers():
        runtime = _sanitiser_of(command)
        flags = (*build.FLAGS, "-fopenmp-simd", *SANITISED)
        if runtime and build.compiled(command, tmp_path / build.library_name(), flags) is None:
            break
    else:
        pytest.skip("no compiler here has the address sanitiser as a library that can be preloaded")
    code = (
        "import pathlib, sys, pytest\n"
        "from kalprox.kernel import library\n"
        "library.FOLDER = pathlib.Path(sys.argv[1])\n"
        "assert library.kernel() is not None\n"
        "sys.exit(pytest.main(['-q', '-c', '/dev/null', '--noconftest', '-p', 'no:cacheprovider', *sys.argv[2:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), *map(str, sorted(HERE.glob("test_[!b]*.py")))],
        env={**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


def _sanitiser_of(command):
    """Return the path of a compiler's library of the address sanitiser, "" if it has none."""
    if not sys.platform.startswith("linux") or not shutil.which(command[0]):
        return ""
    asked = subprocess.run([*command, "-print-file-name=libasan.so"], capture_output=True, text=True)
    path = asked.stdout.strip()
    return path if os.path.isabs(path) and Path(path).exists() else ""
