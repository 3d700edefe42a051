"""The built viewer in a real browser with a real Prometheus: every dashboard, colour scheme, width and link."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.dashboards.bundle import Bundle, BundleError, find

ROOT = Path(__file__).resolve().parents[2]
PREVIEW = ROOT / "grafana" / "preview"
FILES = {
    json.loads(path.read_text(encoding="utf-8"))["uid"]: path
    for path in sorted((ROOT / "grafana/dashboards").glob("*.json"))
}
UIDS = sorted(FILES)
RUN = "llama-7b"
CALM = "refresh=15m"  # nothing is asked anew while the page is looked at
WIDTHS = {"dark": 1280, "light": 1920}
Json = dict[str, Any]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def missing() -> str:
    """Return what the browser tests need and this machine lacks, or an empty text."""
    if not shutil.which("node"):
        return "no Node.js: apt-get install nodejs"
    if not (PREVIEW / "node_modules" / "playwright-core").is_dir():
        return "no playwright-core: run make preview"
    chromium = ["chromium", "chromium-browser", "google-chrome"]
    if not os.environ.get("CHROMIUM") and not any(map(shutil.which, chromium)):
        return "no Chromium: apt-get install --no-install-recommends chromium"
    try:
        find()
    except BundleError as error:
        return str(error)
    return ""


def look(visits: list[Json]) -> list[Json]:
    """Return what each visit found, all with one browser."""
    if reason := missing():
        pytest.skip(reason)
    made = subprocess.run(
        ["node", PREVIEW / "visit.mjs"],
        input=json.dumps(visits).encode(),
        capture_output=True,
        timeout=850,
        check=False,
    )
    assert made.returncode == 0, made.stderr.decode()
    return json.loads(made.stdout)  # type: ignore[no-any-return]


def sound(seen: Json) -> None:
    """Assert that a page is sound: no panel in error, none undrawn, no console error, nothing too wide."""
    assert seen["stopped"] is None
    assert seen["problems"] == []
    assert seen["trace"]["errors"] == []
    assert [asked for asked in seen["trace"]["queries"] if asked.get("error")] == []
    assert [panel for panel in seen["panels"] if panel["failed"] or (not panel["drawn"] and not panel["empty"])] == []
    assert seen["wide"] <= 0


def parts(address: str) -> tuple[str, dict[str, list[str]]]:
    """Return the uid and the parameters of a dashboard's address."""
    url = urllib.parse.urlsplit(address)
    return url.path.split("/")[2], urllib.parse.parse_qs(url.query)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """The built viewer; without one, or without a browser, these tests are skipped."""
    if reason := missing():
        pytest.skip(reason)
    return find()


@pytest.fixture(scope="module")
def viewer(view: Callable[..., str], bundle: Bundle, fleet: Any) -> str:
    """The built viewer over the fleet of tests/grafana."""
    return view(bundle, fleet.url)


@pytest.fixture(scope="module")
def opened(viewer: str) -> dict[tuple[str, str], Json]:
    """The visit of each dashboard, by uid and colour scheme."""
    asked = [(uid, mode) for uid in UIDS for mode in WIDTHS]
    end = round(time.time() * 1000)  # the fleet's samples end here: what is there now must be there for the last visit
    view = f"var-run={RUN}&{CALM}&from={end - 1_800_000}&to={end}"
    visits = [{"url": f"{viewer}/d/{uid}?{view}&theme={mode}", "width": WIDTHS[mode]} for uid, mode in asked]
    return dict(zip(asked, look(visits), strict=True))


@pytest.mark.parametrize("mode", WIDTHS)
@pytest.mark.parametrize("uid", UIDS)
def test_every_dashboard_draws(opened: dict[tuple[str, str], Json], uid: str, mode: str) -> None:
    """Dark at 1,280 pixels and light at 1,920, every panel is drawn or says why it is empty, and no query fails."""
    seen = opened[uid, mode]
    sound(seen)
    outer = json.loads(FILES[uid].read_text(encoding="utf-8"))["panels"]
    panels = [panel for one in outer for panel in (one, *one.get("panels", []))]
    assert (seen["dashboard"], seen["notices"]) == (uid, [])
    assert len(seen["panels"]) == sum(panel["type"] != "row" for panel in panels)
    assert seen["trace"]["queries"]


@pytest.mark.parametrize("uid", UIDS)
def test_nothing_is_asked_again_before_its_time(opened: dict[tuple[str, str], Json], uid: str) -> None:
    """The address says 15 minutes; only a query that several panels share is sent more than once."""
    asked = [one["expression"] for one in opened[uid, "dark"]["trace"]["queries"]]
    assert len(asked) <= 1.3 * len(set(asked))


