from wf_core.testing import ModelFamilyConformance


class TestConformance(ModelFamilyConformance):
    plugin = "wf_plugin_cosmos"
