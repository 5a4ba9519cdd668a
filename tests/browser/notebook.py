"""Driving a notebook in JupyterLab: open, run all, wait, as a person would but without guessing when it is ready."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.browser.conftest import Lab, Visit, until

# A loaded JupyterLab opens another notebook in a second; loading it takes many, so one page serves all files of tests.
OPEN = """async ([path, kernel]) => {
  const app = window.jupyterapp, open = () => [...app.shell.widgets('main')].filter(panel => panel.context);
  for (const panel of open()) {
    panel.context.model.dirty = false;  // else a dialog asks whether to save
    panel.close();
  }
  while (open().length) await new Promise(r => setTimeout(r, 50));
  app.shell.expandLeft();
  await app.commands.execute('docmanager:open', {path, factory: 'Notebook', kernel});
  while (app.shell.currentWidget?.context?.path !== path) await new Promise(r => setTimeout(r, 50));
}"""

# "Idle" is shown before the kernel's channel is connected; cells started then are never executed.
READY = """async () => {
  const app = window.jupyterapp; await app.restored;
  const panel = app.shell.currentWidget;
  await panel.context.ready; await panel.sessionContext.ready; await panel.sessionContext.session.kernel.info;
  const kernel = panel.sessionContext.session.kernel;
  while (kernel.connectionStatus !== 'connected') await new Promise(r => setTimeout(r, 50));
}"""

# The state of the open notebook: what its code cells still have to do, and the errors among their outputs.
STATE = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  const cells = panel.content.widgets.filter(w => w.model.type === 'code' && w.model.sharedModel.getSource().trim());
  const outputs = cells.flatMap(w => Array.from({length: w.model.outputs.length}, (_, n) => w.model.outputs.get(n)));
  const errors = outputs.filter(o => o.type === 'error').map(o => o.toJSON()).map(o => `${o.ename}: ${o.evalue}`);
  const open = cells.filter(w => w.model.executionCount === null || w.promptNode?.textContent.includes('*')).length;
  return {errors, open, idle: panel.sessionContext.session.kernel.status === 'idle', cells: cells.length};
}"""


@contextmanager
def opened(tab: Visit, lab: Lab, name: str) -> Iterator[Visit]:
    """A notebook of the server's folder, alone in the one page and as wide as usual; its kernels end with it."""
    tab.page.set_viewport_size({"width": 1280, "height": 1400})
    open_notebook(tab.page, lab, name)
    tab.forget()
    yield tab
    tab.page.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")
    until(lambda: not lab.kernels(), 30, "the kernel to end")


def open_notebook(page: Any, lab: Lab, name: str, kernel: Any = None) -> None:
    """Open a notebook of the server's folder, alone, and wait until its kernel (a new one, or `kernel`) takes cells."""
    if page.url.startswith(lab.url):
        page.evaluate(OPEN, [name, kernel])
    else:
        page.goto(f"{lab.url}/lab/tree/{name}?reset&token={lab.token}")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=120_000)
    page.evaluate(READY)


def run_all(page: Any) -> None:
    """Run every cell; returns once their old outputs are gone."""
    page.evaluate(
        """async () => {
          await window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs');
          window.jupyterapp.commands.execute('notebook:run-all-cells');
        }"""
    )


def run_cell(page: Any, place: int) -> None:
    """Run one cell; returns once its old outputs are gone."""
    page.evaluate(
        """async place => {
          const panel = window.jupyterapp.shell.currentWidget;
          panel.content.activeCellIndex = place;
          await window.jupyterapp.commands.execute('notebook:run-cell');
        }""",
        place,
    )


def execute(page: Any, code: str) -> str:
    """How code that stands in no cell ended in the open notebook's kernel: ok, error or aborted."""
    kernel = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
    return str(page.evaluate(f"code => {kernel}.requestExecute({{code}}).done.then(said => said.content.status)", code))


def shut_down(page: Any) -> None:
    """End the open notebook's kernel."""
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")


def state(page: Any) -> dict[str, Any]:
    """What the open notebook still has to do: `open` and `cells` (counts), `idle`, `errors`."""
    found: dict[str, Any] = page.evaluate(STATE)
    return found


def wait_cells_done(page: Any, deadline: float) -> None:
    """Wait until every code cell was executed without an error."""
    done = f"() => {{ const s = ({STATE})(); return s.errors.length || (!s.open && s.idle); }}"
    page.wait_for_function(done, timeout=1000 * deadline, polling=250)  # its own way makes the page draw frames
    errors = state(page)["errors"]
    assert not errors, errors
