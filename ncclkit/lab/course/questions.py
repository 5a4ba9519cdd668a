"""What the stories ask, and what was answered.

They ask for a guess before the evidence, with hints for it, and three questions at the end.
Choices stand here in any order; a view shows them in one that differs from case folder to case
folder.  They are in English, and so is what is kept of them; `translation` has the other language.
Of a student each first choice is kept, and, where the student wants it, times and hints: all of it
in ``answers.json`` of the case folder, and nowhere else.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from ncclkit.core import storage
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError, to_json
from ncclkit.core.text import did_you_mean, format_age
from ncclkit.lab.course.translation import ENGLISH, Translator


@dataclass(frozen=True, slots=True)
class Question:
    """A question with choices, of which one holds."""

    ask: str
    choices: Mapping[str, str]
    """Choice → what speaks for it or against it, in one or two sentences."""
    right: str


@dataclass(frozen=True, slots=True)
class Story:
    """The questions of one story."""

    cause: str
    """Id of the cause that its job has."""
    guess: Question
    hints: tuple[str, ...]
    """For the guess; the later ones say more."""
    quiz: tuple[Question, ...]


def story(name: str) -> Story:
    """The questions of the story of that name.

    Raises NcclkitError, with the names that exist, for another.
    """
    if name not in STORIES:
        known = f"the stories are {', '.join(STORIES)}."
        raise NcclkitError(f"There is no story {name!r}; {did_you_mean(name, STORIES, known)}")
    return STORIES[name]


RECBOLE = Story(
    "host_oom",
    Question(
        "Rank 5 could not get ncclUniqueId from rank 0. Where do you look first?",
        {
            "At the network of rank 5": (
                "It reached the store; else it could not have waited there for a key."
            ),
            "At the version of NCCL": "NCCL on rank 5 was not asked to connect anything yet.",
            "At what rank 0 did": (
                "Rank 0 has not come to the call that makes the key; its log and stack say why."
            ),
            "At the timeout": (
                "More time helps only if rank 0 comes, and does not say why it is late."
            ),
        },
        "At what rank 0 did",
    ),
    (
        "Who puts ncclUniqueId into the store, and who only waits for it?",
        "One row for each rank: which rank reports no error of its own?",
        "What did that rank log last, before the launcher ended it?",
    ),
    (
        Question(
            "The job dies after exactly 600 s with the same line. Is a timeout of 3,600 s a fix?",
            {
                "Yes: rank 0 then has the time that it needs": (
                    "Only where rank 0 does come within the hour, and "
                    "then every start costs that hour on all GPUs."
                ),
                "No, but a stop-gap if rank 0 does come": (
                    "It buys time while the data is prepared elsewhere. Where "
                    "rank 0 never comes, it only delays the message."
                ),
                "No: a timeout has no effect before the first collective": (
                    "The wait for the key ends with the "
                    "timeout of the process group; that is where the 600 s come from."
                ),
            },
            "No, but a stop-gap if rank 0 does come",
        ),
        Question(
            "Why does rank 0 itself print no timeout?",
            {
                "It waits for another rank as well": "Then it would time out as well, and say so.",
                "It is busy, and no timeout applies to reading data": (
                    "The launcher ends it with SIGTERM while it "
                    "still works. Its stack at that moment is the best witness."
                ),
                "NCCL hides the output of rank 0": (
                    "NCCL prints on every rank alike, and rank 0 has not called it yet."
                ),
            },
            "It is busy, and no timeout applies to reading data",
        ),
        Question(
            "For which model do micro-batches compute something else than one large batch?",
            {
                "One with embeddings": (
                    "The gradient of an embedding is a sum over samples, and a sum can be divided."
                ),
                "One with batch normalisation": (
                    "Its mean and variance are those of the micro-batch. A loss that "
                    "compares the samples of a batch with each other changes as well."
                ),
                "One with a large vocabulary": (
                    "It takes more memory, but the loss is still a mean over samples."
                ),
            },
            "One with batch normalisation",
        ),
    ),
)

LIGHTNING = Story(
    "slow_rank",
    Question(
        "Rank 3 timed out in the first all-reduce after a resume. Who is at fault?",
        {
            "Rank 3": "It says that it waited. Nothing that it did was late.",
            "The network": (
                "The same links carry a fresh start, and a resume from an early checkpoint."
            ),
            "A rank without any message": (
                "It still read its data when the others gave up; the later the checkpoint, "
                "the longer."
            ),
            "The checkpoint file": (
                "A damaged file fails while it is read, with an error, and not half an hour later."
            ),
        },
        "A rank without any message",
    ),
    (
        "A resume from an early checkpoint works. What grows with the iteration?",
        "A checkpoint holds model and optimizer. What does each rank need besides to go on?",
        "Compare who reports an error with whose last log line is about something else.",
    ),
    (
        Question(
            "The timeout was 1,800 s. Would 10 s have been better for finding this?",
            {
                "Yes: the same evidence after ten seconds": (
                    "A timeout is how long you are willing not to know. For "
                    "production take twice the longest honest phase of one rank."
                ),
                "No: a short timeout ends healthy jobs": (
                    "In production it may; while you search, it gives the same "
                    "evidence 180 times as fast."
                ),
                "It makes no difference": "Every attempt costs half an hour on all GPUs.",
            },
            "Yes: the same evidence after ten seconds",
        ),
        Question(
            "After the fix the first step comes at once. What would show that it trains on the"
            " right data?",
            {
                "The checkpoint was read without an error": (
                    "It restores the model, whatever data follows."
                ),
                "The loss of the first step equals the replayed run's": (
                    "With the same model it means the same batch. A loader that begins again is"
                    " fast, too, and trains on the first data once more without a message."
                ),
                "Both runs have the same seed": (
                    "A seed says where a stream begins, and not where a rank stands in it."
                ),
            },
            "The loss of the first step equals the replayed run's",
        ),
        Question(
            "All ranks have equally fast storage. Can the replay still end in a timeout?",
            {
                "No: then all ranks arrive together": (
                    "Only if their work is equal as well, which documents of "
                    "different length and shards with more files make unlikely."
                ),
                "Yes, where the work differs between ranks": (
                    "Documents differ in length, shards in files, hosts in "
                    "free cores. And what is read to be thrown away costs its time on every GPU."
                ),
                "Only over NCCL": "Every backend waits for the slowest rank, gloo as well.",
            },
            "Yes, where the work differs between ranks",
        ),
    ),
)

LLAMA_RECIPES = Story(
    "ifname_not_found",
    Question(
        "The nodes reach each other, and only the ranks of the second one end at once. Why?",
        {
            "The network between them is down": (
                "ping and iperf3 went through it. They chose the address "
                "themselves, though, and the job did not."
            ),
            "MASTER_ADDR is wrong": (
                "Then the second node would not have come so far: it met the store before."
            ),
            "The nodes name their interfaces differently": (
                "A newer board, another driver, another name: a job script "
                "that names one interface does not serve both."
            ),
            "The timeout is too short": (
                "It would only make the first node wait longer for ranks that have ended."
            ),
        },
        "The nodes name their interfaces differently",
    ),
    (
        "What does a rank look for on its own node, before it talks to any other?",
        (
            "What does the job script say that holds for the first node and perhaps not for the"
            " second?"
        ),
        "Read the first error of the rank that did not wait: it names what it looked for.",
    ),
    (
        Question(
            "Each node has a bridge docker0 at 172.17.0.1, and NCCL announces that address. Why"
            " does a rank get “Connection refused”?",
            {
                "A firewall on the other node refuses": (
                    "No packet leaves this node, so no other node can answer."
                ),
                "It connects to its own bridge": (
                    "The address exists on every node, and no process listens on that "
                    "port here. That is why ping of the address works, too."
                ),
                "The other rank has died": "It listens, on an address that leads nobody to it.",
            },
            "It connects to its own bridge",
        ),
        Question(
            "A job script exports WORLD_SIZE=2, as there are two nodes, and starts four processes"
            " on each node itself. What happens?",
            {
                "Two ranks train, six idle": (
                    "A rank that is not below WORLD_SIZE is refused; it does not idle."
                ),
                "Ranks 2 to 7 are refused": (
                    "WORLD_SIZE counts processes, and nodes only where each has one. Delete "
                    "the line: torchrun sets the variable to 8."
                ),
                "NCCL finds the right number itself": (
                    "NCCL is told the number by PyTorch, which takes the variable."
                ),
            },
            "Ranks 2 to 7 are refused",
        ),
        Question(
            "A minimal script calls init_process_group('nccl') and"
            " all_reduce(torch.ones(1).cuda()), with four GPUs on each of two nodes. What is"
            " missing?",
            {
                "torch.cuda.set_device(LOCAL_RANK)": (
                    "Without it all ranks of a node take GPU 0, and the test fails "
                    "with “Duplicate GPU detected”, whatever the network does."
                ),
                "NCCL_SOCKET_IFNAME": (
                    "It is needed only where NCCL takes a wrong interface by itself."
                ),
                "A barrier before the all_reduce": (
                    "A barrier is a collective itself, and fails in the same way."
                ),
            },
            "torch.cuda.set_device(LOCAL_RANK)",
        ),
    ),
)

WENET = Story(
    "cpu_contention",
    Question(
        "What keeps a rank away from the all-reduce in this lab?",
        {
            "The network": (
                "Then every rank would have entered the same collective, and all would wait"
                " inside it."
            ),
            "A slow GPU": "It slows every step a little; it does not stall one until the timeout.",
            "The disks": (
                "Then processes wait for io, which the kernel counts as pressure: there was hardly"
                " any."
            ),
            "CPU time for its workers": (
                "Its workers share a core with too many others, so no batch is ready in time."
            ),
        },
        "CPU time for its workers",
    ),
    (
        "Twice the ranks start twice of what, on the same host?",
        "The ranks that print an error waited. What did the others do meanwhile?",
        "Telemetry: which of core, memory and io did processes queue for?",
    ),
    (
        Question(
            "One rank prints a timeout and three print none. Whose log do you open first?",
            {
                "That of the rank with the timeout": (
                    "It waited. It shows when and in what, and not why."
                ),
                "Those of the ranks without one": (
                    "They were waited for: their stack and last lines show what they did instead."
                    " If every rank had printed a timeout, all had entered the collective."
                ),
                "The launcher's": (
                    "It shows who ended first, which is the rank that gave up waiting."
                ),
            },
            "Those of the ranks without one",
        ),
        Question(
            "16 cores, 8 ranks; a batch is three parts waiting for storage and one part CPU. How"
            " many workers per rank?",
            {
                "One: (workers + 1) x ranks <= cores": (
                    "It is safe: the rule is for workers that compute all the time. "
                    "This one leaves its core idle three quarters of the time."
                ),
                "Four or so, and measure": (
                    "The rule leaves a rank one core beside its own, and such a worker uses a"
                    " quarter of it: four fill it and hide the waiting. The knee is where a step"
                    " stops getting faster."
                ),
                "32, to be sure": (
                    "Beyond the knee only the queue and the memory of prepared batches grow."
                ),
            },
            "Four or so, and measure",
        ),
        Question(
            "A colleague raises the timeout to four hours, and the job passes. Fixed?",
            {
                "Yes, as it trains": "All GPUs idle while the workers queue, in every epoch.",
                "No: the ranks are as late as before": (
                    "And a true hang now goes unnoticed for four hours. Get "
                    "through the night with it, and start fewer workers in the morning."
                ),
                "No: NCCL allows 30 minutes at most": (
                    "The timeout of a process group may be of any length."
                ),
            },
            "No: the ranks are as late as before",
        ),
    ),
)

ALL_TO_ALL = Story(
    "send_recv_mismatch",
    Question(
        "What makes a loop of isend and irecv fail only with many ranks?",
        {
            "A bad cable or switch": (
                "Then a plain all_reduce on the same ranks fails as well; one run shows it."
            ),
            "Too few open files": (
                "A good suspect, as pairs cost files. But then a line says “Too many open files”, "
                "and the job fails at its start."
            ),
            "A send without its receive, or the reverse": (
                "The more ranks, the likelier one has nothing for another; "
                "who sends nothing must not be waited for."
            ),
            "A bug in NCCL": (
                "It is possible, and the last suspect: NCCL does what it is asked, in that order."
            ),
        },
        "A send without its receive, or the reverse",
    ),
    (
        "The code is the same on all ranks. Is the data?",
        "Sort the ranks by the call in which each one waited.",
        "Ask both ends of a pair: what did the one expect, and what did the other do?",
    ),
    (
        Question(
            "All ranks send first and then receive. Over NCCL it works with 1 KiB per peer and"
            " hangs with 64 MiB. Why?",
            {
                "A large message needs a larger timeout": (
                    "It would hang just as long: nobody comes to receive."
                ),
                "A small message fits in NCCL's buffers": (
                    "The send is done once it is in there. A large one needs "
                    "the receiver, which is itself sending. Over gloo it hangs with any size."
                ),
                "Large messages take another network path": (
                    "The path is the same; who has to be there differs."
                ),
            },
            "A small message fits in NCCL's buffers",
        ),
        Question(
            "Why is a longer timeout no fix?",
            {
                "The message is never sent": (
                    "With a timeout of an hour the job hangs for an hour, on all GPUs. Only "
                    "a rank that is late and does come needs more time."
                ),
                "NCCL ignores the timeout of send and recv": (
                    "PyTorch's watchdog applies it to every call."
                ),
                "The job would become slower": "A timeout costs nothing as long as nothing fails.",
            },
            "The message is never sent",
        ),
        Question(
            "A rank dies in the middle of an exchange. Why do the others notice at once over gloo,"
            " and often not over NCCL?",
            {
                "Gloo sends heartbeats": (
                    "It does not; it reads from a TCP connection that the kernel has closed."
                ),
                "The kernel closes the dead rank's TCP connections": (
                    "Gloo reads “Connection closed by peer”. A kernel of NCCL waits for a flag in"
                    " GPU memory that nobody will set: hence the watchdog."
                ),
                "NCCL restarts the rank": (
                    "Nothing restarts a rank but the launcher, and that restarts all."
                ),
            },
            "The kernel closes the dead rank's TCP connections",
        ),
    ),
)

STORIES: Mapping[str, Story] = {
    "recbole": RECBOLE,
    "lightning": LIGHTNING,
    "llama_recipes": LLAMA_RECIPES,
    "wenet": WENET,
    "all_to_all": ALL_TO_ALL,
}


FILE = "answers.json"


@dataclass
class KeptAnswer:
    """What is kept of one question."""

    first: str = ""
    """The first choice."""
    last: str = ""
    asked: float | None = None
    """When the question was first shown, in seconds since the epoch.

    Like `took` and `hints` it is kept only if that is wanted.
    """
    took: float | None = None
    """Seconds from then to the first right choice before the proof was shown."""
    hints: int = 0
    proof: bool = False
    """Whether the proof was shown."""


@dataclass
class _Kept:
    measured: bool = False
    answers: dict[str, KeptAnswer] = field(default_factory=dict)


class Answers:
    """The answers to the questions of one story, in one case."""

    def __init__(self, case: Case, name: str) -> None:
        self.story = story(name)
        self.name = name
        self.case = case
        if case.path is None:
            path = None
        else:
            path = case.path / FILE
        if path:
            self._kept = msgspec.convert(storage.read_json(path, {}, _Kept), _Kept)
        else:
            self._kept = _Kept()

    @property
    def measured(self) -> bool:
        """Whether times and hints are kept."""
        return self._kept.measured

    def measure(self, wanted: bool) -> None:
        """Keep times and hints from now on, or forget those that were kept."""
        self._kept.measured = wanted
        for answer in self._kept.answers.values():
            answer.asked = None
            answer.took = None
            answer.hints = 0
        if wanted:
            self.of().asked = time.time()
        else:
            self.of().asked = None
        self._save()

    def question(self, number: int = 0) -> Question:
        """The guess, for 0, or the question of that number of the quiz."""
        if number:
            return self.story.quiz[number - 1]
        return self.story.guess

    def shuffled(self, number: int = 0) -> list[str]:
        """The choices of a question, always in the same order.

        The order is that of this case folder.
        """
        choices = list(self.question(number).choices)
        random.Random(f"{self.case.path} {self.name} {number}").shuffle(choices)
        return choices

    def of(self, number: int = 0) -> KeptAnswer:
        """What is kept of a question.

        A choice that it does not have counts as none.
        """
        kept = self._kept.answers.setdefault(f"{self.name}/{number}", KeptAnswer())
        known = self.question(number).choices
        kept.first, kept.last = (
            choice if choice in known else "" for choice in (kept.first, kept.last)
        )
        return kept

    def choose(self, choice: str, number: int = 0) -> None:
        """Keep a choice; the first one stays the first."""
        kept = self.of(number)
        kept.first, kept.last = kept.first or choice, choice
        if (
            choice == self.question(number).right
            and kept.asked
            and kept.took is None
            and not kept.proof
        ):
            kept.took = round(time.time() - kept.asked, 1)
        self._save()

    def hinted(self, count: int) -> None:
        """Keep that so many hints were shown, where that is wanted."""
        if self.measured:
            self.of().hints = max(count, self.of().hints)
            self._save()

    def proved(self) -> None:
        """Note that the proof is shown.

        What is chosen from now on is not a guess.
        """
        if self.of().first or self.measured:
            self.of().proof = True
            self._save()

    def fared(self, translate: Translator = ENGLISH) -> list[str]:
        """How the student fared, a sentence for each thing that is known.

        It is empty where nothing was answered.
        """
        guess = self.of()
        said = []
        if guess.first == self.question().right:
            said.append(translate("The first guess was right."))
        elif guess.first:
            said.append(translate("The first guess was wrong."))
        tried = 0
        right = 0
        for number, question in enumerate(self.story.quiz, 1):
            first = self.of(number).first
            if first:
                tried += 1
            if first == question.right:
                right += 1
        if tried:
            quiz_words = translate(
                "{right} of {count} questions were right at the first try.",
                right=right,
                count=len(self.story.quiz),
            )
            said.append(quiz_words)
        if self.measured:
            said += self._measured_words(guess, translate)
        return said

    def _measured_words(self, guess: KeptAnswer, translate: Translator) -> list[str]:
        """The time to the right cause, and the hints on the way."""
        if guess.took is None:
            time_words = translate("The right cause was not chosen before the proof.")
        else:
            age = format_age(guess.took)
            time_words = translate("Time to the right cause: {age}.", age=age)
        count = len(self.story.hints)
        hint_words = translate("Hints used: {used} of {count}.", used=guess.hints, count=count)
        return [time_words, hint_words]

    def _save(self) -> None:
        if self.case.path is not None and not self.case.read_only:
            storage.write(self.case.path / FILE, to_json(self._kept))
