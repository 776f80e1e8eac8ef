from wf_core.testing import ExecutionModeConformance


class TestConformance(ExecutionModeConformance):
    plugin = "wf_plugin_execution_numerics"
