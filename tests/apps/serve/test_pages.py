"""The pages work as plain forms: submit, forecast, history, one job, share, cancel, without any script."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlencode

import pytest

from helixfold.apps.serve.queue.jobs import QueueOptions
from tests.apps.serve.running import Running, running

FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "text/html"}


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Running]:
    """A server without jobs of other tests."""
    with running(tmp_path) as server:
        yield server


class Browser:
    """Keeps the session of a browser, and fills the forms of its last page."""

    def __init__(self, server: Running) -> None:
        self.server, self.cookie, self.text, self.place = server, "", "", ""

    def open(self, path: str) -> int:
        status, headers, body = self.server.asked("GET", path, headers={"Accept": "text/html", "Cookie": self.cookie})
        return self._kept(status, headers, body)

    def send(self, path: str, **fields: str) -> int:
        csrf = re.search(r'name="csrf" value="([^"]+)"', self.text)
        assert csrf is not None
        body = urlencode({"csrf": csrf[1], **fields}).encode()
        status, headers, answer = self.server.asked("POST", path, body=body, headers={**FORM, "Cookie": self.cookie})
        return self._kept(status, headers, answer)

    def send_files(self, path: str, files: Sequence[tuple[str, str, bytes]], **fields: str) -> int:
        """Send the last page's form with files, each a field, a name and content."""
        hidden = re.findall(r'<input type="hidden" name="(csrf)" value="([^"]+)"', self.text)
        parts = [(f'name="{name}"', value.encode()) for name, value in [*hidden, *fields.items()]]
        parts += [(f'name="{field}"; filename="{name}"', content) for field, name, content in files]
        lines = [b"--part\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (a.encode(), b) for a, b in parts]
        headers = {"Accept": "text/html", "Cookie": self.cookie, "Content-Type": "multipart/form-data; boundary=part"}
        return self._kept(*self.server.asked("POST", path, body=b"".join(lines) + b"--part--\r\n", headers=headers))

    def _kept(self, status: int, headers: dict[str, str], body: bytes) -> int:
        if "set-cookie" in headers:
            self.cookie = headers["set-cookie"].partition(";")[0]
        self.text, self.place = body.decode(), headers.get("location", "")
        return status


def test_a_job_is_submitted_watched_shared_and_deleted_by_forms(server: Running) -> None:
    browser = Browser(server)
    assert browser.open("/") == 200
    fields = {"sequence": ">first\nMKTAYIAKQR", "recycles": "2", "dropout": "1"}
    assert browser.send("/submit", **fields, action="forecast") == 200
    assert "first" in browser.text
    assert "with tiny" in browser.text
    assert browser.send("/submit", **fields, action="submit") == 303
    page = browser.place
    assert browser.open(page) == 200
    assert "position 1" in browser.text
    assert "http-equiv" in browser.text  # without scripts, the page loads itself again
    assert browser.send(f"{page}/rename", name="Renamed & <b>") == 303
    claimed = server.claim()
    assert claimed["request"]["options"]["recycles"] == 2
    server.finish(claimed, {"report.html": b"<p>report</p>", "ranked_0.pdb": b"x"}, plddt=90.25, ptm=0.8, iptm=None)
    assert browser.open(page) == 200
    assert "mean pLDDT 90.2" in browser.text
    assert "Renamed &amp; &lt;b&gt;" in browser.text
    assert browser.open(f"{page}/files/report.html") == 200
    browser.open(page)
    assert browser.send(f"{page}/share") == 200
    link = re.search(r'href="(/shared/[^"]+)"', browser.text)
    assert link is not None
    stranger = Browser(server)
    assert stranger.open(link[1]) == 200
    assert "report.html" in stranger.text
    assert browser.send(f"{page}/delete") == 303
    assert stranger.open(link[1]) == 404
    assert browser.open("/jobs") == 200
    assert "expired" in browser.text


def test_an_example_fills_the_form_and_a_page_explains_it(own_server: Running) -> None:
    browser = Browser(own_server)
    browser.open("/")
    assert 'href="/?example=1"' in browser.text
    assert browser.open("/?example=1") == 200
    example = re.search(r"<textarea[^>]*>(.*?)</textarea>", browser.text, re.DOTALL)
    assert example is not None
    assert browser.send("/submit", sequence=example[1].replace("&gt;", ">")) == 303
    assert own_server.claim()["request"]["name"] == "src_sh3"
    assert browser.open("/help") == 200
    for words in ("One protein", "4,000 residues per job", "30 days; download"):
        assert words in browser.text


def test_a_table_is_several_jobs_and_a_name_comes_before_their_own(own_server: Running) -> None:
    browser = Browser(own_server)
    browser.open("/")
    table = b"id,sequence,chain_ids\none,MKTAYIAKQR,\ntwo,mktayiakqr:MKTAY,H:L\n"
    assert browser.send_files("/submit", [("sequence_file", "mine.CSV", table)], name="screen") == 303
    browser.open("/jobs")
    assert re.findall(r'href="/jobs/[0-9a-f]{32}">(.*?)<', browser.text) == ["screen: two", "screen: one"]
    first, second = own_server.claim()["request"], own_server.claim()["request"]
    assert (first["name"], first["sequence"]) == ("screen_one", "MKTAYIAKQR")
    assert (second["sequence"], second["chain_ids"]) == ("MKTAYIAKQR:MKTAY", ["H", "L"])
    browser.open("/")
    assert browser.send_files("/submit", [("sequence_file", "x.tsv", b"id\tsequence\none\tMKT1\n")]) == 422
    assert "your text, line 2, record &#39;one&#39;" in browser.text
    assert browser.send_files("/submit", [("sequence_file", "x.csv", b"name\none\n")]) == 422


@pytest.mark.integration
@pytest.mark.parametrize(
    ("content", "sequence"),
    [
        (b">query\nMKTAYIAKQR\n>other\nMKTaYIAKQQ\n", "MKTAYIAKQR"),
        (b"#5,5\t2,1\n>101\t102\nMKTAYIAKQR\n>101\nMKTAY-----\n>102\n-----IAKQR\n", "MKTAY:MKTAY:IAKQR"),
    ],
)
def test_an_a3m_is_a_sequence_with_its_alignment(content: bytes, sequence: str, tmp_path: Path) -> None:
    with running(tmp_path) as server:
        browser = Browser(server)
        browser.open("/")
        assert browser.send_files("/submit", [("sequence_file", "mine.a3m", content)]) == 303
        page = browser.place
        browser.open(page)
        assert "<dt>MSA</dt><dd>your files</dd>" in browser.text
        claimed = server.claim()
        assert claimed["request"]["sequence"] == sequence
        assert server.as_worker("GET", f"/inputs/{claimed['request']['alignments'][0]}", claimed) == content


def test_the_page_of_a_job_shows_its_structure_and_the_report_leads_back(own_server: Running) -> None:
    browser = Browser(own_server)
    browser.open("/")
    browser.send("/submit", sequence="MKTAYIAKQR", name="mine & <b>", recycles="2")
    page = browser.place
    browser.open(page)
    assert "<iframe" not in browser.text
    for label, words in (("MSA", "from the server's databases, if it has any"), ("Model", "chosen by the server")):
        assert f"<dt>{label}</dt><dd>{words.replace(chr(39), '&#39;')}</dd>" in browser.text
    assert "<dt>Recycles</dt><dd>2</dd>" in browser.text
    report = b"<!doctype html>\n<body>\n<p>report</p></body>"
    own_server.finish(own_server.claim(), {"report.html": report}, plddt=90.0, model="tiny")
    browser.open(page)
    assert f'<iframe class="structure" src="{page}/files/report.html#only-structure"' in browser.text
    assert "loading=" not in browser.text  # the frame is drawn before its reader scrolls down, prints or saves the page
    assert "<dt>Model</dt><dd>random parameters (tiny)</dd>" in browser.text
    browser.open(f"{page}/files/report.html")
    assert (
        f'<body>\n<p class="wrap back"><a href="{page}">← Job mine &amp; &lt;b&gt;</a></p>\n<p>report' in browser.text
    )
    framed = {"Accept": "text/html", "Cookie": browser.cookie, "Sec-Fetch-Dest": "iframe"}
    status, headers, body = own_server.asked("GET", f"{page}/files/report.html", headers=framed)
    assert (status, body) == (200, report)
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    browser.open(page)
    browser.send(f"{page}/share")
    link = re.search(r'href="(/shared/[^"]+)"', browser.text)
    assert link is not None
    stranger = Browser(own_server)
    stranger.open(link[1])
    assert f'src="{link[1]}/files/report.html#only-structure"' in stranger.text
    stranger.open(f"{link[1]}/files/report.html")
    assert f'<a href="{link[1]}">' in stranger.text


def test_what_is_wrong_is_said_beside_what_was_typed(server: Running) -> None:
    browser = Browser(server)
    browser.open("/")
    assert browser.send("/submit", sequence="MKTAY1AKQR", name="kept") == 422
    assert 'role="alert"' in browser.text
    assert "MKTAY1AKQR" in browser.text
    assert 'value="kept"' in browser.text
    for field, text, problem in (
        ("recycles", "many", "Recycles: must be a whole number, got &#39;many&#39;"),
        ("predictions", "99", "Predictions: must be at least 1 and at most 20, got 99"),
        ("newest_template", "2020", "Latest template release: must be a date as year-month-day"),
        ("sequence", "ACGTACGTACGT", "translate the gene and pass the protein&#39;s residues</p>"),
        ("sequence", ">a fragment=1-9\nMKTAYIAKQR:MKT", "fragment= is for a record of one chain</p>"),
    ):
        assert browser.send("/submit", **{"sequence": "MKTAYIAKQR", field: text}) == 422
        assert problem in browser.text
    assert browser.open("/nowhere") == 404
    assert "<h1>Error 404</h1>" in browser.text


def test_several_records_are_several_jobs_that_can_be_cancelled(server: Running) -> None:
    browser = Browser(server)
    browser.open("/")
    assert browser.send("/submit", sequence=">a1\nMKTAYIAKQR\n>a2\nMKTAYIAKQR:MKTAY\n") == 303
    assert browser.place == "/jobs"
    browser.open("/jobs")
    for page in re.findall(r'href="(/jobs/[0-9a-f]{32})">a[12]<', browser.text):
        browser.open(page)
        assert browser.send(f"{page}/cancel") == 303
    assert server.claim() is None


def test_styles_and_scripts_are_the_services_own(server: Running) -> None:
    for name, kind in (("service.css", "text/css"), ("service.js", "text/javascript")):
        status, headers, body = server.asked("GET", f"/static/{name}")
        assert status == 200
        assert headers["content-type"].startswith(kind)
        assert not re.search(rb"https?://", body)
    assert server.asked("GET", "/static/secret.key")[0] == 404


ROWS = b">query\nMKTAYIAKQR\n>other\nMKTAYIAKQQ\n"
FILES = [("sequence_file", "mine.fasta", b">mine\nMKTAYIAKQR\n"), ("alignments", "rows <b>.a3m", ROWS)]


def uploaded(server: Running, page: str) -> bytes:
    """The alignment of the job at an address, as its worker gets it."""
    claimed = server.claim()
    assert page == f"/jobs/{claimed['id']}"
    assert claimed["request"]["name"] == "mine"
    content: bytes = server.as_worker("GET", f"/inputs/{claimed['request']['alignments'][0]}", claimed)
    return content


def test_the_page_of_a_refused_form_has_its_text_and_asks_for_its_files_again(own_server: Running) -> None:
    browser = Browser(own_server)
    browser.open("/")
    assert browser.send_files("/submit", FILES, name="typed", recycles="many") == 422
    assert 'role="alert"' in browser.text
    assert 'value="typed"' in browser.text
    assert "Select the files again." in browser.text
    assert browser.send_files("/submit", [], sequence="MKTAYIAKQR", action="forecast") == 200
    assert "Select the files again." not in browser.text
    assert "MKTAYIAKQR</textarea>" in browser.text
    assert browser.send_files("/submit", FILES, recycles="1") == 303
    assert uploaded(own_server, browser.place) == ROWS


def test_sequences_that_were_queued_before_there_was_no_more_room_are_counted(tmp_path: Path) -> None:
    with running(tmp_path, queue=QueueOptions(max_active_jobs=2)) as server:
        browser = Browser(server)
        browser.open("/")
        assert browser.send("/submit", sequence=">a\nMKTAYIAKQR\n>b\nMKTAYIAKQR\n>c\nMKTAYIAKQR\n") == 429
        assert "(2 of 3 sequences are queued; remove the first 2 here)" in browser.text
        assert browser.send("/submit", sequence=">c\nMKTAYIAKQR\n") == 429
        assert "sequences are queued" not in browser.text
