"""How the tests run.

* Strict promotion: a silent broadcast or a silent cast between dtypes is an error.
* Hypothesis draws the same examples in every run: a test that turns red has met a change.
* Only tests marked `integration` may start processes, and only tests marked `slow` may take long.
* What JAX compiles is kept in pytest's cache, so that the next run does not compile it again.
* Where the kernel is not compiled, nothing says so: a warning would be an error.
* Figures of pyplot are drawn without a window, and closed after each test.
"""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings

# Mark as `slow` what takes more than 2 seconds of CPU time on an idle machine: in a run of all tests it fails. Of some
# tests the first pays for what others would have imported: the end of such a run names what took longer.
LONG = 2.0
NOMINAL = 0.015  # seconds of `_Speed.loop` on the machine on which these seconds are counted
OFTEN = 10.0  # seconds after which the speed of the machine is measured anew
COMPILE_CACHE_BYTES = 2**30
RESIDENT = 850 * 2**20  # bytes of memory at which a process gives back what it can

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # or scikit-learn skips its check of array inputs
os.environ.setdefault("MPLBACKEND", "Agg")
if not list((Path(__file__).parent / "kalprox" / "kernel").glob("kalprox.kernel.*")):
    os.environ.setdefault("KALPROX_KERNEL", "off")
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")  # or joblib starts a process to count the cores
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_configure(config):
    # A shell starts a job in the background with interrupts ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        _configure_jax(config)  # the process that only hands out tests does without


def _configure_jax(config):
    import jax

    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.monitoring.register_event_duration_secs_listener(_Compiling.add)
    if (cache := getattr(config, "cache", None)) is not None:  # None with -p no:cacheprovider
        jax.config.update("jax_compilation_cache_dir", str(cache.mkdir("jax")))
        jax.config.update("jax_compilation_cache_max_size", COMPILE_CACHE_BYTES)  # with a limit, JAX locks its files
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class _Compiling:
    """The seconds that JAX has spent on tracing and compiling: a run without a cache is not a slow test."""

    seconds = 0.0

    @classmethod
    def add(cls, event, seconds, **_):
        if event.startswith("/jax/core/compile/"):
            cls.seconds += seconds


def _cpu_seconds():
    """CPU time of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Speed:
    """How many times as long as on an idle machine all takes now: with other work on the same core, twice as long.

    That changes within a test, so it is measured before a test, if not lately, and after one that took long; the longer
    one counts. A test that is near the limit is rather let pass than called long for what others do.
    """

    slowness = 1.0
    when = -OFTEN

    @staticmethod
    def loop():
        begin = time.process_time()
        for _ in range(10):
            sum(i * i for i in range(20_000))
        return time.process_time() - begin

    @classmethod
    def measure(cls, times):
        cls.slowness = max(1.0, *(cls.loop() / NOMINAL for _ in range(times)))
        cls.when = time.monotonic()
        return cls.slowness


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if time.monotonic() - _Speed.when > OFTEN:
        _Speed.measure(1)
    clock, cpu, compiling, before = time.monotonic(), _cpu_seconds(), _Compiling.seconds, _Speed.slowness
    result = yield
    # On a busy machine the clock runs on, and a child that ends now may have worked for the tests before.
    spent = min(time.monotonic() - clock, _cpu_seconds() - cpu) - (_Compiling.seconds - compiling)
    if spent > LONG and isinstance(item, pytest.Function) and item.get_closest_marker("slow") is None:
        spent /= max(before, _Speed.measure(5))
        item.user_properties.append(("seconds", spent))
        if spent > LONG and not item.config.option.file_or_dir:
            pytest.fail(f"took {spent:.1f} s: mark it with pytest.mark.slow, or make it faster", pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter):
    passed = terminalreporter.stats.get("passed", [])
    long = [(dict(report.user_properties).get("seconds", 0.0), report.nodeid) for report in passed]
    long = sorted(one for one in long if one[0] > LONG)
    if long:
        terminalreporter.section(f"more than {LONG:.0f} s, and not marked as slow")
        for seconds, name in reversed(long):
            terminalreporter.line(f"{seconds:.1f} s  {name}")


@pytest.fixture(autouse=True)
def _only_integration_tests_start_processes(request, monkeypatch):
    if request.node.get_closest_marker("integration") is None:
        start = subprocess.Popen.__init__

        def refuse(process, arguments, *more, **options):
            if arguments[0] != "fc-list":  # matplotlib lists the fonts when a machine draws its first figure
                raise AssertionError(f"mark this test with pytest.mark.integration: it starts {arguments}")
            start(process, arguments, *more, **options)

        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)


@pytest.fixture(autouse=True, scope="module")
def _memory_is_given_back():
    """What JAX has compiled stays in memory, and freed memory with the process, unless they are told otherwise."""
    yield
    if sys.platform.startswith("linux") and _resident_bytes() > RESIDENT:
        sys.modules["jax"].clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def _figures_are_closed():
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")
