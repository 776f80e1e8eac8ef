from wf_core.testing import ModelSourceConformance


class TestConformance(ModelSourceConformance):
    plugin = "wf_plugin_model_tiny_wan"
