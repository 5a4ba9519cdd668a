"""Static faces: complete, escaped, without script; two calls never share a widget."""

import json
import operator
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import ncclkit as nk
from ncclkit.causes import catalogue, page
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.core.case import Case
from ncclkit.core.model import Advice
from ncclkit.report.page import FIGURE_SLOT as OF_REPORT
from ncclkit.views import plots
from ncclkit.views._base import FIGURE_SLOT, PLOTLY, WIDGET, Chart
from ncclkit.views.attach import stacks_view
from tests.causes.test_waits import rank as looked_at
from tests.views.records import CURVE, HOSTILE, case, findings, hostile_job, hostile_machine

VIEWS = {
    "facts": lambda: nk.show.facts(case()),
    "topology": lambda: nk.show.topology(hostile_machine()),
    "network": lambda: nk.show.network(hostile_machine()),
    "findings": lambda: nk.show.findings(findings()),
    "events": lambda: nk.show.events(case()),
    "ranks": lambda: nk.show.ranks(case()),
    "measurements": lambda: nk.show.measurements(case()),
    "tuning": lambda: nk.show.tuning([Advice(HOSTILE, {"A": HOSTILE}, HOSTILE, HOSTILE, HOSTILE)]),
    "live": lambda: nk.form.live_test(case(), python="/p y", env=f"X={'<script>'}"),
    "inputs": lambda: nk.show.inputs(hostile_job()),
    "job": lambda: nk.show.job(hostile_job()),
    "progress": lambda: nk.show.progress(hostile_job()),
    "disagreement": lambda: nk.show.disagreement(hostile_job()),
    "transports": lambda: nk.show.transports(hostile_job()),
    "rings": lambda: nk.show.rings(hostile_job()),
    "attach": lambda: nk.form.attach(hostile_job()),
    "stacks": lambda: stacks_view(
        looked_at(0, ("/app/train.py", 3, HOSTILE), text=HOSTILE),
        [HOSTILE],
        [replace(findings()[0], cause=HOSTILE, say=HOSTILE, strength="possible")],
    ),
}
DRAWN = ("ranks", "transports", "topology")
LIVE = ("events", "live", "attach", *DRAWN)


class Page(HTMLParser):
    """Collects elements, attribute names and text; checks that elements close in order."""

    VOID = {"img", "br"}

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.open, self.words = [], set(), [], ""
        self.feed(str(html))  # a slice of Markup would escape what it is joined with
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data + " "


@pytest.mark.parametrize("name", VIEWS)
def test_static_face_is_whole_and_runs_nothing(name):
    page = Page(VIEWS[name]().html)
    assert not {"script", "img", "iframe", "link"} & set(page.tags)
    assert not [attribute for attribute in page.attributes if attribute.startswith("on")]
    VIEWS[name]().html.encode("utf-8")
    assert "\x00" not in page.words and "\x1b" not in page.words


@pytest.mark.parametrize("name", VIEWS)
def test_bundle_has_text_html_and_a_widget_only_where_there_is_one(name):
    view = VIEWS[name]()
    bundle = view._repr_mimebundle_()
    assert bundle["text/plain"] == view.summary != "" and view.static() in bundle["text/html"]
    assert (WIDGET in bundle) == (name in LIVE)
    assert (PLOTLY in bundle) == (name in DRAWN)
    drawn = bundle.get(PLOTLY, {"layout": {}})
    drawn["layout"].pop("meta", None)  # never drawn; the report takes its words as text
    assert not re.findall("<script|<img", json.dumps(drawn))


@pytest.mark.parametrize("name", DRAWN)
def test_a_view_with_a_figure_keeps_a_room_for_it_that_the_report_knows(name):
    assert VIEWS[name]().static().count(FIGURE_SLOT) == 1 and FIGURE_SLOT == OF_REPORT


