"""A notebook as one offline HTML page.

In: an executed notebook.  Out: one HTML text: figures drawn by plotly.js inside the file, nothing
fetched, no widget state.  The page forbids itself every request and every script but its own by a
Content-Security-Policy, so a hostile log line that slipped through unescaped could still neither
run nor call home.

Begin with `render`.
"""

from __future__ import annotations

import copy
import json
import pkgutil
import re
import secrets
import shlex
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString
from jinja2 import DictLoader
from nbconvert import HTMLExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbformat import NotebookNode

from ncclkit import __version__
from ncclkit.agent.anonymize import Aliases
from ncclkit.core.model import safe
from ncclkit.report.page import anonymized
from ncclkit.report.page.explanations import fold_explanations
from ncclkit.report.page.paper import part_at_guess
from ncclkit.report.page.sections import leave_out_empty_sections
from ncclkit.report.parameters import FOR_A_PERSON, NOTEBOOK_FOLDERS

FIGURE = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
ERROR_MARK = "papermill-error-cell-tag"
PLOTLY = "<!--ncclkit:plotly-->"
FIGURE_SLOT = '<div class="nk-figure"></div>'
"""Where the words of a view want its figure (`ncclkit.views` writes it)."""
OVER_TITLE, TITLE_LINE = 18, 20
"""Pixels that a figure of ours keeps over its title, and for each line of it."""
ANSWER = "nk-answer"
"""What marks the banner of a measurement, of which a page may hold several."""
MODULE_OF_TRACE = re.compile(r'moduleType:"trace",name:"(\w+)"')
"""How plotly.js names the type of trace that a module draws."""
STORY = ".nk-story"
"""The banner of a story: its guess beside its proof."""
HERE = Path(__file__).parent


def render(
    notebook: NotebookNode,
    *,
    name: str = "",
    folder: Path | None = None,
    failed: str = "",
    host: str = "",
    aliases: Aliases | None = None,
    command: str = "",
) -> str:
    """The executed `notebook` as the text of one HTML file.

    `name` is shown as its origin, local images are looked up in `folder`; `failed` is the sentence
    that says why it stopped early, and then everything behind the last cell that was started is
    left out; `host` is the machine that it ran on (default: this one); `aliases` replace the names
    of hosts and users everywhere; `command` makes the page again (default: `ncclkit report` with
    its parameters).
    """
    page = copy.deepcopy(notebook)
    page.cells = [cell for cell in page.cells if ERROR_MARK not in cell.metadata.get("tags", [])]
    skipped = 0
    if failed:
        skipped = _cut_unstarted(page)
    page.cells = [cell for cell in page.cells if _is_kept(cell)]
    for cell in page.cells:
        if cell.cell_type == "code":
            cell.outputs = [_static_output(output) for output in cell.outputs]
    resources = (
        _page_resources(notebook, name, folder)
        | {"host": host or socket.gethostname()}
        | {"failed": failed, "skipped": skipped}
    )
    soup = BeautifulSoup(_export_html(page, resources), "html.parser")
    leave_out_empty_sections(soup)
    _place_banner(soup, command or str(resources["about"]["command"]))
    fold_explanations(soup)
    part_at_guess(soup, str(resources["lang"]))
    _drop_repeated_titles(soup)
    if aliases is not None:
        anonymized.hide(soup, aliases)
    _add_contents(soup)
    for repeated in soup.select("style.nk-style")[1:]:
        repeated.decompose()  # every view brings the same stylesheet
    drawn = [
        json.loads(script.text)["data"] for script in soup.find_all("script", class_="figure-data")
    ]
    traces = tuple(sorted({trace.get("type", "scatter") for data in drawn for trace in data}))
    script = ""
    if drawn:
        script = f'<script nonce="{resources["nonce"]}">{_plotly_source(traces)}</script>'
    return str(soup).replace(PLOTLY, script, 1)  # last, so that nobody parses its megabyte


def _export_html(page: NotebookNode, resources: dict[str, Any]) -> str:
    exporter = HTMLExporter(
        template_name="basic",
        template_file="page.html.j2",
        embed_images=True,
        exclude_anchor_links=True,
        preprocessors=[CoalesceStreamsPreprocessor],
        extra_loaders=[
            DictLoader({"page.html.j2": (HERE / "page.html.j2").read_text(encoding="utf-8")})
        ],
    )
    html, _ = exporter.from_notebook_node(page, resources)
    return str(html)


