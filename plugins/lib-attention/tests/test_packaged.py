"""A backend out of a foreign function: loaded, probed, judged, guarded. The function is made up, the device too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from wf_core.api import Facts, Ineligible
from wf_lib_attention import call as call_module
from wf_lib_attention import probing
from wf_lib_attention.limits import Limits
from wf_lib_attention.packaged import PackageProvider

LIMITS = Limits(
    "mine",
    arch=lambda capability: capability >= (8, 0),
    arch_words="8.0",
    dtypes=(torch.float32, torch.float16),
)


class Mine(PackageProvider):
    distribution, module, function = "torch", "made_up", "attend"
    limits = LIMITS

    def bind(self, function, call):
        return (lambda q, k, v, mask: function(q, k, v)), ("as it is",)


class Lossy(Mine):
    approximate = True


class Compiled(Mine):
    compiles = True


def attend(q, k, v):
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


@pytest.fixture
def made_up(package, hopper):
    """The package, with a function that counts its calls and can be told to raise or to return something else."""

    class Function:
        calls = 0
        act = staticmethod(attend)

        def __call__(self, q, k, v):
            self.calls += 1
            return self.act(q, k, v)

    function = Function()
    package("made_up", attend=function)
    return function


def raising(error):
    def act(q, k, v):
        raise error

    return act


def test_it_serves_and_shows_package_probe_and_what_ran(made_up, inputs, reference, relative_error):
    mine = Mine()
    q, k, v = inputs()
    assert relative_error(mine.attend(q, k, v, None), reference(q, k, v)) <= 1e-5
    shown = mine.evidence()
    assert shown["operators"] == {"made_up.attend": 1}
    assert shown["around"] == ["as it is"]
    assert shown["package"] == f"torch {torch.__version__}"
    assert shown["probe"].startswith("not made")


def test_limits_are_kept_call_by_call(made_up, inputs):
    mine = Mine()
    for _ in range(2):
        with pytest.raises(Ineligible, match="mine takes no mask"):
            mine.attend(*inputs(), torch.ones(33, 17, dtype=torch.bool))
    assert made_up.calls == 0


def test_on_the_cpu_it_says_so(package, inputs):
    package("made_up", attend=attend)
    with pytest.raises(Ineligible, match="mine runs on CUDA devices only, this call is on cpu"):
        Mine().attend(*inputs(), None)


def test_inputs_that_would_be_misread_are_copied(made_up, inputs, reference, relative_error):
    q, k, v = inputs()
    q = q.transpose(2, 3).contiguous().transpose(2, 3)
    made_up.act = lambda q, k, v: attend(q, k, v) if q.is_contiguous() else pytest.fail("strided")
    mine = Mine()
    assert relative_error(mine.attend(q, k, v, None), reference(q, k, v)) <= 1e-5
    assert mine.evidence()["around"] == ["as it is", "inputs made contiguous (the head axis has a stride)"]


# --- errors while it runs


def test_not_supported_sets_the_signature_apart_for_the_session(made_up, inputs):
    mine = Mine()
    made_up.act = raising(RuntimeError("no kernel image is available\nmore of it"))
    for _ in range(2):
        with pytest.raises(
            Ineligible, match=r"mine does not serve such a call \(RuntimeError: no kernel image is av"
        ):
            mine.attend(*inputs(), None)
        mine.end()
        mine.begin(None)
    assert made_up.calls == 1
    made_up.act = attend
    mine.attend(*inputs(lq=34), None)
    assert made_up.calls == 2, "other calls are still served"


def test_it_may_come_late(made_up, inputs):
    mine = Mine()
    mine.attend(*inputs(), None)
    made_up.act = raising(ValueError("unsupported"))
    for _ in range(2):
        with pytest.raises(Ineligible):
            mine.attend(*inputs(), None)
    assert made_up.calls == 2


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("out of memory, not supported"),
        RuntimeError("illegal access"),
        ZeroDivisionError(),
    ],
)
def test_every_other_error_is_the_callers_and_nothing_is_remembered(error, made_up, inputs):
    mine = Mine()
    made_up.act = raising(error)
    with pytest.raises(type(error)):
        mine.attend(*inputs(), None)
    made_up.act = attend
    mine.attend(*inputs(), None)
    assert made_up.calls == 2


def test_values_that_are_not_finite_are_seen_once_and_remembered(made_up, inputs):
    lossy = Lossy()
    made_up.act = lambda q, k, v: torch.full_like(q, torch.nan)
    for _ in range(2):
        with pytest.raises(Ineligible, match="mine gave non-finite values"):
            lossy.attend(*inputs(), None)
        lossy.end()
    assert made_up.calls == 1


def test_only_the_first_call_of_a_run_is_looked_at(made_up, inputs):
    """Each look waits for the device."""
    lossy = Lossy()
    lossy.attend(*inputs(), None)
    made_up.act = lambda q, k, v: torch.full_like(q, torch.inf)
    assert lossy.attend(*inputs(), None).isinf().all()
    lossy.end()
    with pytest.raises(Ineligible, match="non-finite"):
        lossy.attend(*inputs(), None)


def test_an_exact_kernel_is_not_looked_at(made_up, inputs):
    made_up.act = lambda q, k, v: torch.full_like(q, torch.nan)
    assert Mine().attend(*inputs(), None).isnan().all()


def test_what_compiles_is_recorded_only_after_a_call(made_up, inputs, monkeypatch):
    compiled, plain = Compiled(), Mine()
    monkeypatch.setattr(call_module, "is_captured", lambda query: True)
    plain.attend(*inputs(), None)
    with pytest.raises(Ineligible, match="compiles at the first call of a size"):
        compiled.attend(*inputs(), None)
    monkeypatch.setattr(call_module, "is_captured", lambda query: False)
    compiled.attend(*inputs(lq=40), None)
    compiled.end()
    monkeypatch.setattr(call_module, "is_captured", lambda query: True)
    compiled.attend(*inputs(lq=40), None)


# --- when a session opens


def test_a_package_that_does_not_import_is_refused_at_open():
    with pytest.raises(Ineligible, match=r"made_up\.attend cannot be imported"):
        Mine().prepare({})


def test_no_call_is_made_for_a_model_on_the_cpu(made_up):
    mine = Mine()
    mine.prepare({"transformer": torch.nn.Linear(2, 2), "vae": object()})
    assert made_up.calls == 0
    assert mine.evidence()["probe"].startswith("not made: the model was not on a CUDA device")


def test_a_model_on_a_card_is_probed_there(made_up, monkeypatch):
    tried = []
    mine = Mine()
    monkeypatch.setattr(probing, "device_of", lambda model: torch.device("cuda", 1))
    monkeypatch.setattr(mine, "_try", lambda device: tried.append(device) or "well")
    mine.prepare({"transformer": None, "transformer_2": torch.nn.Linear(2, 2)})
    assert tried == [torch.device("cuda", 1)]
    assert mine.evidence()["probe"] == "well"


CPU = torch.device("cpu")


def test_a_probe_says_what_it_found(made_up):
    mine = Mine(64, torch.float16)
    state = torch.get_rng_state()
    said = mine._try(CPU)
    assert said.startswith("a call of [1, 128, 2, 64] in torch.float16 on cpu: relative error ")
    assert float(said.rsplit(" ", 1)[1]) < 2e-3
    assert torch.equal(state, torch.get_rng_state()), "random numbers of the process are left alone"
    assert mine.evidence()["operators"] == {}, "it is no call of a run"


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (raising(RuntimeError("no operator found")), "failed with RuntimeError: no operator found"),
        (
            raising(TypeError("unexpected keyword argument 'fmax'")),
            "failed with TypeError: unexpected keyword",
        ),
        (lambda q, k, v: attend(q, k, v) * torch.nan, "gave non-finite values"),
        (lambda q, k, v: attend(q, k, -v), "is wrong: relative error 2, at most 0.1 is taken"),
        (lambda q, k, v: attend(q * 2, k, v), "is wrong"),
    ],
)
def test_a_probe_that_fails_refuses(act, says, made_up):
    made_up.act = act
    with pytest.raises(Ineligible, match=says):
        Mine(64, torch.float32)._try(CPU)


def test_a_probe_is_judged_by_the_limits_but_for_length(made_up):
    long = Mine(64, torch.float32)
    long.limits = Limits("mine", LIMITS.arch, "8.0", dtypes=(torch.float32,), least_tokens=4096)
    assert long._try(CPU)
    with pytest.raises(Ineligible, match="this call is bfloat16"):
        Mine(64, torch.bfloat16)._try(CPU)


def test_a_probe_out_of_memory_is_no_refusal(made_up):
    made_up.act = raising(torch.OutOfMemoryError("out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        Mine(64, torch.float32)._try(CPU)


@pytest.mark.parametrize(
    ("facts", "head_dim", "dtype"),
    [
        ({"model.head_dim": 96, "model.dtype": "float16"}, 96, torch.float16),
        ({"model.head_dim": None, "model.dtype": "float64"}, 128, torch.bfloat16),
        ({"model.dtype": "load"}, 128, torch.bfloat16),
    ],
)
def test_the_probe_is_of_the_models_kind(facts, head_dim, dtype):
    mine = Mine.for_model(Facts.of(facts, "test"))
    assert (mine._head_dim, mine._dtype) == (head_dim, dtype)
    assert Mine.for_model(None)._head_dim == 128
