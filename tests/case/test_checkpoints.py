"""Checkpoints as they are found: whole, cut, damaged, hostile, of other kinds."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ncclkit.core.model import NcclkitError
from ncclkit.lab.course.checkpoints import read_checkpoints
from ncclkit.lab.views.course import checkpoints_view


def saved(path: Path, state: Any) -> Path:
    """A file laid out as torch.save lays it out."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(state, protocol=2))
        archive.writestr("model/data/0", bytes(4096))
    return path


def tensors(path: Path, *, cut: int = 0) -> Path:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "__metadata__": {}}).encode()
    path.write_bytes((len(header).to_bytes(8, "little") + header + bytes(16))[: -cut or None])
    return path


@pytest.mark.parametrize(
    ("state", "position"),
    [
        ({"model": 1, "iteration": 890_000}, False),
        ({"model": 1, "loaders": [{"_num_yielded": 7}]}, True),
        ({"state": {"consumed_train_samples": 7}}, True),
        ({"train_dataloader": None}, True),
        ({"loader_kind": "map", "sampler_seed": 3}, False),
    ],
)
def test_says_whether_the_loaders_are_in_it(tmp_path: Path, state: Any, position: bool) -> None:
    (found,) = read_checkpoints(saved(tmp_path / "last.ckpt", state))
    assert (found.whole, found.words, found.position) == (True, "", position)


def test_what_is_cut_or_damaged_is_not_whole(tmp_path: Path) -> None:
    whole = saved(tmp_path / "a.pt", {"model": "weights"}).read_bytes()
    (tmp_path / "b.pt").write_bytes(whole.replace(b"weights", b"WEIGHTS"))
    (tmp_path / "c.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "d.pt").write_bytes(b"")
    tensors(tmp_path / "e.safetensors")
    tensors(tmp_path / "f.safetensors", cut=4)
    (tmp_path / "g.bin").write_bytes(pickle.dumps({"old": 1}))
    (tmp_path / "h.safetensors").write_bytes(b"no header at all")
    found = {file.path.name[0]: (file.whole, file.words) for file in read_checkpoints(tmp_path)}
    assert [name for name, (whole_, _) in found.items() if whole_] == ["a", "e"]
    assert [name for name, (whole_, _) in found.items() if whole_ is None] == ["g"]
    assert "model/data.pkl" in found["b"][1] and "ends too early" in found["c"][1] and found["d"][1] == "it is empty"
    assert found["f"][1] == "4 bytes are missing at its end" and "cannot be read" in found["h"][1]
    assert checkpoints_view(tmp_path).summary == "5 of 8 files cannot be used: resume from the checkpoint before"


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return Path.touch, (tmp_path / "sprung",)  # type: ignore[return-value]

    (found,) = read_checkpoints(saved(tmp_path / "trap.ckpt", {"loaders": Trap()}))
    assert found.position and not (tmp_path / "sprung").exists()


def test_names_are_escaped_and_nothing_found_is_said(tmp_path: Path) -> None:
    saved(tmp_path / "<b>x.ckpt", {})
    view = checkpoints_view(tmp_path)
    assert "&lt;b&gt;x.ckpt" in view.html and "reads the data again" in view.summary
    with pytest.raises(NcclkitError, match="no checkpoint at"):
        checkpoints_view(tmp_path / "nothing")
