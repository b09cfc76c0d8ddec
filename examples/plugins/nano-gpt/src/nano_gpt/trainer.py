"""The loop: steps, and a state that can be saved and gone on from exactly."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from nano_gpt.model import GPT, VOCABULARY
from nano_gpt.settings import Settings


class Trainer:
    """One rank of ``ranks``; a step averages the gradients of all. Batches depend on step and rank alone."""

    def __init__(self, settings: Settings, rank: int = 0, ranks: int = 1, device: str = "cpu") -> None:
        self.settings, self.rank, self.ranks, self.device = settings, rank, ranks, device
        torch.manual_seed(settings.seed)
        self.model = GPT(settings).to(device)
        self.step = 0
        self.text = (
            torch.frombuffer(bytearray(Path(settings.data).read_bytes()), dtype=torch.uint8) if settings.data else None
        )
        if self.text is not None and len(self.text) <= settings.context:
            raise ValueError(
                f"{settings.data} has {len(self.text)} bytes; more than context {settings.context} are needed"
            )

    def prepare(self) -> None:
        """Make the optimizer, of the parameters that the model has by now."""
        settings = self.settings
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)

    def batch(self) -> Tensor:
        """Tokens [batch, context + 1] of the next step."""
        settings = self.settings
        draw = torch.Generator().manual_seed((settings.seed * 1_000_003 + self.step) * 4096 + self.rank)
        if self.text is None:
            starts = torch.randint(VOCABULARY, (settings.batch_size, 1), generator=draw)
            return (starts + torch.arange(settings.context + 1)) % VOCABULARY
        starts = torch.randint(len(self.text) - settings.context, (settings.batch_size, 1), generator=draw)
        return self.text[starts + torch.arange(settings.context + 1)].long()

    def advance(self) -> tuple[float, float]:
        """Take one step; gives the loss, averaged over ranks, and the norm of the gradient."""
        tokens = self.batch().to(self.device)
        logits = self.model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        mean = loss.detach()
        if self.ranks > 1:
            for value in [mean, *(each.grad for each in self.model.parameters() if each.grad is not None)]:
                dist.all_reduce(value)
                value /= self.ranks
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.step += 1
        return mean.item(), norm.item()

    def save(self, path: Path) -> None:
        """Write the whole state; a file of that name is complete or not there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        state = {"step": self.step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, new)
        new.replace(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
