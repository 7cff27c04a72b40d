"""Files that are written: one file under several names, devices and pipes, permissions, what killed processes leave."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kalprox.base import files
from kalprox.base.files import (
    FileInUseError,
    atomic_open,
    atomic_write,
    check_distinct,
    descriptor,
    is_stream,
    open_locked,
)

WRITER = """
import sys
from pathlib import Path
from kalprox.base.files import atomic_open
with atomic_open(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("ready", flush=True)
    sys.stdin.readline()
    file.write(b" and half")
"""


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def writing(path):
    """A process in the middle of writing a file."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def parts(folder):
    return {path.name for path in folder.iterdir() if path.name.endswith(".part")}


# one file under several names


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_bytes(b"rows")
    (tmp_path / "soft.csv").symlink_to("data/x.csv")
    os.link(tmp_path / "data" / "x.csv", tmp_path / "hard.csv")
    (tmp_path / "linked").symlink_to("data")
    (tmp_path / "dangling").symlink_to("data/new")
    return tmp_path


@pytest.mark.parametrize(
    "other", ["data/x.csv", "data/../data/x.csv", "soft.csv", "hard.csv", "linked/x.csv", "relative"]
)
def test_an_existing_file_under_another_name_is_the_same(folder, other, monkeypatch):
    monkeypatch.chdir(folder)
    other = Path("data/x.csv") if other == "relative" else folder / other
    with pytest.raises(ValueError, match=r"SOURCE and --out are the same file.* another file for --out"):
        check_distinct([("SOURCE", folder / "data/x.csv")], [("--out", other)])
    with pytest.raises(ValueError, match="--out and --events are the same file"):
        check_distinct([], [("--out", folder / "data/x.csv"), ("--quarantine", None), ("--events", other)])
    with pytest.raises(ValueError, match="count twice"):
        check_distinct([("SOURCE", folder / "data/x.csv"), ("SOURCE", other)], [])
    check_distinct([("SOURCE", folder / "data/x.csv"), ("SOURCE", other)], [("--out", folder / "new")], repeats=True)


@pytest.mark.parametrize("other", ["data/new", "linked/new", "data/NEW", "dangling", "data/./new"])
def test_a_new_file_under_another_name_is_the_same(folder, other):
    with pytest.raises(ValueError, match="are the same file"):
        check_distinct([], [("--out", folder / "data/new"), ("--checkpoint", folder / other)])
    check_distinct([], [("--out", folder / "data/new"), ("--checkpoint", folder / "new")])
    assert not (folder / "data" / "new").exists()


def test_devices_may_be_used_twice_and_pipes_may_not(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    check_distinct([("SOURCE", "/dev/null")], [("--out", "/dev/null"), ("--events", "/dev/null")])
    with pytest.raises(ValueError, match="are the same file"):
        check_distinct([], [("--out", tmp_path / "pipe"), ("--events", tmp_path / "pipe")])


@pytest.mark.integration
def test_standard_input_is_the_file_that_it_is_redirected_from(tmp_path):
    (tmp_path / "rows.csv").write_bytes(b"rows")
    named = "[('SOURCE', '-')], [('--quarantine', 'rows.csv')]"
    code = f"from kalprox.base.files import check_distinct; check_distinct({named})"
    with open(tmp_path / "rows.csv") as rows:
        done = subprocess.run([sys.executable, "-c", code], stdin=rows, cwd=tmp_path, capture_output=True, text=True)
    assert "SOURCE and --quarantine are the same file" in done.stderr


def test_names_of_open_files(tmp_path):
    (tmp_path / "out").symlink_to("/dev/stdout")
    names = ["/dev/stdin", "/dev/stdout", "/dev/fd/63", "/proc/self/fd/7", tmp_path / "out", "/dev/../dev/stderr"]
    assert [descriptor(name) for name in names] == [0, 1, 63, 7, 1, 2]
    assert descriptor("/dev/null") is None and descriptor(tmp_path / "1") is None and descriptor("stdout") is None
    assert is_stream("/dev/null") and is_stream("/dev/stdout") and not is_stream(tmp_path)


# devices, pipes, links


def test_a_link_is_followed(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data/file")
    for content in (b"new", b"newer"):
        atomic_write(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "data" / "file").read_bytes() == content
    assert {path.name for path in tmp_path.iterdir()} == {"data", "link"}


@pytest.mark.parametrize("check", [None, lambda name: None])
def test_a_pipe_is_written_to(tmp_path, check):
    os.mkfifo(tmp_path / "pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with atomic_open(tmp_path / "pipe", check) as file:
        file.write(b"content")
    reader.join()
    assert got == [b"content"] and stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_what_fails_its_check_does_not_reach_a_pipe(tmp_path):
    def refused(name):
        raise ValueError(Path(name).read_bytes())

    read, write = os.pipe()
    with pytest.raises(ValueError, match="content"), atomic_open(Path(f"/dev/fd/{write}"), refused) as file:
        file.write(b"content")
    os.close(write)
    assert os.read(read, 10) == b""
    os.close(read)


def test_a_device_is_written_to():
    terminal, device = os.openpty()
    name = Path(os.ttyname(device))
    atomic_write(name, b"content ")
    with open_locked(name) as file:
        file.write(b"and more")
    got = b""
    while len(got) < len(b"content and more"):
        got += os.read(terminal, 100)
    assert got == b"content and more" and stat.S_ISCHR(os.stat(name).st_mode)
    os.close(terminal)
    os.close(device)


@pytest.mark.integration
def test_standard_output_is_appended_to(tmp_path):
    code = "from pathlib import Path; from kalprox.base.files import *; atomic_write(Path('/dev/stdout'), b'new')"
    code += "; open_locked('/dev/stdout').write(b'er')"
    (tmp_path / "log").write_bytes(b"old ")
    with open(tmp_path / "log", "ab") as log:
        subprocess.run([sys.executable, "-c", code], stdout=log, check=True)
    assert (tmp_path / "log").read_bytes() == b"old newer"
    with pytest.raises(OSError, match="/dev/fd/999 is not open for writing"):
        atomic_write(Path("/dev/fd/999"), b"")


# permissions


def test_files_are_created_for_their_owner_and_keep_their_permissions(tmp_path):
    def write(path):
        atomic_write(path, b"content")

    def lock(path):
        open_locked(path).close()

    mask = os.umask(0o022)
    try:
        for make in (write, lock):
            path = tmp_path / make.__name__
            make(path)
            assert mode(path) == 0o600
            path.chmod(0o640)
            make(path)
            assert mode(path) == 0o640
            path.unlink()
            os.umask(0o277)
            make(path)
            assert mode(path) == 0o400
            os.umask(0o022)
    finally:
        os.umask(mask)


# temporary files and locks


@pytest.mark.integration
def test_temporary_files_of_the_dead_are_removed_and_of_the_living_are_not(tmp_path):
    run, other = tmp_path / "run", tmp_path / "run.2"
    processes = killed, living, neighbour = [writing(run), writing(run), writing(other)]
    try:
        assert len(parts(tmp_path)) == 3
        atomic_write(run, b"first")
        assert len(parts(tmp_path)) == 3  # all three are alive
        for process in (killed, neighbour):
            process.send_signal(signal.SIGKILL)
            process.wait()
        atomic_write(run, b"second")
        assert len(parts(tmp_path)) == 2 and run.read_bytes() == b"second"
        living.communicate("go on\n")
        assert living.returncode == 0 and run.read_bytes() == b"half and half"
        assert [name.startswith(".run.2.") for name in parts(tmp_path)] == [True]
        atomic_write(other, b"third")
        assert parts(tmp_path) == set()
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_temporary_file_that_another_process_removed_too_early_is_made_again(tmp_path, monkeypatch):
    lock, made = files._lock, []

    def slow(handle, **options):
        if not made:
            made.append(os.unlink(tmp_path / parts(tmp_path).pop()))
        return lock(handle, **options)

    monkeypatch.setattr(files, "_lock", slow)
    assert atomic_write(tmp_path / "file", b"content").read_bytes() == b"content" and made


def test_a_file_that_another_process_writes_to_is_not_touched(tmp_path):
    with open_locked(tmp_path / "events") as first:
        first.write(b"line\n")
        first.flush()
        with pytest.raises(FileInUseError, match="Another process is writing to"):
            open_locked(tmp_path / "events")
        assert (tmp_path / "events").read_bytes() == b"line\n"
    with open_locked(tmp_path / "events", keep=2) as again:
        again.write(b"ke")
    assert (tmp_path / "events").read_bytes() == b"like"


# other systems


def test_windows_is_given_time_to_close_the_file(tmp_path, monkeypatch):
    replace, tries = os.replace, []

    def busy(old, new):
        tries.append(old)
        if len(tries) < 3:
            raise PermissionError
        replace(old, new)

    monkeypatch.setattr(files.os, "replace", busy)
    (tmp_path / "old").write_bytes(b"content")
    with pytest.raises(PermissionError):
        files._replace(str(tmp_path / "old"), tmp_path / "new")
    monkeypatch.setattr(files.sys, "platform", "win32")
    files._replace(str(tmp_path / "old"), tmp_path / "new")
    assert len(tries) == 3 and (tmp_path / "new").read_bytes() == b"content"


def test_macos_empties_the_cache_of_the_drive(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(files.sys, "platform", "darwin")
    monkeypatch.setattr(files.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(files.fcntl, "fcntl", lambda handle, command: calls.append(command))
    with open(tmp_path / "file", "wb") as file:
        files.flush_to_disk(file.fileno())
    assert calls == [51]
