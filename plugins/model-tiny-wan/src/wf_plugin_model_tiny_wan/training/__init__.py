"""Making the checkpoint from nothing: ``python -m wf_plugin_model_tiny_wan.training.build --out DIR``."""
