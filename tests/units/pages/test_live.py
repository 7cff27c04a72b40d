"""The page of a stream: on this machine alone, for reading alone, and in a real browser."""

import http.client
import json
import re
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from browser import browser, console_errors, overflow, screenshot
from feeding import stream

from kalprox.pages.live import LivePage


def ask(page, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


@pytest.fixture
def page():
    with LivePage(lambda: {"rows": np.int64(3), "error": float("nan"), "name": "</script>"}, 0) as page:
        yield page


def test_the_page_and_its_state_are_served(page):
    status, headers, content = ask(page)
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    text = content.decode()
    assert not re.search(r"(src|href)=\"(?!data:)", text) and "@import" not in text and "url(" not in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    status, headers, content = ask(page, "/state.json?x=1")
    assert status == 200 and json.loads(content) == {"rows": 3, "error": None, "name": "</script>"}
    assert headers["Cache-Control"] == "no-store" and "Access-Control-Allow-Origin" not in headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy and "connect-src 'self'" in policy


@pytest.mark.parametrize("path", ["/..", "/etc/passwd", "/state", "/page.css"])
def test_there_is_nothing_else(page, path):
    assert ask(page, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_the_page_is_for_reading_only(page, method):
    status, headers, _ = ask(page, method=method)
    assert status == 405 and headers["Allow"] == "GET"


def test_other_names_are_refused(page):
    """A site that leads its own name to 127.0.0.1 reads nothing."""
    for host in ("evil.example", f"evil.example:{page.port}", "127.0.0.1", "127.0.0.1:1"):
        assert ask(page, "/state.json", Host=host)[0] == 403
    assert ask(page, "/state.json", Host=f"localhost:{page.port}")[0] == 200


def test_the_page_is_on_this_machine_alone(page):
    assert page._server.server_address[0] == "127.0.0.1"
    for address in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}:
        if not address.startswith("127."):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, page.port), timeout=1).close()


def test_a_port_that_is_taken_is_said(page):
    with pytest.raises(OSError, match=r"cannot be served on port \d+: .* Choose another --watch"):
        LivePage(dict, page.port)


def lines(n, seed, names=("temperature", "humidity"), shift=0.0):
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        x = rng.standard_normal(2).round(4).tolist()
        row = dict(zip(names, x, strict=True)) | {"<b>g</b>": "uv"[i % 2]}
        row["rides"] = 2 * x[0] - x[1] + shift + float(rng.standard_normal())
        if i % 25 == 7:
            row[names[1]] = "<img src=x onerror=alert(1)>"
        if i % 10 == 3:
            del row["rides"]
        found.append(json.dumps(row).encode() + b"\n")
    return found


@pytest.mark.slow
@pytest.mark.integration
def test_the_page_in_a_browser(tmp_path):
    options = ["--target", "rides", "--infer-rows", 50, "--watch", 0, "--quarantine", tmp_path / "bad.csv"]
    options += ["--change-points", "auto"]
    with browser() as driver, stream(*options) as process:
        address = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline().decode())[0]
        driver.get_log("performance"), driver.get_log("browser")
        driver.get(address)
        for k in range(6):
            process.stdin.write(b"".join(lines(150, k, shift=8.0 * (k > 3))))
            process.stdin.flush()
            for _ in range(150):
                process.stdout.readline()
            time.sleep(1.1)

        def shown():
            return driver.find_element("css selector", "body").get_attribute("data-rows") == "900"

        deadline = time.monotonic() + 60
        while not shown():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        text = driver.find_element("css selector", "body").text
        assert "rides: kalprox stream" in text and "900" in text
        assert "temperature" in text and "<b>g</b>=" in text and "36 of 900 rows could not be used." in text
        assert "Change points" in text
        assert not driver.find_elements("css selector", "main b, main img")  # names and values are text
        for chart in ("#error .line", "#coverage .line", "#coverage .aim", "#coefs td svg .band", "#error .change"):
            assert driver.find_elements("css selector", chart), chart
        assert not driver.find_element("css selector", "#weights-part").is_displayed()
        assert console_errors(driver) == []
        messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        urls = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
        assert urls and all(url.startswith((address, "data:")) for url in urls)
        for width, dark in ((1100, False), (390, True)):
            screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
            assert overflow(driver) <= 0
            assert screenshot(driver, tmp_path / f"{width}.png").stat().st_size > 10_000
        process.stdin.close()
        assert process.wait(timeout=60) == 0
        deadline = time.monotonic() + 30
        while not driver.find_element("css selector", "#gone").is_displayed():  # the page says so, and stays
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert Path(tmp_path / "bad.csv").read_text().count("not a number") == 36


@pytest.mark.slow
@pytest.mark.integration
def test_the_weights_of_a_bank_can_be_told_apart():
    names, rows = [f"way {k}" for k in range(8)], [100, 200, 300]
    empty = {name: [[], [], []] for name in ("coef", "low", "high")}
    points = {"rows": rows, "error": [1, 2, 1], "coverage": [0.9, 1, 0.9], "weights": [[0.125] * 8] * 3, **empty}
    numbers = dict.fromkeys(("rows", "learned", "predicted", "waiting", "dropped", "bad", "rate", "error"), 1)
    state = {**numbers, "target": "y", "classes": False, "about": "", "latency": [None, None], "level": 0.95}
    state |= {"coverage": 0.9, "reasons": [], "foot": "", "names": [], "coefs_text": "", "points": points}
    state |= {"weights": {"names": names}, "changes": [{"row": 150, "found": 160, "probability": 0.99, "time": ""}]}
    with LivePage(lambda: state, 0) as page, browser() as driver:
        driver.get(page.address)
        deadline = time.monotonic() + 30
        while len(lines := driver.find_elements("css selector", "#weights .line")) < 8:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        style = "const s = getComputedStyle(arguments[0]); return s.stroke + s.strokeDasharray"
        assert len({driver.execute_script(style, line) for line in lines}) == 8
        legend = [item.text for item in driver.find_elements("css selector", "#weights-legend li")]
        assert legend == names and driver.find_elements("css selector", "#weights .change")
        assert console_errors(driver) == []
