"""A patch of a class is seen, by whomever; what torch itself puts on its classes is none."""

from __future__ import annotations

import torch
from torch import nn

from wf_core.isolation.class_functions import class_diff, class_functions


def test_a_patched_added_and_removed_function_are_named():
    class Block(nn.Module):
        def forward(self, x):
            return x

        def gone(self):
            return None

    before = class_functions([Block])
    Block.forward = lambda self, x: x * 2
    Block.added = lambda self: None
    del Block.gone
    (line,) = class_diff(before, class_functions([Block]))
    assert line.endswith("Block: added, forward, gone patched")


def test_a_patched_property_of_a_base_class_is_seen():
    class Base(nn.Module):
        @property
        def width(self):
            return 1

    class Child(Base):
        pass

    before = class_functions([Child])
    Base.width = property(lambda self: 2)
    (line,) = class_diff(before, class_functions([Child]))
    assert "Base: width patched" in line


def test_what_torch_puts_on_its_own_classes_is_no_patch():
    class Block(nn.Module):
        def forward(self, x):
            return x

    before = class_functions([Block])
    Block.forward = torch.nn.Linear.forward
    assert class_diff(before, class_functions([Block])) == []
