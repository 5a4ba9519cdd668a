"""The forms that fill a case which the page below holds already: other logs, and the numbers of a job."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import ncclkit as nk
from ncclkit.core.case import Case
from ncclkit.core.model import Fact
from tests.views.test_page import shown, text_of

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB\n"


def test_other_logs_are_judged_by_all_that_stands_below(tmp_path: Path) -> None:
    async def visited() -> None:
        case = nk.read_logs("", tmp_path / "case", "eight_ranks_late")
        form = nk.form.logs(case)
        nothing = await form.run()
        assert nothing.summary == form.IDLE and "nk-idle" in nothing.static()
        verdict = nk.diagnose(case)
        banner, ask, job = nk.show.banner(case, verdict), nk.form.ask(case, verdict), nk.show.job(case)
        before = text_of(shown(banner))
        assert "nk-example" in before and "8 ranks" in text_of(shown(job))
        (tmp_path / "train.log").write_text(OOM)
        form.logs.value = str(tmp_path / "train.log")
        await form.run()
        after = text_of(shown(banner))
        assert "nk-example" not in after and "out of memory" in after and after != before
        assert "8 ranks" not in text_of(shown(job))
        assert "CUDA" in str(case.events[0].text) and ask._judged.headline == nk.diagnose(case).headline
        assert not form.asks(), "what was read is not read again by Run All"

    asyncio.run(asyncio.wait_for(visited(), 120))


def test_an_upload_is_read_at_once_under_a_name_that_leads_nowhere(tmp_path: Path) -> None:
    async def visited() -> None:
        case = nk.read_logs("", tmp_path / "case", "eight_ranks_late")
        form = nk.form.logs(case)
        form.widget()
        file: dict[str, Any] = {"name": "../../.bashrc", "type": "", "size": len(OOM), "content": OOM.encode()}
        form.upload.set_trait("value", (file | {"last_modified": datetime.now()},))
        while not form.running:
            await asyncio.sleep(0)
        while form.running:
            await asyncio.sleep(0.01)
        assert [path.name for path in (tmp_path / "case" / "uploaded" / "1").iterdir()] == ["bashrc"]
        assert "out of memory" in case.events[0].text

    asyncio.run(asyncio.wait_for(visited(), 60))


def test_the_numbers_of_a_job_are_judged_by_what_stands_below(tmp_path: Path) -> None:
    async def visited() -> None:
        case = Case.open(tmp_path / "case")
        case.add([Fact("cpu.affinity", 4, "cores", "here", "node-1"), Fact("memory.available", 1 << 30, "bytes", "x", "node-1")])
        machines = nk.set_job_spec(case, {"workers": 0, "dataset": 0}).hosts_only()
        form = nk.form.job_spec(case, machines)
        assert (await form.run()).summary == form.IDLE and form.start.disabled
        banner = nk.show.banner(machines, nk.diagnose(machines))
        before = text_of(shown(banner))
        form.dataset.value = "much"
        assert form.start.disabled and "nk-wrong" in form.dataset._dom_classes
        form.dataset.value, form.workers.value = "900GB", 64
        await form.run()
        assert case.fact("job.workers") == machines.fact("job.workers") == 64
        assert case.fact("job.dataset") == 900 * 10**9 or case.fact("job.dataset") == 900 << 30
        assert text_of(shown(banner)) != before and not form.asks() and form.start.disabled

    asyncio.run(asyncio.wait_for(visited(), 60))
