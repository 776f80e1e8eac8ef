from wf_core.testing import FusionConformance


class ExecutionModeConformance(FusionConformance):
    """The kit brings no class of this kind; its checks are the same for every kind that is no model."""

    kind = "execution-mode"


class TestConformance(ExecutionModeConformance):
    plugin = "wf_plugin_execution_numerics"
