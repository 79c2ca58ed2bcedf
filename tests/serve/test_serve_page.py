"""The page docs/serving.md, run against a service, and the page that the service itself shows in a browser."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rows_as_json import as_json

pytest.importorskip("fastapi", reason="the service needs fastapi, of the extra serve")
uvicorn = pytest.importorskip("uvicorn", reason="the service needs uvicorn, of the extra serve")
pytest.importorskip("prometheus_client", reason="the service needs prometheus-client, of the extra serve")

from tabmoco.serve.app import build_app  # noqa: E402
from tabmoco.serve.live import Generation, Live  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
CHROMIUM = Path("/usr/bin/chromium")
TOKEN = "a-token-of-more-than-16"


@contextmanager
def served(folder, **options):
    """The address of a service in a thread."""
    app = build_app(Live(folder, Generation.load(folder)), **options)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def test_the_code_of_the_page_runs(folder, table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pq.write_table(table.take([row % len(table) for row in range(1_716)]), "new.parquet")
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code) == 2
    with served(folder) as url:
        shown = "\n".join(code).replace("http://127.0.0.1:8000", url).replace("default=str", "default=as_json")
        exec(compile(shown, str(PAGE), "exec"), {"as_json": as_json})  # `str` where the table has durations
    told, last = capsys.readouterr().out.rsplit("\n", 2)[:2]
    assert len(json.loads(told)["cells"]) == 2 and re.fullmatch(r"\d+ of 500", last)


@pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no Chromium here")
def test_the_service_shows_a_page_on_which_every_question_can_be_asked(folder):
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with served(folder, token=TOKEN) as url, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=options)
        page = browser.new_page()
        said: list[str] = []
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"{url}/docs")
        page.wait_for_selector("#login:not([hidden])")
        assert page.inner_text("#about") == "a bearer token is needed."
        page.fill("#token", TOKEN)
        page.click("#enter")
        page.wait_for_selector("section")
        assert page.is_hidden("#login")
        titles = page.locator("h2").all_inner_texts()
        assert titles[:4] == ["POST /score", "POST /explain", "POST /search", "POST /embed"]
        for number in range(len(titles)):
            section = page.locator("section").nth(number)
            if "/search" in titles[number]:
                section.locator("input[name=k]").fill("2")
            section.locator("button").click()
            section.locator("pre").wait_for()
            assert section.locator(".status").inner_text().startswith(" 200 in") or "/reload" in titles[number]
        assert json.loads(page.locator("section").nth(2).locator("pre").inner_text())["rows"][1]["rank"] == 2
        page.locator("section textarea").first.fill("{")
        page.locator("section button").first.click()
        page.wait_for_function("document.querySelector('section .status').textContent.startsWith(' 400')")
        assert "must be JSON" in page.locator("section pre").first.inner_text()
        assert said == []
        browser.close()
