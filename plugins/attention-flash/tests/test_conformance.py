from wf_core.testing import AttentionProviderConformance


class TestConformance(AttentionProviderConformance):
    plugin = "wf_plugin_attention_flash"