def test_rates_span_four_scrapes_of_this_prometheus(opened: dict[tuple[str, str], Json]) -> None:
    """Its samples are 15 s apart; those of the shipped configuration are 5 s apart, for which 20 s would be enough."""
    asked = [one["expression"] for one in opened["tachograph-monitoring", "dark"]["trace"]["queries"]]
    windows = {window for expression in asked for window in re.findall(r"\[(\w+)\]", expression)}
    assert "60s" in windows
    assert "20s" not in windows


@pytest.mark.parametrize("uid", UIDS)
def test_variables_are_filled(opened: dict[tuple[str, str], Json], uid: str) -> None:
    """No query is sent with a variable in it, and the address holds the selection, so that it can be shared."""
    seen = opened[uid, "dark"]
    assert [one["expression"] for one in seen["trace"]["queries"] if re.search(r"\$\{?[a-z_]", one["expression"])] == []
    _, given = parts(seen["address"])
    assert {"from", "to", "var-datasource"} <= set(given)


def test_links_land_where_they_say(opened: dict[tuple[str, str], Json], viewer: str) -> None:
    """One link to each dashboard from each that has one: a click opens it with the variables and time of the link."""
    ways: dict[tuple[str, str], None] = {}
    for (uid, mode), seen in opened.items():
        for link in seen["links"] if mode == "dark" else []:
            path = urllib.parse.urlsplit(link["href"]).path
            if path.startswith("/d/") and link["href"].startswith(viewer):
                ways[uid, path] = None
    assert ways, "no dashboard links to another"
    visits = [
        {"url": f"{viewer}{opened[uid, 'dark']['address']}&theme=dark", "steps": [["way", path]]} for uid, path in ways
    ]
    for (_, path), seen in zip(ways, look(visits), strict=True):
        sound(seen)
        (followed,) = seen["clicked"]
        uid, wanted = parts(followed)
        _, given = parts(seen["address"])
        assert path == f"/d/{uid}"
        assert seen["dashboard"] == uid
        variables = {name: values for name, values in wanted.items() if name.startswith("var-")}
        assert {name: given.get(name) for name in variables} == variables


def test_the_list_of_dashboards_keeps_the_view(viewer: str) -> None:
    """The drop-down leads to another dashboard with the same run and time."""
    url = f"{viewer}/d/tachograph-run?var-run={RUN}&from=now-15m&to=now&{CALM}"
    steps = [["button", "Dashboards"], ["menuitem", "Tachograph / Ranks"]]
    (seen,) = look([{"url": url, "steps": steps, "folded": True}])
    sound(seen)
    uid, given = parts(seen["address"])
    assert (uid, seen["dashboard"]) == ("tachograph-ranks", "tachograph-ranks")
    assert (given["var-run"], given["from"], given["to"]) == ([RUN], ["now-15m"], ["now"])


def test_an_alert_opens_its_dashboard(viewer: str, fleet: Any) -> None:
    """The link of an alert opens in the viewer if grafana_url points at it, with the alert's run and rank selected."""
    with urllib.request.urlopen(f"{fleet.url}/api/v1/alerts", timeout=60) as answer:
        alerts = json.load(answer)["data"]["alerts"]
    (alert,) = [one for one in alerts if one["labels"]["alertname"] == "RankDead"]
    address = alert["annotations"]["dashboard_url"].removeprefix("http://localhost:3000")
    (seen,) = look([{"url": f"{viewer}{address}&{CALM}"}])
    sound(seen)
    uid, wanted = parts(address)
    _, given = parts(seen["address"])
    assert seen["dashboard"] == uid
    assert {name: given.get(name) for name in wanted} == wanted


def test_what_is_not_there_is_said(
    viewer: str, view: Callable[..., str], bundle: Bundle, prometheus_without_rules: str
) -> None:
    """An unknown run or dashboard, a missing Prometheus or one without our rules: the page says so."""
    nowhere = view(bundle, "http://127.0.0.1:9")
    visits = [
        {"url": f"{viewer}/d/tachograph-run?var-run=lama-7b&{CALM}"},
        {"url": f"{viewer}/d/tachograph-run?var-run=lama-7b&{CALM}", "steps": [["link", RUN]], "folded": True},
        {"url": f"{viewer}/d/tachograph-rum"},
        {"url": f"{nowhere}/d/tachograph-run"},
        {"url": f"{view(bundle, prometheus_without_rules)}/d/tachograph-fleet?{CALM}"},
    ]
    unknown, followed, dashboard, none, bare = look(visits)
    assert "There is no run 'lama-7b'" in unknown["notices"][0]
    assert unknown["dashboard"] is None
    sound(followed)
    assert (followed["dashboard"], parts(followed["address"])[1]["var-run"]) == ("tachograph-run", [RUN])
    assert "There is no dashboard “tachograph-rum”" in dashboard["notices"][0]
    assert "no Prometheus at http://127.0.0.1:9" in none["notices"][0]
    assert "none of our rules" in bare["notices"][0]
    assert bare["dashboard"] == "tachograph-fleet"
