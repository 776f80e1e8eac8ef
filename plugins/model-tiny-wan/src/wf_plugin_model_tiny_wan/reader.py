"""The digit reader: a small convolutional classifier of 32x32 grey crops."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

READER_FILE = Path(__file__).with_name("reader.safetensors")


class DigitReader(nn.Module):
    """Classify grey crops ``[N, 1, 32, 32]`` in [0, 1] into logits ``[N, 10]``; 56,266 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.3), nn.Linear(48 * 16, 48), nn.ReLU(), nn.Linear(48, 10)
        )

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(crops))


def load_reader(path: Path | None = None, device: torch.device | str = "cpu") -> DigitReader:
    """Load a trained reader, by default the one in this package, in evaluation mode."""
    reader = DigitReader()
    reader.load_state_dict(load_file(path or READER_FILE))
    return reader.to(device).eval().requires_grad_(False)
