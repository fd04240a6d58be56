"""A real browser submits by the form, sees progress as it comes, and asks nobody else for anything."""

import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from helixfold.report.target_page import write_report
from tests.apps.serve.running import Running, running
from tests.report.reported import write_target

if TYPE_CHECKING:
    from tests.report.browser import Browser

# A page whose title shows its origin and the service's cookies, or the error that it gets for them.
TELLS_WHAT_IT_REACHES = b"""<!doctype html><title>not run</title><script>
let cookies;
try { cookies = document.cookie; } catch (error) { cookies = error.name; }
document.title = `origin ${origin}, cookies ${cookies}`;
</script>"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Browser]":
    programs = [shutil.which("chromium"), shutil.which("chromedriver")]
    if None in programs:
        pytest.skip("needs a browser (packages chromium and chromium-driver)")
    module = pytest.importorskip("tests.report.browser")
    opened = module.Browser(*programs, tmp_path_factory.mktemp("browser"))
    yield opened
    opened.driver.quit()


def test_a_job_is_submitted_and_watched_in_a_browser(server: Running, browser: "Browser") -> None:
    browser.driver.get(server.url)
    browser.find("#sequence").send_keys("MKTAYIAKQRMKTAYIAKQR")
    browser.until(lambda: "with tiny" in browser.find("#forecast").text)
    browser.click("button.primary")
    browser.until(lambda: browser.run("return document.getElementById('progress')"))
    browser.until(lambda: "queued" in browser.find("#state-line").text)
    claimed = server.claim()
    browser.until(lambda: "running" in browser.find("#state-line").text)
    progress = {"progress": {"stages": [{"name": "features", "seconds": 1.5}]}}
    server.as_worker("POST", "/heartbeat", claimed, content=progress)
    browser.until(lambda: "features" in browser.find("#stages").text)
    server.finish(claimed, {"report.html": TELLS_WHAT_IT_REACHES}, plddt=91.0)
    browser.until(lambda: "91.0" in browser.run("return document.body?.innerText ?? ''"))
    browser.driver.get(f"{server.url}/jobs/{claimed['id']}/files/report.html")
    assert browser.driver.title == "origin null, cookies SecurityError"


def test_the_structure_is_on_the_page_of_its_job(server: Running, browser: "Browser", tmp_path: Path) -> None:
    write_target(tmp_path / "hairpin")
    write_report(tmp_path / "hairpin")
    browser.driver.get(server.url)
    browser.find("#sequence").send_keys("MKTAYIAKQRMKTAYIAKQR")
    browser.click("button.primary")
    browser.until(lambda: browser.run("return document.getElementById('progress')"))
    server.finish(server.claim(), {"report.html": (tmp_path / "hairpin/report.html").read_bytes()}, plddt=91.0)
    browser.until(lambda: browser.run("return document.querySelector('iframe')"))
    browser.driver.switch_to.frame(browser.find("iframe"))
    try:
        browser.until(lambda: browser.run("return document.documentElement.dataset.ready") == "yes")
        shown = (
            "return [...document.querySelectorAll('.card')].filter((card) => card.offsetHeight).map((card) => card.id)"
        )
        assert browser.run(shown) == ["structure-section"]
        assert browser.run("return document.querySelector('.back')") is None
        assert browser.run("return document.getElementById('viewer').viewer.selectedAtoms({}).length") > 100
    finally:
        browser.driver.switch_to.default_content()
    browser.click(".title a[href$='report.html']")
    browser.click(".back a")
    browser.until(lambda: browser.run("return document.getElementById('progress')"))


def test_a_job_is_cancelled_and_tried_again_by_buttons(server: Running, browser: "Browser") -> None:
    browser.driver.get(server.url)
    browser.find("#sequence").send_keys("MKTAYIAKQRMKTAYIAKQR")
    browser.click("button.primary")
    for action, state in (("cancel", "cancelled"), ("retry", "queued")):
        browser.click(f"form[action$='/{action}'] button")
        browser.until(lambda: browser.run(f"return document.body?.innerText.includes('{state}')"))  # noqa: B023


def test_page_of_a_worker_reaches_no_network(server: Running, browser: "Browser") -> None:
    asked: list[str] = []

    class Listening(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    other = ThreadingHTTPServer(("127.0.0.1", 0), Listening)
    thread = Thread(target=other.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{other.server_port}"
        page = f"""<!doctype html><title>waiting</title><link rel="stylesheet" href="{url}/style">
            <img src="{url}/image"><iframe src="{url}/frame"></iframe><script src="{url}/script"></script><script>
            const tries = [fetch("{url}/fetch"), fetch("{url}/post", {{ method: "POST", body: "x" }})];
            navigator.sendBeacon("{url}/beacon", "x");
            window.open("{url}/popup");
            Promise.allSettled(tries).then((ends) => {{ document.title = ends.map((end) => end.status).join(" "); }});
            </script>"""
        server.json("POST", "/api/v1/jobs", {"sequence": "MKTAYIAKQR"})
        while (claimed := server.claim())["request"]["sequence"] != "MKTAYIAKQR":
            pass
        server.finish(claimed, {"report.html": page.encode()})
        browser.driver.get(f"{server.url}/jobs/{claimed['id']}/files/report.html")
        browser.until(lambda: browser.driver.title == "rejected rejected")
        assert asked == []
    finally:
        other.shutdown()
        thread.join()
        other.server_close()


def test_chosen_files_stay_after_a_forecast_and_after_every_refusal(tmp_path: Path, browser: "Browser") -> None:
    rows, large = tmp_path / "rows.a3m", tmp_path / "large.a3m"
    rows.write_text(">query\nMKTAYIAKQR\n>other\nMKTAYIAKQQ\n")
    large.write_text(">query\nMKTAYIAKQR\n" * 10_000)
    shown = "return document.getElementById('messages').innerText"
    chosen = "return [...document.getElementById('alignments').files].map((file) => file.name).join()"
    with running(tmp_path / "service", max_upload=2**16) as server:
        browser.driver.get(server.url)
        browser.run("document.querySelector('details').open = true")
        browser.find("#sequence").send_keys("MKTAYIAKQR")
        browser.find("#alignments").send_keys(str(large))
        browser.click("button.primary")
        browser.until(lambda: "the maximum is 65,536" in browser.run(shown))
        assert browser.run(chosen) == "large.a3m"
        browser.run("document.getElementById('alignments').value = ''")
        browser.find("#alignments").send_keys(str(rows))
        browser.click("#forecast-button")
        browser.until(lambda: "with tiny" in browser.run(shown))
        browser.find("#recycles").send_keys("99")
        browser.click("button.primary")
        browser.until(lambda: "Recycles: must be at least 0 and at most 50" in browser.run(shown))
        assert browser.run(chosen) == "rows.a3m"
        assert browser.run("return document.getElementById('sequence').value") == "MKTAYIAKQR"
        browser.run("document.getElementById('recycles').value = ''")
        browser.click("button.primary")
        browser.until(lambda: "/jobs/" in browser.driver.current_url)
        assert server.claim()["request"]["alignments"] == ["alignment_0.a3m"]
