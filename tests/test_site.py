"""The built site: links inside it lead somewhere, and its pages open in a real browser. `make docs` builds it."""

import re
from functools import cache
from html.parser import HTMLParser
from os.path import normpath
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import browser, colours, console_errors, outside_requests, overflow, show

SITE = Path(__file__).parents[1] / "docs" / "_build" / "html"
if not (SITE / "index.html").exists():
    pytest.skip("the site is not built: make docs", allow_module_level=True)


class Page(HTMLParser):
    """The addresses that a page links to, those that it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "preload", "icon", "modulepreload"):
            self.loaded.append(found["href"])
        elif "src" in found:
            self.loaded.append(found["src"])


@cache
def page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


PAGES = [path for path in sorted(SITE.rglob("*.html")) if "_static" not in path.parts]


def target(source: Path, address: str) -> tuple[Path, str]:
    parts = urlsplit(address)
    path = source if not parts.path else Path(normpath(source.parent / unquote(parts.path)))
    return path, unquote(parts.fragment)


@cache
def leads_somewhere(path: Path, anchor: str) -> bool:
    return path.exists() and (path.suffix != ".html" or anchor in page(path).anchors)


@pytest.fixture(scope="module")
def _pages_are_read():
    """Reading two hundred pages takes seconds, which are of no single test."""
    for path in PAGES:
        page(path)


@pytest.mark.usefixtures("_pages_are_read")
def test_every_link_inside_the_site_leads_somewhere():
    broken = []
    for source in PAGES:
        for address in sorted(set(page(source).links)):
            if not urlsplit(address).scheme and not leads_somewhere(*target(source, address)):
                broken.append(f"{source.relative_to(SITE)}: {address}")
    assert broken == []


@pytest.mark.usefixtures("_pages_are_read")
def test_nothing_is_loaded_from_other_machines_and_all_that_is_loaded_is_there():
    missing = []
    for source in PAGES:
        for address in page(source).loaded:
            inside = not urlsplit(address).scheme and not address.startswith("//")
            if not address.startswith("data:") and not (inside and target(source, address)[0].exists()):
                missing.append(f"{source.relative_to(SITE)}: {address}")
    assert missing == []


def gallery_page() -> str:
    """A page of the gallery, one with a figure where there is one."""
    pages = [p for p in sorted((SITE / "gallery").glob("*.html")) if p.stem not in ("index", "sg_execution_times")]
    return max(pages, key=lambda p: "sphx-glr-single-img" in p.read_text()).relative_to(SITE).as_posix()


OPENED = {
    "home": "index.html",
    "tutorial": "tutorials/first_stream.html",
    "gallery": gallery_page(),
    "API": "reference/generated/kalprox.KalproxRegressor.html",
    "theory": "theory/regret.html",
}


@pytest.fixture(scope="module")
def driver():
    with browser() as opened:
        yield opened


@pytest.mark.integration
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", OPENED)
def test_a_page_opens_in_a_browser(driver, name, width, dark):
    show(driver, SITE / OPENED[name], width, dark=dark)
    driver.implicitly_wait(10)
    assert driver.find_element("css selector", "h1").text
    if name == "theory":
        driver.find_element("css selector", "mjx-container svg")  # drawn by MathJax, which is slower than the page
    assert console_errors(driver) == []
    assert outside_requests(driver) == []
    assert overflow(driver) <= 0
    theme = driver.execute_script("return document.documentElement.dataset.theme")
    assert theme == ("dark" if dark else "light")
    driver.implicitly_wait(0)
    figures = [img for img in driver.find_elements("css selector", "article img") if img.is_displayed()]
    assert [img.get_attribute("src") for img in figures if colours(img) < 20] == []
    assert figures or name not in ("home", "gallery")
    for img in figures:
        assert img.size["width"] <= width


@pytest.mark.integration
def test_the_page_of_the_regressor_has_every_parameter_method_and_fitted_attribute(driver):
    from kalprox import KalproxRegressor

    show(driver, SITE / OPENED["API"], 1280)
    text = driver.find_element("css selector", "article").text
    fitted = [n for n in dir(KalproxRegressor) if n.endswith("_") and n[0] != "_"]
    names = [*KalproxRegressor(penalty="ridge").get_params(), *fitted, "n_features_in_", "feature_names_in_"]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
