from wf_core.testing import FeatureCacheConformance


class TestConformance(FeatureCacheConformance):
    plugin = "wf_plugin_cache_magcache"
