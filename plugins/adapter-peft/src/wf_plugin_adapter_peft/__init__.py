"""PEFT adapters. Not implemented yet: the manifest declares it, so that requests are judged."""
