"""The page itself, without a browser: what is inside, how often, and that nothing breaks out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import ncclkit as nk
from ncclkit.report import page
from ncclkit.views._missing import NoData
from ncclkit.views.ask import QuestionView
from tests.reports import HOSTILE, ROOT


def rendered(*outputs: Any, prose: str = "# Why?\n\n## One") -> BeautifulSoup:
    nb = new_notebook(cells=[new_markdown_cell(prose), new_code_cell("x", outputs=list(outputs))])
    return BeautifulSoup(page.render(nb, name=HOSTILE), "html.parser")


def shown(data: dict[str, Any]) -> Any:
    return new_output("display_data", data)


def figure(title: str) -> dict[str, Any]:
    return {page.FIGURE: {"data": [{"y": [1, 2], "name": title}], "layout": {"title": {"text": title}}}}


def test_plotly_stands_once_in_the_head_and_only_with_figures() -> None:
    for count in (0, 1, 3):
        soup = rendered(*[shown(figure("t"))] * count)
        libraries = [script for script in soup.find_all("script") if len(script.text) > 1e6]
        assert len(libraries) == min(count, 1) == len(soup.head.find_all("script"))
        assert len(soup.select("div.figure > script.figure-data")) == count


@pytest.mark.parametrize("kind", ["scatter", "bar", "heatmap"])
def test_the_library_is_cut_to_what_the_figures_need(kind: str) -> None:
    trace = {"type": kind, "y": [1, 2]}
    soup = rendered(shown({page.FIGURE: {"data": [trace], "layout": {}}}))
    library = soup.head.find_all("script")[0].text
    assert 1e6 < len(library) < 1.3e6 and f'name:"{kind}"' in library and 'name:"scatter3d"' not in library


def test_a_library_that_is_built_in_another_way_stays_whole() -> None:
    whole = page._plotly_source(("scatter3d", "no such type"))
    assert len(whole) > 4e6 and page._shaken_library("var a=1;", ["bar"]) == "var a=1;"


def test_cells_for_a_person_at_the_notebook_are_left_out_but_not_where_it_stopped() -> None:
    def cells(**more: Any) -> BeautifulSoup:
        form = new_code_cell(
            "form", outputs=[shown({"text/html": "<b>Cancel</b>"})], metadata={"tags": ["remove-cell"]}
        )
        form.metadata.update(more)
        words = new_markdown_cell("**Cancel** ends it", metadata={"tags": ["remove-cell"]})
        nb = new_notebook(cells=[new_markdown_cell("# Why?"), words, form])
        return BeautifulSoup(page.render(nb, failed="It was." if more else ""), "html.parser")

    assert "Cancel" not in cells().main.text
    assert "Cancel" in cells(papermill={"start_time": "now"}).main.text


def test_the_verdict_stands_under_the_title_with_the_command_that_makes_the_page() -> None:
    banner = '<section class="nk-banner">It is rank 3 <code class="nk-reproduce">x</code></section>'
    example = banner.replace("nk-banner", "nk-banner nk-example").replace("rank 3", "rank 9")
    prose = "# Why?\n\nA page.\n\n**What you get:** much."
    nb = new_notebook(
        cells=[
            new_markdown_cell(prose),
            *(new_code_cell("", outputs=[shown({"text/html": html})]) for html in (example, banner)),
        ]
    )
    nb.metadata["papermill"] = {
        "parameters": {"case_dir": "/my case", "logs": "a b", "check": True, "train_python": ""}
    }
    main = BeautifulSoup(page.render(nb, name="03_logs.ipynb", folder=ROOT / "notebooks"), "html.parser").main
    said = " ".join(main.get_text(" ").split())
    assert said.startswith("Why? It is rank 3 ncclkit report --notebook 03_logs --case 'my case' -p 'logs=a b'")
    assert said.index("A page.") < said.index("rank 9") and "What you get" not in said


def test_the_verdict_under_the_title_is_the_last_one_of_its_case() -> None:
    """An experiment has proven what was likely before it; another case further down is another matter."""
    banner = '<div class="nk"><section class="nk-banner" data-case="{}">It is {} <code class="nk-reproduce"></code>'
    said = [
        banner.format(*row) for row in (("/home/me/c", "likely"), ("/home/me/c", "proven"), ("/home/me/d", "possible"))
    ]
    cells = [new_code_cell("", outputs=[shown({"text/html": f"{html}</section></div>"})]) for html in said]
    main = BeautifulSoup(page.render(new_notebook(cells=[new_markdown_cell("# Why?"), *cells])), "html.parser").main
    assert "proven" in main.select_one("section.prose h1 + .out .nk-banner").get_text()
    assert "likely" not in main.get_text() and "possible" in main.get_text() and "/home" not in str(main)


def test_on_a_page_that_asks_for_a_guess_the_verdict_stays_below_the_question() -> None:
    asked = '<div class="nk nk-guess">Who is at fault?</div>'
    banner = '<section class="nk-banner" data-case="/x">It is rank 3 <code class="nk-reproduce">x</code></section>'
    cells = [new_code_cell("", outputs=[shown({"text/html": html})]) for html in (asked, banner)]
    main = BeautifulSoup(page.render(new_notebook(cells=[new_markdown_cell("# Why?"), *cells])), "html.parser").main
    said = " ".join(main.get_text(" ").split())
    asked_first = "Why? Who is at fault? Choose before you turn the page. It is rank 3 ncclkit report"
    assert said.startswith(asked_first) and "/x" not in str(main)


def test_a_form_that_nobody_used_is_left_out() -> None:
    soup = rendered(shown({"text/html": '<style></style><div class="nk-idle">No experiment was made</div>'}))
    assert "experiment" not in soup.main.text


def test_a_figure_cannot_close_its_script() -> None:
    soup = rendered(shown(figure("<!-- " + HOSTILE)))
    data = json.loads(soup.find("script", class_="figure-data").text)
    assert data["data"][0]["name"] == "<!-- " + HOSTILE
    assert soup.find("div", class_="figure")["aria-label"].startswith("<!-- ") is False
    assert soup.main.find("img") is None


def test_every_script_that_may_run_carries_the_nonce_of_the_policy() -> None:
    soup = rendered(shown(figure("t")), shown({"text/html": "<script>alert(1)</script>"}))
    policy = soup.find("meta", attrs={"http-equiv": "Content-Security-Policy"})["content"]
    nonces = {script.get("nonce") for script in soup.find_all("script") if script.get("type") != "application/json"}
    assert policy.startswith("default-src 'none'; script-src 'nonce-")
    assert nonces - {None} == {policy.split("nonce-")[1].split("'")[0]}
    assert "unsafe-eval" not in policy and "http" not in policy


def test_widgets_give_way_to_their_static_twin() -> None:
    widget = {page.WIDGET: {"model_id": "m", "version_major": 2, "version_minor": 0}}
    twin, bare = {"text/html": "<b>twin</b>", "text/plain": "repr"}, {"text/plain": "bare"}
    soup = rendered(shown(widget | twin), shown(widget | bare))
    faces = [out.get_text(strip=True) for out in soup.select(".out")]
    assert faces == ["twin", "An interactive control stands here in the notebook."]
    assert "model_id" not in soup.main.decode()


def test_equal_headings_have_different_anchors() -> None:
    soup = rendered(prose="# Why?\n\n## The `same`\n\n## The same\n\n### <b>bold</b> & deep")
    assert [link["href"] for link in soup.select("nav a")] == ["#the-same", "#the-same-2", "#bold-deep"]
    assert soup.title.text == "Why?" and soup.select("nav a")[2].text == "bold & deep"


def test_of_a_progress_bar_its_last_state_stays() -> None:
    pieces = [new_output("stream", name="stdout", text=text) for text in ("10 %", "\r50 %", "\r100 %\ndone\n")]
    assert [pre.text for pre in rendered(*pieces).select("pre.out")] == ["100 %\ndone\n"]


def test_pieces_of_a_stream_are_joined_and_escaped() -> None:
    pieces = [new_output("stream", name="stdout", text=text) for text in ("a", f"b{HOSTILE}\n", "c")]
    soup = rendered(*pieces, new_output("stream", name="stderr", text="noise\n"))
    assert [pre.text for pre in soup.select("pre.out")] == [f"ab{HOSTILE}\nc"]
    assert soup.find("details").find("summary").text == "Messages on standard error (1)"
    assert HOSTILE in soup.find("footer").text and soup.find("img") is None


def test_the_answer_is_the_title_and_the_question_a_line_above_it() -> None:
    banner = '<section class="nk-banner" data-case="/x"><p class="nk-say">Rank 3 was killed.</p></section>'
    cells = [new_markdown_cell("# Why?"), new_code_cell("", outputs=[shown({"text/html": banner})])]
    soup = BeautifulSoup(page.render(new_notebook(cells=cells)), "html.parser")
    assert soup.main.select_one("p.question").get_text() == "Why?"
    assert soup.main.h1.get_text() == soup.title.get_text() == "Rank 3 was killed"
    assert soup.main.get_text().count("Rank 3 was killed") == 1


def section(title: str, *outputs: Any) -> list[Any]:
    """The cells of one section of a notebook: its heading with words, and a cell that shows these."""
    return [new_markdown_cell(f"{title}\n\nWords of it."), new_code_cell("x", outputs=list(outputs))]


def seen(view: Any) -> Any:
    return shown({"text/html": view.html})


def page_of(*cells: Any, **more: Any) -> BeautifulSoup:
    nb = new_notebook(cells=[new_markdown_cell("# Why?"), *cells])
    return BeautifulSoup(page.render(nb, **more), "html.parser")


def titles(soup: BeautifulSoup) -> list[str]:
    return [heading.text for heading in soup.main.select("h2, h3")]


def test_what_has_no_data_is_one_line_at_the_end_and_no_section() -> None:
    empty, there = nk.Case(), shown({"text/html": "<p>numbers</p>"})
    soup = page_of(
        *section("## Rings", seen(nk.show.transports(empty)), seen(nk.show.rings(empty))),
        *section("## Kept", there),
        *section("### Its part", seen(nk.show.telemetry(empty))),
        *section("## Last", there),
    )
    assert titles(soup) == ["Kept", "Last"] and soup.main.text.count("Words of it") == 2
    (line,) = soup.select(".not-shown")
    assert "the transports and the rings (the logs hold no line of NCCL about it" in line.text
    assert "telemetry (no run of this case was watched)" in line.text
    assert line.find_next_sibling().name == "footer" and not soup.select(".nk-no-data")


def test_a_section_that_shows_a_part_stays_with_it() -> None:
    there = shown({"text/html": "<p>numbers</p>"})
    soup = page_of(
        *section("## Paths", there),
        new_markdown_cell("The rings show who sends to whom."),
        new_code_cell("x", outputs=[seen(nk.show.rings(nk.Case()))]),
    )
    assert titles(soup) == ["Paths"] and "numbers" in soup.main.text
    assert "who sends to whom" not in soup.main.text and "the rings" in soup.select_one(".not-shown").text


def test_a_page_of_which_all_is_shown_has_no_such_line() -> None:
    soup = page_of(*section("## One", shown({"text/html": "<p>numbers</p>"})), *section("## Words alone"))
    assert titles(soup) == ["One", "Words alone"] and not soup.select(".not-shown")


def test_where_a_notebook_stopped_nothing_is_left_out() -> None:
    heading, cell = section("## Rings", seen(nk.show.rings(nk.Case())))
    cell.metadata["papermill"] = {"start_time": "2026-11-27"}
    assert titles(page_of(heading, cell, failed="It was.")) == ["Rings"]


def test_a_reason_from_outside_is_text() -> None:
    view = NoData("the rings", HOSTILE)
    soup = page_of(*section("## Rings", seen(view)))
    assert HOSTILE in soup.select_one(".not-shown").text and not soup.main.select("img")


def test_where_nothing_needs_to_be_asked_there_is_no_section_for_it() -> None:
    firm = nk.open_sample("rank_late")
    form = nk.form.ask(firm, nk.diagnose(firm))
    shown_by = shown({"text/html": QuestionView(firm, nk.diagnose(firm)).html})
    soup = page_of(*section("## Which is it?", seen(form), shown_by), *section("## Rest", shown({"text/html": "<p>1</p>"})))
    assert titles(soup) == ["Rest"] and "a question (nothing needs to be asked)" in soup.select_one(".not-shown").text


BANNER = '<section class="nk-banner" data-case="/x"><p class="nk-say">Rank 3 was killed.</p></section>'
LONG = "It takes `two` steps. " + "They are told here at length, so that whoever reads it knows. " * 4


def test_of_prose_the_first_sentence_stays_and_the_rest_is_folded() -> None:
    soup = page_of(
        new_code_cell("x", outputs=[shown({"text/html": BANNER})]),
        new_markdown_cell(f"## How\n\n{LONG}\n\n- a list\n"),
        new_code_cell("nothing_shown()"),
        new_markdown_cell(f"More of it: {LONG}"),
        new_code_cell("x", outputs=[shown({"text/html": "<p>numbers</p>"})]),
        new_markdown_cell(f"After the numbers. {LONG}"),
    )
    how, after = soup.main.select("details.explanation")
    assert how.find_previous_sibling().get_text() == "It takes two steps."
    assert how.summary.text == "Explanation" and not how.has_attr("open")
    assert "They are told here" in how.text and "a list" in how.text and "More of it" in how.text
    assert after.find_previous_sibling().get_text() == "After the numbers."
    told = " ".join(soup.main.get_text(" ").split())
    assert told.count("They are told here") == 12 and told.index("More of it") < told.index("numbers")


def test_short_prose_and_pages_without_an_answer_stay_as_they_are() -> None:
    banner = new_code_cell("x", outputs=[shown({"text/html": BANNER})])
    assert not page_of(banner, new_markdown_cell("## How\n\nOne. Two.")).select(".explanation")
    assert not page_of(new_markdown_cell(f"## How\n\n{LONG}")).select(".explanation")
    asks = new_code_cell("x", outputs=[shown({"text/html": '<div class="nk nk-guess">Who?</div>'})])
    assert not page_of(asks, banner, new_markdown_cell(f"## How\n\n{LONG}")).select(".explanation")


def test_the_title_of_a_figure_of_ours_is_prose_of_the_page() -> None:
    drawn = nk.views.plots.bandwidth([])
    assert drawn.layout.title.text and drawn.layout.margin.t
    soup = rendered(shown({page.FIGURE: json.loads(drawn.to_json())}), shown(figure("Theirs")))
    assert [title.text for title in soup.select(".figure-title")] == ["Nothing measured yet"]
    ours, theirs = (json.loads(data.text)["layout"] for data in soup.select("script.figure-data"))
    assert ours["title"] == {} and 0 < ours["margin"]["t"] < drawn.layout.margin.t
    assert drawn.layout.height - ours["height"] == drawn.layout.margin.t - ours["margin"]["t"]
    assert theirs["title"] == {"text": "Theirs"}


def test_what_a_table_and_the_figure_below_it_conclude_stands_once() -> None:
    said = '<div class="nk"><p class="nk-say">{}</p></div>'.format
    soup = rendered(*(shown({"text/html": said(words)}) for words in ("It is fast", "It is fast", "Slow", "It is fast")))
    assert [title.text for title in soup.select(".nk-say")] == ["It is fast", "Slow", "It is fast"]


def test_a_story_on_paper_ends_a_sheet_at_its_question_and_has_a_sheet_of_answers() -> None:
    asks = new_code_cell("x", outputs=[shown({"text/html": '<div class="nk nk-guess">Who?</div>'})])
    soup = page_of(asks, new_markdown_cell("## 3 · Break it"))
    assert soup.select_one(".step:has(.nk-guess) > .on-paper.turn").text == "Choose before you turn the page."
    assert soup.main.find_all(True, recursive=False)[-1].select_one(".answers-title").text == "Answers"
    assert not page_of(new_markdown_cell("## One")).select(".on-paper")
