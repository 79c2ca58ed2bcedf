"""The page in a real browser: it opens in silence, everything on it works, and hostile cells do nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="the page is tried in a browser by playwright")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    executable = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if executable is None:
        pytest.skip(f"none of the browsers {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as runner:
        opened = runner.chromium.launch(executable_path=executable, args=OPTIONS)
        yield opened
        opened.close()


class Watched:
    """An open page, and all that went wrong on it."""

    def __init__(self, browser: playwright.Browser, path: Path, **settings: object) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())


@pytest.fixture
def watched(browser, page) -> Iterator[Watched]:
    """The report, watched: whatever a test does with it, nothing may go wrong or be asked for."""
    opened = Watched(browser, page)
    yield opened
    opened.page.wait_for_timeout(50)
    assert opened.wrong == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [page.as_uri()]
    opened.context.close()


def names(watched: Watched) -> list[str]:
    """The rows of the table of strange rows that are shown, in their order."""
    return watched.page.eval_on_selector_all(
        "#rows tbody tr:not([hidden])", "rows => rows.map(row => row.dataset.name)"
    )


def classes(watched: Watched) -> list[str]:
    return watched.page.eval_on_selector_all(
        "#points circle:not(#ring)", "points => points.map(point => point.getAttribute('class'))"
    )


def legend(watched: Watched) -> list[str]:
    return watched.page.eval_on_selector_all("#legend > span", "spans => spans.map(span => span.textContent.trim())")


def test_it_opens_and_hostile_cells_are_mere_text(watched, report):
    assert watched.page.title().endswith("tabmoco report")
    assert watched.page.locator("section").count() == 9
    assert watched.page.locator("script").count() == 2 and watched.page.locator("img, iframe, object").count() == 0
    assert "<script>alert(1)</script>" in watched.page.locator("#columns").inner_text()
    assert names(watched) == [row.name for row in report.strangest]


def test_no_script_but_its_own_runs_were_one_to_slip_in(browser, page, tmp_path):
    """The policy of the page itself: nothing may be fetched."""
    copy = tmp_path / "copy.html"
    html = page.read_text(encoding="utf-8")
    copy.write_text(html.replace("</main>", "<img src='https://example.org/x.png'></main>"), encoding="utf-8")
    opened = Watched(browser, copy)
    opened.page.wait_for_timeout(100)
    assert any("Content Security Policy" in text for text in opened.wrong)
    opened.context.close()


def test_rows_are_sorted(watched, report):
    def click(heading: str) -> str | None:
        button = watched.page.locator(f"#rows th[data-sort={heading}] button")
        button.click()
        return watched.page.locator(f"#rows th[data-sort={heading}]").get_attribute("aria-sort")

    scores = {row.name: row.score for row in report.strangest}
    assert watched.page.locator("#rows th[data-sort=score]").get_attribute("aria-sort") == "descending"
    assert click("score") == "ascending"
    assert [scores[name] for name in names(watched)] == sorted(scores.values())
    assert click("score") == "descending"
    assert click("name") == "ascending" and watched.page.locator("#rows th[aria-sort]").count() == 1
    assert names(watched)[:3] == ["<b>0</b>", "<b>1</b>", "<b>2</b>"]
    assert click("name") == "descending" and names(watched)[0] == "near"
    watched.page.locator("#rows th[data-sort=p] button").press("Enter")
    assert names(watched)[0] in {row.name for row in report.strangest if row.p == report.strangest[0].p}


def test_rows_are_filtered(watched, report):
    status = watched.page.locator("#row-count")
    assert status.inner_text() == "92 of 92 rows"
    watched.page.locator("#row-flagged").check()
    flagged = [row.name for row in report.strangest if row.is_anomaly]
    assert 0 < len(flagged) < 92 and names(watched) == flagged
    watched.page.locator("#row-flagged").uncheck()
    watched.page.locator("#row-filter").fill("<B>7</b>")
    assert "<b>7</b>" in names(watched) and len(names(watched)) < 10
    watched.page.locator("#row-filter").fill("nothing holds this")
    assert names(watched) == [] and status.inner_text() == "0 of 92 rows"
    watched.page.locator("#row-filter").fill("")
    column = report.strangest[0].marked[0]
    watched.page.locator("#row-column").select_option(str(column.column))
    marked = [row.name for row in report.strangest if column.column in {cell.column for cell in row.marked}]
    assert names(watched) == marked


def test_columns_are_found_by_name(watched):
    cards = watched.page.locator("#columns > article:visible")
    assert cards.count() == 6
    watched.page.locator("#column-filter").fill("IMG")
    assert cards.count() == 1 and watched.page.locator("#column-count").inner_text() == "1 of 6"
    watched.page.locator("#column-filter").fill("")
    assert cards.count() == 6


def test_the_map_is_coloured_by_any_column(watched, report):
    before = classes(watched)
    assert before == [f"p{point.level}" for point in report.row_map.points]
    select = watched.page.locator("#colour")
    for option in select.locator("option").all():
        select.select_option(option.get_attribute("value"))
        found = set(classes(watched))
        assert found and all(name and (name[0] in "pkl" or name == "na") for name in found)
        shown = watched.page.eval_on_selector_all("#legend .key", "keys => keys.map(key => key.className)")
        assert {name.rpartition(" ")[2] for name in shown} >= found
    columns = [column["name"] for column in report.row_map.data["columns"]]
    place = columns.index("whole")
    select.select_option(str(place))
    values = report.row_map.data["columns"][place]["values"]
    levels = [int(name[1:]) for name in classes(watched)]
    order = sorted(range(len(values)), key=lambda one: values[one])
    assert [levels[one] for one in order] == sorted(levels) and set(levels) == set(range(7))
    assert legend(watched)[0].startswith(str(min(values))) and legend(watched)[-1].endswith(str(max(values)))
    select.select_option("cluster")
    assert legend(watched)[0].startswith("cluster ")
    clusters = report.row_map.data["cluster"]
    assert len(set(zip(clusters, classes(watched), strict=True))) == len(set(clusters))
    select.select_option("p")
    assert classes(watched) == before and "p > 0.5" in legend(watched)


def test_points_tell_their_rows(watched, report):
    tip, points = watched.page.locator("#tip"), report.row_map.points
    assert not tip.is_visible()
    watched.page.locator("#points").scroll_into_view_if_needed()
    box = watched.page.locator("#points").bounding_box()
    scale = box["width"] / report.row_map.width
    watched.page.mouse.move(box["x"] + points[-1].x * scale, box["y"] + points[-1].y * scale)
    assert tip.is_visible()
    assert tip.inner_text().startswith(f"Row {report.strangest[0].name}") and "anomaly score" in tip.inner_text()
    watched.page.mouse.move(box["x"] + 2, box["y"] + 2)
    assert not tip.is_visible()
    within = watched.page.evaluate(
        "() => { const f = document.getElementById('map-frame').getBoundingClientRect();"
        " return f.right <= document.documentElement.clientWidth }"
    )
    assert within


def test_the_map_is_walked_by_keys(watched, report):
    tip, ring = watched.page.locator("#tip"), watched.page.locator("#ring")
    watched.page.locator("#points").focus()
    watched.page.keyboard.press("Home")
    assert tip.inner_text().startswith(f"Row {report.strangest[0].name}")
    x = float(ring.get_attribute("cx"))
    assert x == report.row_map.points[-1].x
    leftmost = min(point.x for point in report.row_map.points)
    key, way = ("ArrowRight", 1) if x == leftmost else ("ArrowLeft", -1)
    watched.page.keyboard.press(key)
    assert way * (float(ring.get_attribute("cx")) - x) > 0
    assert not tip.inner_text().startswith(f"Row {report.strangest[0].name}\n")
    watched.page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_a_listed_row_is_shown_on_the_map(watched, report):
    row = watched.page.locator("#rows tbody tr").nth(3)
    row.locator("summary").click()
    assert row.locator("dl.row").is_visible()
    row.locator(".locate").click()
    assert watched.page.locator("#tip").inner_text().startswith(f"Row {report.strangest[3].name}")


def test_light_and_dark_are_chosen(browser, page):
    for scheme in ("light", "dark"):
        opened = Watched(browser, page, color_scheme=scheme)
        colour = "getComputedStyle(document.body).backgroundColor"
        button, first = opened.page.locator("#theme"), opened.page.evaluate(colour)
        assert button.inner_text() == ("Dark" if scheme == "light" else "Light")
        button.click()
        assert opened.page.evaluate(colour) != first and button.inner_text() == scheme.title()
        button.click()
        assert opened.page.evaluate(colour) == first and opened.wrong == []
        opened.context.close()


def test_a_phone_shows_it_without_scrolling_sideways(browser, page):
    opened = Watched(browser, page, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    opened.page.locator("#rows summary").first.click()
    opened.page.locator(".group summary").first.click()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert opened.wrong == []
    opened.context.close()


def test_without_scripts_it_is_a_plain_page(browser, page, report):
    opened = Watched(browser, page, java_script_enabled=False)
    assert opened.page.locator("#rows tbody tr:visible").count() == 92
    assert opened.page.locator("#points circle").count() == 93
    for tool in ("#theme", "#row-filter", "#colour", ".locate"):
        assert opened.page.locator(f"{tool}:visible").count() == 0
    opened.context.close()


def test_a_page_without_a_table_opens_too(browser, model, tmp_path):
    from tabmoco.report.make import make_report

    make_report(model).write(tmp_path / "report.html")
    opened = Watched(browser, tmp_path / "report.html")
    assert opened.page.locator(".none").count() >= 5 and opened.wrong == []
    opened.context.close()
