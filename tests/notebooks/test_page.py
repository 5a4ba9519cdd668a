"""The page itself, without a browser: what is inside, how often, and that nothing breaks out."""

from __future__ import annotations

import json
from typing import Any

from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ncclkit.report import page
from tests.reports import HOSTILE


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


def test_pieces_of_a_stream_are_joined_and_escaped() -> None:
    pieces = [new_output("stream", name="stdout", text=text) for text in ("a", f"b{HOSTILE}\n", "c")]
    soup = rendered(*pieces, new_output("stream", name="stderr", text="noise\n"))
    assert [pre.text for pre in soup.select("pre.out")] == [f"ab{HOSTILE}\nc"]
    assert soup.find("details").find("summary").text == "Messages on standard error (1)"
    assert HOSTILE in soup.find("footer").text and soup.find("img") is None