@pytest.mark.parametrize("name", LIVE)
def test_each_call_makes_its_own_widgets_and_one_view_keeps_them(name):
    first, second = VIEWS[name](), VIEWS[name]()
    ids = [view._repr_mimebundle_()[WIDGET]["model_id"] for view in (first, first, second)]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("facts", ["limits.shm.free", "64 MiB", "unlimited", "statvfs /dev/shm", "did not answer within 5 s", "1500"]),
        (
            "findings",
            [
                "proven",
                "slow_rank",
                "Rank 5",
                ":17",
                "× 4",
                "rank 3",
                "line one",
                "limits.shm.free = 67108864",
                "export NCCL_DEBUG='a b'",
                "the-command",
                "the_code()",
                "the why",
                "the check",
                "the risk",
                "the question?",
                "what it predicts",
                "gid_index",
                "show_gids output",
                "host_oom",
                "no OOM kill",
                "2. shm is small",
            ],
        ),
        ("events", ["c10d.timeout", "python.exception", "logs/rank0.log:410", "8 abnormal"]),
        ("ranks", ["Rank 5 stopped logging first, 30.0 s before any other", "logs/rank5.log:300", "Last log line"]),
        ("measurements", ["16 MiB", "8.89 ms", "17.8 ms", "1.89", "2.83", "all_reduce reaches 2.83 GB/s"]),
        ("live", ["/p y", "X='<script>'", "120.0", "auto"]),
    ],
)
def test_static_face_says_every_value(name, words):
    said = Page(VIEWS[name]().html).words
    assert [word for word in words if word not in said] == []


def test_culprit_comes_first_and_nothing_found_says_how_many_looked():
    page = nk.show.findings(findings()).static()
    assert page.index("slow_rank") < page.index("shm_too_small") < page.index("gid_index") < page.index("host_oom")
    nothing = nk.show.findings(findings()[2:])
    assert nothing.summary == "Nothing found: 1 check passed; evidence is missing for 1 cause"


def test_to_make_sure_comes_before_mending_where_only_the_symptom_fits():
    for strength in ("proven", "possible"):
        finding = replace(findings()[0], strength=strength)
        card, printed = nk.show.findings([finding]).static(), Diagnosis((finding,)).text()
        before = strength == "possible"
        assert (card.index("Next experiment") < card.index("What to do")) is before
        assert (printed.index("Next experiment: ") < printed.index("Do: ")) is before


def test_commands_in_advice_stand_as_code_and_nothing_in_them_becomes_an_element():
    shown = nk.show.tuning([Advice("Run `ulimit -n <N>` in each `rank", check="`<b>`")]).static()
    assert '<p class="nk-do">Run <code>ulimit -n &lt;N&gt;</code> in each `rank</p>' in shown
    assert "<dd><code>&lt;b&gt;</code></dd>" in shown


def test_a_theme_is_checked_only_where_a_cause_cites_its_facts():
    known = case()
    known.facts = [fact for fact in known.facts if fact.name != "limits.memlock"]
    cards = nk.show.facts(known).static().split("<section")
    verdicts = {card.split("<h4>")[1].split("<")[0]: "nk-checked" in card for card in cards[1:]}
    assert verdicts["GPUs"] is False and "Limits and isolation" in verdicts


EMPTY = (
    "show.facts",
    "show.topology",
    "show.network",
    "show.findings",
    "show.events",
    "show.ranks",
    "show.measurements",
    "show.case",
    "show.inputs",
    "show.job",
    "show.progress",
    "show.disagreement",
    "show.transports",
    "show.rings",
    "form.attach",
    "form.step",
    "show.step",
)


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_case_says_so(name):
    view = operator.attrgetter(name)(nk)(Case())
    assert view.summary and Page(view.html).words


def test_case_view_names_files_runs_and_the_command_to_mail_it(tmp_path):
    made = Case.open(tmp_path / "my case").save()
    (made.new_run("probe") / "status.json").write_text('{"reason": "done", "say": "all sizes measured"}')
    (made.new_run("hung") / "status.json").write_text("{")
    (made.new_run("attach") / "stacks_rank0.txt").write_text("")
    words = Page(nk.show.case(made).html).words
    for expected in (
        "facts.jsonl",
        "events.jsonl",
        "runs/1-probe/",
        "all sizes measured",
        "runs/2-hung/",
        "cut off",
        "runs/3-attach/",
        "nothing was run",
        f"tar czf 'my case.tar.gz' -C {tmp_path} 'my case'",
    ):
        assert expected in words


def test_chart_shows_itself_as_plotly_json_whatever_the_renderer():
    bundle = Chart(plots.bandwidth(CURVE))._repr_mimebundle_()
    assert set(bundle) == {PLOTLY, WIDGET, "text/html", "text/plain"}
    assert bundle[PLOTLY]["data"][0]["name"].startswith("all_reduce") and FIGURE_SLOT in bundle["text/html"]


def test_catalogue_holds_every_page_and_finds_words():
    everything = Page(nk.show.catalogue().html).words
    assert [name for name in catalogue() if name not in everything or page(name)[""] not in everything] == []
    assert "What to do" in everything
    few = nk.show.catalogue("/dev/shm")
    assert "shm_too_small" in few.static() and len(few.html) < len(nk.show.catalogue().html)
    assert nk.show.catalogue("no such word").summary.startswith("0 causes")
