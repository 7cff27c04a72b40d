"""A browser for tests of pages: headless chromium, driven by selenium.

with browser() as driver:
    show(driver, path, width=390)
    assert console_errors(driver) == [] and outside_requests(driver) == [] and overflow(driver) <= 0
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest


@contextmanager
def browser() -> Iterator:
    """A driver that records the console and all requests. The test is skipped if chromium is not installed."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("chromium and chromedriver are not both installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    try:
        yield driver
    finally:
        driver.quit()


def show(driver, path: str | Path, width: int, height: int = 900, dark: bool = False) -> None:
    """Open a file on an emulated screen of `width` CSS pixels (a real window cannot be as narrow as a phone)."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    for log in ("browser", "performance"):
        driver.get_log(log)  # discards the entries of earlier pages
    driver.get(Path(path).resolve().as_uri())


def console_errors(driver) -> list[str]:
    """The errors and warnings in the console since the page was opened."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def outside_requests(driver) -> list[str]:
    """The addresses requested since the page was opened, except local files and data in the page."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert any(url.startswith("file:") for url in urls), "the page's own request must be in the log"
    return [url for url in urls if not url.startswith(("file:", "data:"))]


def overflow(driver) -> int:
    """By how many pixels the page is wider than the screen; 0 or less if it does not scroll horizontally."""
    return driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")


def box(driver, element) -> tuple[float, float, float, float]:
    """Left, top, width and height of an element on the page (selenium's `rect` is wrong for SVG elements)."""
    script = "const b = arguments[0].getBoundingClientRect(); return [b.x + scrollX, b.y + scrollY, b.width, b.height]"
    left, top, width, height = driver.execute_script(script, element)
    return left, top, width, height


def drawings(driver) -> list:
    """The drawings that are shown; a figure may have two, of which a screen shows one."""
    return [svg for svg in driver.find_elements("css selector", "figure svg") if svg.is_displayed()]


def label_sizes(driver) -> list[float]:
    """The font sizes of the labels in the drawings that are shown, superscripts included, in pixels.

    Matplotlib writes text as glyphs in units of a hundredth of the font size, so that the scale tells the size.
    """
    script = """
    return [...document.querySelectorAll('figure svg')].filter(svg => svg.getBoundingClientRect().width > 0)
      .flatMap(svg => [...svg.querySelectorAll('g[id*="text_"] use')])
      .map(glyph => { const m = glyph.getScreenCTM(); return 100 * Math.hypot(m.a, m.b) })
    """
    return driver.execute_script(script)


def colours(element) -> int:
    """The number of different colours in an element; a blank one has one."""
    from PIL import Image

    assert element.is_displayed(), "the element is not shown"
    element.parent.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    with Image.open(BytesIO(element.screenshot_as_png)) as picture:
        pixels = picture.convert("RGB")
        return len(pixels.getcolors(pixels.width * pixels.height))


def screenshot(driver, path: str | Path) -> Path:
    """Save an image of the whole page, including what is below the edge of the screen, as a PNG file."""
    import base64

    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    path = Path(path)
    path.write_bytes(base64.b64decode(shot["data"]))
    return path
