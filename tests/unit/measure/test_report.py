"""Reports: what they say, that they stand alone, and that a browser shows them without complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ddtree_ops.measure.charts import frontier, svg
from ddtree_ops.measure.isolate import Setup, Trial, Verdict, next_trial
from ddtree_ops.measure.render import html, markdown
from ddtree_ops.measure.report import Chart, Level, Point, Report, Series, Table, number, span
from ddtree_ops.measure.sweep import ArmFailure, ArmKind, Cell, CellResult, State, SweepPlan, arms
from ddtree_ops.measure.sweep_report import Setting, cell_values, compare, isolate_report, sweep_report
from ddtree_ops.measure.terminal import bars, report_lines, sparkline, table_lines

TEMPLATE = (Path(__file__).parents[3] / "templates" / "report.html.j2").read_text(encoding="utf-8")
SETTING = Setting(
    node="<gpu> & 7",
    when="2026-11-29",
    environment=(("SGLang", "0.5.11"),),
    commands=("ddtree-ops sweep budgets --host 'gpu & 7'",),
)
GRID = arms([8, 16], [4], [True])


def state(factor=1.0, failures=()):
    """Three rounds of every arm, with figures that follow from the arm."""
    speeds = {ArmKind.AUTOREGRESSIVE: 50.0, ArmKind.CHAIN: 80.0}
    results = []
    for arm in (arm for arm in GRID if arm.id not in {failure.arm for failure in failures}):
        for round_ in range(3):
            for repeat in range(2):
                rate = factor * speeds.get(arm.kind, 100.0 + (arm.budget or 0)) * (1 + 0.01 * repeat)
                cell = Cell(arm=arm.id, round=round_, workload="poem", concurrency=1, repeat=repeat)
                values = {"user_rate": rate, "output_rate": rate, "tpot_ms": 1000 / rate}
                results.append(CellResult(cell=cell, values=values | {"accept_token_weighted": 3.0}))
    plan = SweepPlan(arms=GRID, workloads=("poem",))
    return State(plan=plan, results=tuple(results), failures={f.arm: f for f in failures})


GARBLED = ArmFailure(arm="16/4", kind="garbled", diagnosis="poem | <b>", first_wrong="poem: token 3")


class Outline(HTMLParser):
    """Which elements a page opens and never closes, and every address that it would load."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.texts = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link"):
            self.open.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag, attrs):
        """Closed at once: nothing stays open."""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())


def test_the_page_is_whole_and_loads_nothing():
    """Every element is closed, and no address leads out of the file."""
    page = Outline()
    page.feed(html(sweep_report(state(failures=[GARBLED]), SETTING), TEMPLATE))
    assert page.open == []
    assert page.addresses == ["data:,"]
    assert "@import" not in TEMPLATE
    assert "url(" not in TEMPLATE


def test_the_decision_comes_first_and_names_are_escaped():
    """What to run is said before any figure, and a node's name cannot break the page."""
    page = html(sweep_report(state(), SETTING), TEMPLATE)
    assert "<h1>Which budget to run on &lt;gpu&gt; &amp; 7</h1>" in page
    assert page.index("Run 16/4.") < page.index("<svg")


def test_failed_arms_are_listed_with_their_first_wrong_token():
    """The table of failures has the diagnosis; the ranking does not have the arm."""
    report = sweep_report(state(failures=[GARBLED]), SETTING)
    ranking, failed, _ = report.tables
    assert failed.rows == (("16/4", "garbled", "poem | <b>", "poem: token 3"),)
    assert "16/4" not in {row[0] for row in ranking.rows}
    assert report.charts[0].crosses == ((1.0, "16/4: garbled"),)


def test_an_unfinished_sweep_says_so():
    """A report made in the middle warns before it recommends."""
    part = state()
    report = sweep_report(replace(part, results=part.results[:9]), SETTING)
    assert report.decision[0] == "This sweep has not ended: the figures may change."


def test_markdown_has_the_same_decision_and_tables():
    """Decision in bold, tables with their pipes escaped, commands in a block."""
    text = markdown(sweep_report(state(failures=[GARBLED]), SETTING))
    assert "**Run 8/4.**" in text
    assert "| 16/4 | garbled | poem \\| <b> | poem: token 3 |" in text
    assert "```sh\nddtree-ops sweep budgets --host 'gpu & 7'\n```" in text


def test_two_sweeps_are_compared_arm_by_arm():
    """An arm that became a fifth slower is called slower; what differs in the environment is listed."""
    later = replace(SETTING, environment=(("SGLang", "0.5.12"), ("driver", "580")))
    report = compare((state(), SETTING), (state(0.8), later))
    assert report.decision[0] == "Both recommend 16/4."
    assert {row[3] for row in report.tables[0].rows} == {"slower"}
    assert report.tables[1].rows == (("SGLang", "0.5.11", "0.5.12"), ("driver", "not told", "580"))


def test_a_comparison_with_itself_shows_no_difference():
    """The same sweep twice: no arm is called faster."""
    report = compare((state(), SETTING), (state(), SETTING))
    assert {row[3] for row in report.tables[0].rows} == {"no difference shown"}
    assert report.tables[1].note == "Nothing that was recorded."


def test_an_isolation_is_a_report_too():
    """Its sentence is the decision, its trials a table."""
    failing = Setup(budget=16, topk=1, graphs=True)
    trials = [Trial(setup=failing, single=Verdict.OK)]
    report = isolate_report(trials, next_trial(failing, trials), SETTING)
    assert report.decision == ("Not reproduced: right: 16/1.",)
    assert report.tables[0].rows == (("16/1", "ok", "ok", "ok", "", ""),)


