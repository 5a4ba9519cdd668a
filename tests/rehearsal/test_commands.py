"""What a job's own command starts: the script, how many ranks, and on how many hosts."""

import pytest

from ncclkit.core.model import NcclkitError
from ncclkit.rehearsal.commands import parse_command
from tests.rehearsal.rehearsed import SCRIPTS

SCRIPT = str(SCRIPTS / "healthy_ddp.py")


@pytest.fixture(autouse=True)
def bin_folder(tmp_path, monkeypatch):
    """A folder of programs, beside which their interpreter lies; no file of accelerate's."""
    for name in ("python", "torchrun", "accelerate", "accelerate-launch"):
        program = tmp_path / name
        program.write_text("")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "ranks", "host_ranks"),
    [
        ("python SCRIPT --lr 1", 4, 4),
        ("python -m torch.distributed.run --nproc-per-node 2 --nnodes=3 SCRIPT --lr 1", 6, 2),
        ("torchrun --nproc_per_node gpu --nnodes 1:2 SCRIPT --lr 1", 8, 4),
        ("accelerate launch --num_processes 8 --num-machines=2 SCRIPT --lr 1", 8, 4),
        ("accelerate launch --multi_gpu --mixed_precision bf16 SCRIPT --lr 1", 4, 4),
        ("accelerate-launch --num_processes=2 SCRIPT --lr 1", 2, 2),
        ("python -m accelerate.commands.launch --num_processes 2 SCRIPT --lr 1", 2, 2),
    ],
)
def test_the_options_of_a_launcher_are_its_own(bin_folder, words, ranks, host_ranks):
    command = parse_command(words.replace("SCRIPT", SCRIPT).split(), 0)
    assert command.words == (SCRIPT, "--lr", "1")
    assert (command.ranks, command.host_ranks) == (ranks, host_ranks)
    assert command.python == str(bin_folder / "python")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("python SCRIPT", "unknown"),
        ("torchrun --nproc-per-node 2 SCRIPT", "all"),
        ("torchrun --virtual-local-rank --nproc-per-node 2 SCRIPT", "first"),
        ("accelerate launch SCRIPT", "all"),
    ],
)
def test_which_gpus_a_launcher_shows_is_known_or_not(words, shown):
    assert parse_command(words.replace("SCRIPT", SCRIPT).split(), 0).shown_gpus == shown


def test_a_rank_of_torchrun_is_told_of_its_restarts():
    told = parse_command(["torchrun", "--nnodes=2", "--max-restarts", "3", SCRIPT], 0).env
    assert told["TORCHELASTIC_MAX_RESTARTS"] == "3" and told["TORCHELASTIC_RESTART_COUNT"] == "0"


def test_ranks_and_hosts_may_be_other_ones():
    words = f"python -m torch.distributed.run --nproc-per-node 2 {SCRIPT}".split()
    command = parse_command(words, 8, hosts=2)
    assert (command.ranks, command.host_ranks) == (8, 4)
    with pytest.raises(NcclkitError, match="cannot be divided over 3 hosts"):
        parse_command(words, 8, hosts=3)


def test_accelerate_has_options_in_a_file_and_tells_ranks_of_some(bin_folder):
    config = bin_folder / "hf" / "accelerate" / "default_config.yaml"
    config.parent.mkdir(parents=True)
    lines = ("distributed_type: MULTI_GPU", "mixed_precision: 'bf16' # half", "num_processes: 6")
    config.write_text("\n".join(lines))
    command = parse_command(["accelerate", "launch", SCRIPT], 0)
    assert (command.ranks, command.env) == (6, {"ACCELERATE_MIXED_PRECISION": "bf16"})
    # what the command line says comes first
    words = ["accelerate", "launch", "--num_processes", "2", "--mixed_precision", "no", SCRIPT]
    command = parse_command(words, 0)
    assert (command.ranks, command.env) == (2, {"ACCELERATE_MIXED_PRECISION": "no"})


def test_what_accelerate_would_set_up_itself_is_not_rehearsed_as_something_else(bin_folder):
    with pytest.raises(NcclkitError, match="would set up FSDP"):
        parse_command(["accelerate", "launch", "--use_fsdp", SCRIPT], 0)
    config = bin_folder / "fsdp.yaml"
    config.write_text("distributed_type: DEEPSPEED\nfsdp_config:\n  fsdp_version: 2\n")
    with pytest.raises(NcclkitError, match="would set up DEEPSPEED"):
        parse_command(["accelerate", "launch", "--config_file", str(config), SCRIPT], 0)
    with pytest.raises(NcclkitError, match="No such file"):
        parse_command(["accelerate", "launch", "--config_file", "/missing.yaml", SCRIPT], 0)
