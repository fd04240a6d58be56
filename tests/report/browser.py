"""Pages in a headless Chromium: what they say, draw and ask for."""

import base64
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

# The structure is drawn by the processor: there need be no graphics card.
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
)
SECONDS = 60
NO_WEBGL = """
    const real = HTMLCanvasElement.prototype.getContext;
    HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {
        return kind.startsWith('webgl') ? null : real.call(this, kind, ...rest);
    };
"""


class Browser:
    """One window of a browser that keeps what the console said and what was fetched."""

    def __init__(self, program: str, driver: str, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))

    def open(self, page: Path, *, width: int = 920, height: int = 900, dark: bool = False, wait: bool = True) -> None:
        """Load a page from its file; with `wait`, until it says that it is ready."""
        self.driver.get("about:blank")
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(page.resolve().as_uri())
        if wait:
            self.until(lambda: self.run("return document.documentElement.dataset.ready") == "yes")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element("css selector", selector)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds; an element that a page has just replaced is looked for again."""

        def holds(_: object) -> object:
            try:
                return condition()
            except StaleElementReferenceException:
                return False
            except WebDriverException as error:
                # So says the driver of an element, or a page, that went between two of its questions to the browser.
                if "inspector error" in (error.msg or ""):
                    return False
                raise

        WebDriverWait(self.driver, SECONDS, poll_frequency=0.05).until(holds)

    def click(self, selector: str) -> None:
        """Wait for an element, and click on it."""

        def clicked() -> bool:
            self.find(selector).click()
            return True

        self.until(clicked)

    def complaints(self) -> list[str]:
        """Whatever the console says, but for the graphics driver's remarks on its own speed."""
        return [
            entry["message"] for entry in self.driver.get_log("browser") if "GL Driver Message" not in entry["message"]
        ]

    def fetched(self) -> list[str]:
        """Every address that was asked for since the page was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def picture(self, selector: str) -> np.ndarray:
        """An element as it is seen: rows, columns, red, green and blue."""
        png = base64.b64decode(self.find(selector).screenshot_as_base64)
        return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=np.int64)

    def point(self, selector: str, right: float, down: float, *, click: bool = False) -> None:
        """Bring the mouse to a place in an element, from its upper left corner, in pixels of the page."""
        element = self.find(selector)
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        box = self.run("const box = arguments[0].getBoundingClientRect(); return [box.left, box.top]", element)
        chain = ActionChains(self.driver, duration=20)
        chain.w3c_actions.pointer_action.move_to_location(round(box[0] + right), round(box[1] + down))
        if click:
            chain.w3c_actions.pointer_action.click()
        chain.perform()

    def drag(self, selector: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse at a place in an element and let go at another."""
        self.point(selector, *start)
        chain = ActionChains(self.driver, duration=20)
        chain.click_and_hold().move_by_offset(round(end[0] - start[0]), round(end[1] - start[1])).release().perform()

    @contextmanager
    def without_webgl(self) -> Iterator[None]:
        """Open pages without their structures, which take most of the time."""
        command = "Page.addScriptToEvaluateOnNewDocument"
        added = self.driver.execute_cdp_cmd(command, {"source": NO_WEBGL})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    def too_wide(self) -> int:
        """By how many pixels the page would have to be scrolled sideways."""
        return int(self.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth"))
