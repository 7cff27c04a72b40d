"""The page of `kalprox stream --watch`, and clients that go away."""

import os
import re
import socket
import struct
import subprocess
import sys
import time

import pytest


@pytest.mark.slow
@pytest.mark.integration
def test_a_client_that_goes_away_leaves_no_traceback():
    command = [sys.executable, "-m", "kalprox", "stream", "-y", "y", "--infer-rows", "1", "--watch", "0", "--quiet"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        port = int(re.search(rb":([0-9]+)/", process.stderr.readline())[1])
        process.stdin.write(b"x,y\n1,2\n2,4\n3,5\n")
        process.stdin.flush()
        for _ in range(4):
            process.stdout.readline()
        for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port):
            for _ in range(5):
                client = socket.create_connection(("127.0.0.1", port))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset when closed
                client.sendall(sent)
                client.close()
        time.sleep(0.5)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0 and said == b""