def _page_resources(notebook: NotebookNode, name: str, folder: Path | None) -> dict[str, Any]:
    nonce = secrets.token_urlsafe(16)
    css, dark = ((HERE / file).read_text(encoding="utf-8") for file in ("page.css", "dark.css"))
    schemes = (
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark}"
        f" }} }}\n@media screen {{ :root[data-theme=dark] {{ {dark} }} }}"
    )
    return {
        "metadata": {"path": str(folder or "")},
        "nonce": nonce,
        # chooses between Chinese and Japanese shapes of a letter
        "lang": ("zh-CN" if ".zh." in name else "en"),
        "policy": (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src"
            " data: blob:"
        ),
        "css": css.replace("/*DARK*/", schemes),
        "script": (HERE / "page.js").read_text(encoding="utf-8"),
        "about": _about_page(notebook, name, folder),
    }


def _about_page(notebook: NotebookNode, name: str, folder: Path | None) -> dict[str, Any]:
    """Who made this page, where, when and from what.

    These are the words of the page's head and foot.
    """
    run = notebook.metadata.get("papermill", {})
    return {
        "version": __version__,
        "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "notebook": name or "a notebook",
        "took": f"{run['duration']:.0f} s" if run.get("duration") else "",
        "parameters": [(key, repr(value)) for key, value in (run.get("parameters") or {}).items()],
        "command": _command_to_repeat(Path(folder or ".") / name, run.get("parameters") or {}),
    }


def _command_to_repeat(path: Path, parameters: Mapping[str, Any]) -> str:
    """What to type to make the page again.

    What stands at its default is left to the notebook.  Of the case folder it is the name alone:
    who reads the page has another home than who made it.
    """
    given = []
    for key, value in parameters.items():
        if key != "case_dir" and value != "":
            given += ["-p", f"{key}={value}"]
    case = []
    if parameters.get("case_dir"):
        folder = Path(str(parameters["case_dir"]))
        case = ["--case", folder.resolve().name]
    own = next(
        (
            path.relative_to(home).with_suffix("")
            for home in NOTEBOOK_FOLDERS
            if path.is_relative_to(home)
        ),
        path,
    )
    words = ["ncclkit", "report", "--notebook", str(own), *case]
    return shlex.join([*words, *given])


def _cut_unstarted(page: NotebookNode) -> int:
    """Drop the cells behind the last one that was started and mark that one.

    Returns how many code cells went.
    """
    started = [
        i for i, cell in enumerate(page.cells) if cell.cell_type == "code" and _was_started(cell)
    ]
    last = -1
    if started:
        last = started[-1]
    if started:
        page.cells[last].metadata["ncclkit_stopped"] = True
    gone = page.cells[last + 1 :]
    page.cells = page.cells[: last + 1] or page.cells[:1]
    return sum(cell.cell_type == "code" for cell in gone)


def _was_started(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("papermill", {}).get("start_time"))


def _is_kept(cell: NotebookNode) -> bool:
    """Whether a reader of the page needs the cell.

    Where the notebook stopped, that is so of every cell.
    """
    stopped = bool(cell.metadata.get("ncclkit_stopped"))
    return stopped or FOR_A_PERSON not in cell.metadata.get("tags", [])


def _static_output(output: NotebookNode) -> NotebookNode:
    """The face of an output that needs no kernel.

    It has figures as data for plotly.js, widgets by their HTML twin.
    """
    data = output.get("data", {})
    if FIGURE in data:
        html = data.get("text/html", "")
        figure = _figure_html(data.pop(FIGURE))
        if "<script" in html:
            words = ""
        else:
            words = html
        if FIGURE_SLOT in words:
            data["text/html"] = words.replace(FIGURE_SLOT, figure, 1)
        else:
            data["text/html"] = words + figure
    elif WIDGET in data and "text/html" not in data:
        data["text/html"] = (
            '<p class="control">An interactive control stands here in the notebook.</p>'
        )
    data.pop(WIDGET, None)
    return output


def _figure_html(figure: dict[str, Any]) -> str:
    """One plotly figure: its JSON, inert, and a slot of the right height.

    page.js draws into the slot.
    """
    layout = figure.get("layout", {})
    title = layout.get("title", "")
    if isinstance(title, dict):
        label = title.get("text", "")
    else:
        label = title
    label = label or (layout.get("meta") or {}).get("summary", "")
    layout, heading = _heading_of_figure(layout)
    height = int(layout.get("height") or 420)
    # a text of a log must not close the script element
    payload = json.dumps(figure | {"layout": {**layout, "height": height}}).replace("<", "\\u003c")
    plain = safe(re.sub(r"<[^>]*>", " ", label or "figure"))
    return heading + (
        f'<div class="figure" role="img" aria-label="{plain}" style="min-height:{height}px"><script'
        f' type="application/json" class="figure-data">{payload}</script><noscript>The figure'
        f" “{plain}” needs JavaScript; its data is inside this file.</noscript></div>"
    )


