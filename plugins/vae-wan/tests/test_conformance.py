from wf_core.testing import VaeDecoderConformance


class TestConformance(VaeDecoderConformance):
    plugin = "wf_plugin_vae_wan"
