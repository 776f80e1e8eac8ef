"""What the adapters of diffusers families share: spans, roots, linear layers, VAEs, schedules, tested sources."""