def _heading_of_figure(layout: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The layout without its title, and the title as words of the page.

    A figure of ours breaks its title for a telephone; the page breaks it where its column ends.
    """
    title = layout.get("title")
    margin = layout.get("margin") or {}
    if not isinstance(title, dict) or title.get("yref") != "container" or "t" not in margin:
        return layout, ""
    lines = str(title.get("text", "")).split("<br>")
    above = OVER_TITLE + TITLE_LINE * len(lines)
    untitled = dict(layout)
    untitled["title"] = {}
    untitled["margin"] = dict(margin)
    untitled["margin"]["t"] -= above
    untitled["height"] = int(layout.get("height") or 420)
    untitled["height"] -= above
    words = " ".join(lines)
    words = re.sub(r"<[^>]*>", " ", words)
    words = safe(unescape(words))
    return untitled, f'<p class="figure-title">{words}</p>'


@cache
def _plotly_source(traces: tuple[str, ...]) -> str:
    """plotly.js with the code of these types of traces alone.

    It is made safe to stand inside a script element.
    """
    source = pkgutil.get_data("plotly", "package_data/plotly.min.js")
    if source is None:
        raise FileNotFoundError("plotly/package_data/plotly.min.js")
    return (
        _shaken_library(source.decode("utf-8"), traces)
        .replace("</script", "<\\/script")
        .replace("<!--", "<\\!--")
    )


def _shaken_library(library: str, traces: Iterable[str]) -> str:
    """The library without the modules that only other types of traces need.

    It is whole where it is built in another way.  Its bundler writes each module as ``var
    name=wrap((exports,module)=>{…});`` and each use of one as ``name()``; the last module registers
    the types of traces.  Maps and 3D are three quarters of it.
    """
    starts = r"var [\w$]+=([\w$]+)\(\(?[\w$,]*\)?=>\{"
    wraps = [re.escape(name) for name, _ in Counter(re.findall(starts, library)).most_common(2)]
    modules = []
    if wraps:
        modules = re.split(rf"(?<=[;}}\n])(?=var [\w$]+={wraps[0]}\()", library)
    # to begin with the name took ten times as long
    named = re.compile(rf"=(?:{'|'.join(wraps)})\(\(?[\w$,]*\)?=>")
    homes = {
        _name_before(module, at.start()): i
        for i, module in enumerate(modules)
        for at in named.finditer(module)
    }
    registered = re.search(r"(?<=\.register\(\[)[\w$(),]+(?=\]\))", modules[-1] if modules else "")
    if len(modules) < 100 or registered is None:
        return library

    def uses(module: str) -> set[int]:
        return {
            homes[name] for name in re.findall(r"(?<![\w$.])([\w$]+)\(\)", module) if name in homes
        }

    def kind(call: str) -> str:
        near = [homes.get(call.removesuffix("()"), 0)]
        near += [further for place in near for further in sorted(uses(modules[place]))]
        for place in near:
            said = MODULE_OF_TRACE.search(modules[place])
            if said is not None:
                return said[1]
        return ""

    wanted = [call for call in registered[0].split(",") if kind(call) in traces]
    if len(wanted) < len({*traces} - {"scatter"}):  # scatter is part of the core
        return library
    modules[-1] = modules[-1].replace(registered[0], ",".join(wanted))
    live = {0, len(modules) - 1}
    frontier = list(live)
    while frontier:
        fresh = uses(modules[frontier.pop()]) - live
        live |= fresh
        frontier += fresh
    return "".join(module for i, module in enumerate(modules) if i in live)


def _name_before(text: str, end: int) -> str:
    """The name that ends here."""
    start = end
    while start and (text[start - 1].isalnum() or text[start - 1] in "_$"):
        start -= 1
    return text[start:end]


def _place_banner(soup: BeautifulSoup, command: str) -> None:
    """Put the verdict under the title, with the command that repeats the page.

    An experiment further down may have changed it: of the banners of one case the last one counts.
    On a page that asks for a guess, every verdict stays where it is, below the question; what was
    guessed and what proves it stand on top.
    """
    first = soup.select_one(".nk-banner:not(.nk-example)") or soup.select_one(".nk-banner")
    title = soup.select_one("section.prose > h1")
    if first is None or title is None:
        return
    same = _banners_of_one_case(soup, first)
    for banner in soup.select(".nk-banner"):
        banner["data-case"] = ""  # a path, which a report without names must not hold
    for said in same[-1].select(".nk-reproduce"):
        said.string = command
    if soup.select_one(".nk-guess"):
        _put_guess_first(soup, title)
        return
    if same[-1] is not first:
        first.replace_with(same[-1].extract())
    for earlier in same[1:-1]:
        earlier.decompose()
    frame = _frame_of(soup, same[-1])
    if frame is not None:
        _put_answer_first(soup, title, same[-1])
        title.insert_after(frame.extract())
        for promise in title.find_next_siblings("p"):
            if promise.get_text().startswith("What you get"):
                promise.decompose()


def _banners_of_one_case(soup: BeautifulSoup, first: Tag) -> list[Tag]:
    """The verdicts on the case of the first one; a measurement stands alone."""
    if ANSWER in first.get_attribute_list("class"):
        return [first]
    path = first.get("data-case")
    same = []
    for banner in soup.select(".nk-banner"):
        if banner.get("data-case") == path:
            same.append(banner)
    return same


def _put_guess_first(soup: BeautifulSoup, title: Tag) -> None:
    """Begin a story with what was guessed and what holds, if it came as far as the proof.

    Where nobody guessed, what holds is folded, and the question stays the title.
    """
    met = soup.select_one(STORY)
    if met is None:
        return
    frame = _frame_of(soup, met)
    if frame is None:
        return
    if met.get("data-fold"):
        _fold_answer(soup, met)
    else:
        _put_answer_first(soup, title, met)
    title.insert_after(frame)


def _fold_answer(soup: BeautifulSoup, banner: Tag) -> None:
    """Leave the head of a banner open, and fold the rest."""
    folded = soup.new_tag("details", attrs={"class": "nk-fold nk-solves"})
    summary = soup.new_tag("summary")
    summary.string = str(banner["data-fold"])
    folded.append(summary)
    _, *parts = banner.find_all(True, recursive=False)
    for part in parts:
        folded.append(part.extract())
    banner.append(folded)


def _frame_of(soup: BeautifulSoup, banner: Tag) -> Tag | None:
    """What moves under the title: the output of the banner, or it alone out of a measurement's."""
    if ANSWER not in banner.get_attribute_list("class"):
        return banner.find_parent(class_="out")
    face = soup.new_tag("div", attrs={"class": "nk tex2jax_ignore"})
    face.append(banner.extract())
    frame = soup.new_tag("div", attrs={"class": "out"})
    frame.append(face)
    return frame


def _put_answer_first(soup: BeautifulSoup, title: Tag, banner: Tag) -> None:
    """Make the sentence of the banner the title of the page.

    The question becomes a line above it.
    """
    answer = banner.select_one(".nk-say")
    if answer is None:
        return
    question = soup.new_tag("p", attrs={"class": "question"})
    question.string = _words_of(title)
    title.insert_before(question)
    # with the elements within it, as they keep together what no line may break
    title.clear()
    title.extend([*answer.contents])
    ending = title.contents[-1]
    # a title ends without a full stop
    if isinstance(ending, NavigableString):
        ending.replace_with(ending.rstrip().rstrip("."))
    answer.decompose()


def _drop_repeated_titles(soup: BeautifulSoup) -> None:
    """Say once what a table and the figure right below it both conclude."""
    before = ""
    for title in soup.select("main .nk > p.nk-say, main p.figure-title"):
        said = _words_of(title)
        if said == before:
            title.decompose()
        before = said


def _words_of(heading: Tag) -> str:
    """The words of a heading, without the elements within it."""
    return " ".join(heading.get_text().split())


def _add_contents(soup: BeautifulSoup) -> None:
    """Give the page its title, a table of contents, and each heading an anchor."""
    used: Counter[str] = Counter()
    entries = []
    for heading in soup.select("section.prose > :is(h1, h2, h3)"):
        text = _words_of(heading)
        slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"
        used[slug] += 1
        if used[slug] == 1:
            heading["id"] = slug
        else:
            heading["id"] = f"{slug}-{used[slug]}"
        if heading.name == "h1" and soup.title and len(used) == 1:
            soup.title.string = text
        elif heading.name != "h1":
            entries.append(
                f'<li class="{heading.name}"><a href="#{heading["id"]}">{safe(text)}</a></li>'
            )
    columns = soup.find("div", class_="columns")
    if entries and isinstance(columns, Tag):
        nav = f'<nav aria-label="Contents"><b>On this page</b><ol>{"".join(entries)}</ol></nav>'
        columns.insert(0, BeautifulSoup(nav, "html.parser"))
