from wf_core.testing import VaeDecoderConformance


class TestConformance(VaeDecoderConformance):
    plugin = "wf_plugin_vae_tiling"
    families = ("wf_plugin_cosmos",)
