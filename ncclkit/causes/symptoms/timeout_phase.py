"""A timeout or hang at resume, evaluation, checkpoint or the end of an epoch

What it means
    Training runs, and stops where the ranks do not all do the same work: when a checkpoint is
    written or loaded, data is skipped after resume, evaluation begins, or the last batch has
    been read.  There, either rank 0 works alone for long, or the ranks make a different number
    of collective calls.

Whom not to believe
    The collective in which the others wait is innocent; it is only the next one after the
    phase.  "`Trainer.fit` stopped" and a finished progress bar belong to a rank that is done;
    another may still have batches.  A longer timeout helps only if the phase ends by itself.

What to get
    Does the silent rank work or wait?  Its stack (py-spy dump) names the phase.  The number of
    batches per rank, and which calls stand behind `if rank == 0`.  The time the phase takes on
    one rank alone, against the timeout; and for resume whether the loader's state is saved or
    its batches are replayed.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "timeout_phase"

WORDS: tuple[str, ...] = (
    r"`?Trainer\.fit`? stopped",
    r"\bmax_(?:epochs|steps)=\d{1,9}`? reached",
    r"\bsave_state\(",
    r"\bstart_step\b.{0,300}\b(?:hang|hung|stuck|stall|abort|time[sd]? ?out)",
    r"\b(?:hang|hung|stuck|freez|frozen|stall|deadlock|time[sd]? ?out"
    r"|block)\w{0,4}\b.{0,80}\b(?:end of (?:the |each |an |every )?(?:first )?(?:epoch"
    r"|training)|after (?:the )?(?:last|final) (?:epoch|step|batch)|(?:when|while|during"
    r"|after|before|in) (?:the )?(?:saving|resum|evaluat|validat|checkpoint|loading "
    r"(?:the )?(?:model|checkpoint|state)))",
    r"\b(?:saving|resum\w{1,4}|evaluation|validation|checkpoint\w{0,4}|epoch)\b.{0,60}\b"
    r"(?:hangs?|hung|hanging|gets? stuck|freezes|deadlocks?|timed out|times out)\b",
    r"\b(?:save_(?:checkpoint|state|model|pretrained)|load_checkpoint|evaluation_loop"
    r"|validate|skip_first_batches) \([^()\s]{1,200}:\d{1,6}\)",
    r"\bline \d{1,6} in (?:_?save_\w{1,30}|load_checkpoint|evaluat\w{1,20}|validat\w{1,20})",
)

SUSPECTS: Mapping[str, str] = {
    "rank_divergence": (
        "ranks have different numbers of batches, or save and evaluate behind a condition of rank"
    ),
    "slow_rank": "one rank replays batches on resume, evaluates or writes alone beyond the timeout",
    "timeout_too_short": (
        "the phase is healthy and the same on all ranks, but longer than the limit"
    ),
    "disk_or_io": "the checkpoint goes to, or comes from, storage that is full or stalls",
    "host_oom": "gathering or loading the state fills the host's memory on one rank",
    "framework_bug": "the framework calls a collective of save or evaluation on some ranks only",
    "shape_mismatch": "ranks gather results of evaluation whose sizes differ",
    "rank_exception": (
        "one rank fails in its save or evaluation, and the others wait at the end of it"
    ),
}
