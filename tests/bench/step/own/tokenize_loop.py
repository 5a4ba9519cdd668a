"""A text classifier in plain DDP that tokenizes its sentences in the training loop."""

import random
import re

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS = [f"word{number}" for number in range(5000)]
PIECES = re.compile(r"[a-z]+|\d")


class BagOfWords(nn.Module):  # type: ignore[misc]
    """Embeddings of a sentence, and what they say together."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(4096, 128)
        self.head = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        scores: torch.Tensor = self.head(self.embedding(tokens))
        return scores


def read_corpus(count: int) -> list[str]:
    """Sentences as a file would have them."""
    pick = random.Random(7)
    return [" ".join(pick.choices(WORDS, k=400)) for _ in range(count)]


def to_tokens(sentence: str) -> list[int]:
    """Split a sentence, and number its pieces."""
    tokens = []
    for piece in PIECES.findall(sentence.lower()):
        number = 0
        for letter in piece:
            number = (number * 131 + ord(letter)) % 4096
        tokens.append(number)
    return tokens[:800]


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(BagOfWords())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    corpus = read_corpus(2000)[rank::world]
    for epoch in range(1000):
        for start in range(0, len(corpus) - 32, 32):
            batch = corpus[start : start + 32]
            tokens = torch.tensor([to_tokens(sentence) for sentence in batch])  # planted
            labels = torch.tensor([len(sentence) % 4 for sentence in batch])
            loss = nn.functional.cross_entropy(model(tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