def test_tables_copy_as_tab_separated_text():
    """Cells lose the tabs and line ends that would break a sheet."""
    table = Table(title="t", columns=("a", "b"), rows=(("1\t2", "x\ny"),))
    assert table.tsv() == "a\tb\n1 2\tx y"


def test_the_frontier_holds_what_nothing_beats():
    """Least latency for every throughput."""
    points = [Point(x=1, y=10), Point(x=2, y=5), Point(x=3, y=30), Point(x=3, y=20)]
    assert [(p.x, p.y) for p in frontier(points)] == [(1, 10), (3, 30)]


def test_charts_draw_what_they_are_given_within_their_frame():
    """Marks, whiskers, levels and crosses lie inside the view box."""
    series = Series(
        name="a", points=(Point(x=0, y=5, low=1, high=float("inf")), Point(x=1, y=9, low=8, high=11))
    )
    chart = Chart(title="t", x_label="x", y_label="y", series=(series,), ticks=("4", "8"),
                  levels=(Level(name="chain", y=3),), crosses=((1.0, "8: crash"),))  # fmt: skip
    drawn = svg(chart)
    assert drawn.count('class="mark') == 2
    assert drawn.count('class="bar') == 1
    assert all(0 <= float(x) <= 460 for x in re.findall(r' (?:cx|x)="([\d.-]+)"', drawn))
    assert all(0 <= float(y) <= 320 for y in re.findall(r' (?:cy|y)="([\d.-]+)"', drawn))


def test_an_empty_chart_is_drawn_without_figures():
    """No point, no error."""
    assert svg(Chart(title="t", x_label="x", y_label="y", series=())).startswith("<svg")


def test_names_of_neighbouring_marks_stand_apart_and_far_ones_stay_beside_theirs():
    near = (Point(x=1.0, y=1000.0, label="8/4 eager: x"), Point(x=1.02, y=1001.0, label="autoregressive: y"))
    points = (*near, Point(x=3.0, y=1000.0, label="chain: z"))
    named = Chart(
        title="t", x_label="x", y_label="y", series=(Series(name="s", points=points),), named=points
    )
    found = re.findall(r'<text class="halo" x="([\d.]+)" y="([\d.]+)">([^<]+)</text>', svg(named))
    heights = {name: float(height) for _, height, name in found}
    assert abs(heights["8/4 eager"] - heights["autoregressive"]) >= 12.5
    assert abs(heights["chain"] - heights["autoregressive"]) < 1


def test_figures_are_short():
    """Three digits, no exponents, nothing for what is not known."""
    values = (0.0, 1.23456, 123.4, 999.9033, 98765.0, 0.00012345, None, float("nan"))
    assert [number(value) for value in values] == [
        *("0", "1.23", "123", "1,000", "98,765", "0.000123", "", "")
    ]
    assert span(1.0, float("inf")) == ""


def test_plots_in_the_terminal_show_values_and_intervals():
    """A bar has its length, its ends and its figures; a sparkline rises with its values."""
    line = bars([("16/4", 50.0, 40.0, 60.0), ("8/4", 25.0, None, None)], width=60)
    assert line[0].startswith("16/4 █")
    assert line[0].endswith("50 (40–60)")
    assert "├" in line[0]
    assert line[1].count("█") < line[0].count("█")
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█"
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "▁▁"


def test_the_terminal_has_the_whole_report():
    """Decision, plots and tables, in that order."""
    text = "\n".join(report_lines(sweep_report(state(), SETTING)))
    assert text.index("Run 16/4.") < text.index("over budget") < text.index("Arms, best first")
    assert table_lines(Table(title="t", columns=("a",), rows=(("bb",),)))[1:] == ["a", "──", "bb"]


def test_a_summary_becomes_the_values_of_a_cell(serve, ask):
    """Milliseconds by name; what the server did not tell is left out."""
    from ddtree_ops.measure.client import Closed, Load, run_load
    from ddtree_ops.measure.metrics import summarise

    from .conftest import native, stream

    script = stream(native(1, steps=0), native(5, steps=1), native(9, steps=2, finish="stop"), gap=0.02)
    result = run_load(
        serve(lambda *_: script).target(), ask(1), Load(shape=Closed(concurrency=1), requests=1)
    )
    values = cell_values(summarise(result))
    assert values["accept_token_weighted"] == 4.5
    assert values["step_ms"] == pytest.approx(20, abs=10)
    assert set(values) >= {"user_rate", "output_rate", "ttft_ms", "tpot_ms"}


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_the_page_without_complaint(tmp_path, width):
    """Headless Chromium lays the page out within the window and logs nothing on its console."""
    page = tmp_path / "report.html"
    probe = "<script>document.title = 'over ' + (document.documentElement.scrollWidth - innerWidth)</script>"
    page.write_text(
        html(sweep_report(state(failures=[GARBLED]), SETTING), TEMPLATE).replace("</body>", probe)
    )
    command = (
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path}/profile", f"--window-size={width},900", "--enable-logging=stderr",
        "--dump-dom", page.as_uri(),
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    over = re.search(r"<title>over (-?\d+)</title>", done.stdout)
    assert over is not None
    assert int(over[1]) <= 0


def test_a_report_without_charts_or_commands_is_still_a_page():
    """Only what is there is shown."""
    page = html(Report(title="t", subtitle="s", decision=("d",)), TEMPLATE)
    assert "<figure>" not in page
    assert "Commands" not in page
