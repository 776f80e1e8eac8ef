"""Facts: the same from a live pipeline and from its directory, with sources, and without torch or weights."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wf_core.errors import BadInput
from wf_core.facts import Fact, Facts
from wf_core.facts.device import device_facts, visible_devices, with_machine
from wf_core.facts.model import facts_from_directory, facts_from_pipeline, model_id
from wf_core.facts.process import process_facts
from wf_core.facts.run import grid_problems, run_facts
from wf_core.manifests.manifest import Manifest

from .conftest import FAMILY_MANIFEST, Site, write_safetensors


@pytest.fixture
def manifests(tmp_path: Path) -> tuple[Manifest, ...]:
    path = tmp_path / "family" / "wf-plugin.toml"
    path.parent.mkdir()
    path.write_text(FAMILY_MANIFEST)
    return (Manifest.load(path),)


# --- the container -----------------------------------------------------------------------------------------------


def test_facts_are_frozen_and_say_where_they_come_from() -> None:
    facts = (
        Facts.of({"b": [1, 2], "a": None}, "here")
        .with_({"c.d": 3}, source="there")
        .with_(e__f=4, source="kw")
    )
    assert list(facts) == ["a", "b", "c.d", "e.f"]
    assert facts.get("b") == (1, 2)
    assert facts["b"] == Fact((1, 2), "here")
    assert facts.source("e.f") == "kw"
    assert "a" in facts
    assert facts.get("a", 5) is None
    assert facts.get("zz", 5) == 5
    assert facts.to_json()["b"] == {"value": [1, 2], "source": "here"}
    assert facts.values_of("c.") == {"d": 3}


def test_later_facts_win() -> None:
    old, new = Facts.of({"a": 1, "b": 1}, "old"), Facts.of({"b": 2}, "new")
    assert old.merged(new).get("b") == 2
    assert old.get("b") == 1
    assert old.with_(new) == old.merged(new)
    assert hash(old.with_(new)) == hash(old.merged(new))


# --- a directory -------------------------------------------------------------------------------------------------


def test_a_checkpoint_directory(toy_checkpoint: Path, manifests: tuple[Manifest, ...]) -> None:
    facts = facts_from_directory(toy_checkpoint, manifests)
    values = {name: fact.value for name, fact in facts.items()}
    assert values == {
        "pipeline.class": "ToyPipeline",
        "model.here": True,
        "model.directory": str(toy_checkpoint),
        "model.id": "toy-1b",
        "model.family": "toy",
        "model.variant": "toy",
        "model.classes": ("ToyScheduler", "ToyTransformer", "ToyVae"),
        "model.denoisers": ("ToyTransformer",),
        "model.scheduler": "ToyScheduler",
        "model.components": ("scheduler", "transformer", "vae"),
        "model.experts": ("transformer",),
        "model.has_second_expert": False,
        "model.boundary_ratio": None,
        "model.hooked": "",
        "model.training": False,
        "model.heads": 12,
        "model.head_dim": 128,
        "model.layers": 30,
        "model.blocks": 30,
        "model.channels_in": 16,
        "model.patch_size": (1, 2, 2),
        "model.pixel_multiple": (16, 16),
        "model.lossy_attention": True,
        "model.dtype": "bfloat16",
        "model.parameters_bytes": 8256,
        "model.modules_present": ("attn1", "blocks", "norm", "to_q"),
        "vae.class": "ToyVae",
        "vae.dtype": "float32",
        "vae.z_dim": 16,
        "vae.spatial_factor": 8,
        "vae.temporal_factor": 4,
    }
    assert facts.source("model.heads").endswith("transformer/config.json")
    assert facts.source("vae.spatial_factor") == "manifest of toy"


def test_two_experts_and_the_boundary(toy_checkpoint: Path, manifests: tuple[Manifest, ...]) -> None:
    index = json.loads((toy_checkpoint / "model_index.json").read_text())
    index |= {"transformer_2": ["diffusers", "ToyTransformer"], "boundary_ratio": 0.875}
    (toy_checkpoint / "model_index.json").write_text(json.dumps(index))
    (toy_checkpoint / "transformer").rename(toy_checkpoint / "transformer_2")
    index["transformer"] = [None, None]
    (toy_checkpoint / "model_index.json").write_text(json.dumps(index))
    facts = facts_from_directory(toy_checkpoint, manifests)
    assert facts.get("model.experts") == ("transformer_2",)
    assert facts.get("model.has_second_expert") is True
    assert facts.get("model.boundary_ratio") == 0.875
    assert facts.get("model.heads") == 12


def test_a_single_transformer_directory(toy_checkpoint: Path, manifests: tuple[Manifest, ...]) -> None:
    facts = facts_from_directory(toy_checkpoint / "transformer", manifests)
    assert facts.get("model.family") == "toy"
    assert facts.get("pipeline.class") == ""
    assert facts.get("model.heads") == 12


def test_a_family_that_nobody_knows_leaves_the_family_unknown(toy_checkpoint: Path) -> None:
    facts = facts_from_directory(toy_checkpoint, ())
    assert "model.family" not in facts
    assert facts.get("model.experts") == ()


def test_sharded_weights_are_read_from_the_index(
    toy_checkpoint: Path, manifests: tuple[Manifest, ...]
) -> None:
    folder = toy_checkpoint / "transformer"
    (folder / "diffusion_pytorch_model.safetensors").unlink()
    names = ["m-1-of-2.safetensors", "m-2-of-2.safetensors"]
    for number, name in enumerate(names):
        write_safetensors(folder / name, {f"blocks.{number}.w": ("F16", 10)})
    index = {"weight_map": {f"blocks.{number}.w": name for number, name in enumerate(names)}}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    facts = facts_from_directory(toy_checkpoint, manifests)
    assert facts.get("model.parameters_bytes") == 20
    assert facts.get("model.dtype") == "float16"
    (folder / names[1]).unlink()
    with pytest.raises(BadInput, match=r"m-2-of-2\.safetensors: cannot be read"):
        facts_from_directory(toy_checkpoint, manifests)


def damage(root: Path, how: str) -> None:
    weights = root / "transformer" / "diffusion_pytorch_model.safetensors"
    match how:
        case "cut":
            weights.write_bytes(weights.read_bytes()[:-1])
        case "empty":
            weights.write_bytes(b"")
        case "long":
            weights.write_bytes(b"\xff" * 64)
        case "garbage":
            weights.write_bytes((5).to_bytes(8, "little") + b"{{{{{")
        case "shape":
            weights.write_bytes((12).to_bytes(8, "little") + b'{"a": [1,2]}')
        case "gone":
            weights.unlink()
        case "config":
            (root / "transformer" / "config.json").write_text("{")
        case "no config":
            (root / "transformer" / "config.json").unlink()
        case "no folder":
            (root / "vae" / "config.json").unlink()
            (root / "vae" / "diffusion_pytorch_model.safetensors").unlink()
            (root / "vae").rmdir()
        case "no index":
            (root / "model_index.json").unlink()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", "describes 8256 bytes of data, the file holds 8255"),
        ("empty", "header is longer than the file"),
        ("long", "header is longer than the file"),
        ("garbage", "not JSON"),
        ("shape", "does not describe tensors"),
        ("gone", "diffusion_pytorch_model.safetensors: the file is missing"),
        ("config", "config.json: not valid JSON"),
        ("no config", "config.json: the file is missing"),
        ("no folder", "the folder is missing"),
        ("no index", "no model_index.json"),
    ],
)
def test_a_damaged_directory_is_one_line_naming_the_file(
    toy_checkpoint: Path, manifests: tuple[Manifest, ...], how: str, words: str
) -> None:
    damage(toy_checkpoint, how)
    with pytest.raises(BadInput) as caught:
        facts_from_directory(toy_checkpoint, manifests)
    assert words in str(caught.value)
    assert str(toy_checkpoint) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such directory"):
        facts_from_directory(tmp_path / "gone", ())


def test_28_gigabytes_of_weights_are_not_read(toy_checkpoint: Path, manifests: tuple[Manifest, ...]) -> None:
    import time

    size = 28 * 2**30
    path = toy_checkpoint / "transformer" / "diffusion_pytorch_model.safetensors"
    write_safetensors(path, {"blocks.0.w": ("BF16", size)})
    started = time.perf_counter()
    facts = facts_from_directory(toy_checkpoint, manifests)
    assert facts.get("model.parameters_bytes") == size
    assert time.perf_counter() - started < 1


# --- a live pipeline ---------------------------------------------------------------------------------------------


class Parameter:
    def __init__(self, dtype: str, count: int, size: int) -> None:
        self.dtype, self._count, self._size = dtype, count, size
        self.device, self.requires_grad = SimpleNamespace(type="cpu"), False

    def numel(self) -> int:
        return self._count

    def element_size(self) -> int:
        return self._size


class Module:
    """Looks like a module of a deep-learning library, without one."""

    def __init__(self, config: dict[str, Any], parameters: dict[str, Parameter] | None = None) -> None:
        self.config = config
        self.inner = SimpleNamespace()
        self._parameters = parameters or {}
        self.training = False

    def named_parameters(self) -> Any:
        return iter(self._parameters.items())

    def named_modules(self) -> Any:
        return iter([("", self), ("blocks.0", self.inner)])


class ToyTransformer(Module):
    pass


class ToyVae(Module):
    pass


class ToyPipeline:
    def __init__(self, **components: Any) -> None:
        self.components = components
        self.config = {"boundary_ratio": None, "_name_or_path": "hub/Toy-1B-Diffusers"}


def live(root: Path) -> ToyPipeline:
    parameters = {
        "blocks.0.attn1.to_q.weight": Parameter("torch.bfloat16", 2048, 2),
        "blocks.0.norm.weight": Parameter("torch.float32", 16, 4),
        "blocks.1.attn1.to_q.weight": Parameter("torch.bfloat16", 2048, 2),
    }
    transformer = ToyTransformer(json.loads((root / "transformer" / "config.json").read_text()), parameters)
    vae = ToyVae({"z_dim": 16}, {"decoder.conv.weight": Parameter("torch.float32", 32, 4)})
    scheduler = type("ToyScheduler", (), {"config": {}})()
    return ToyPipeline(scheduler=scheduler, transformer=transformer, transformer_2=None, vae=vae)


def test_a_live_pipeline_gives_the_same_facts_as_its_directory(
    toy_checkpoint: Path, manifests: tuple[Manifest, ...]
) -> None:
    pipe = live(toy_checkpoint)
    pipe.config["_name_or_path"] = str(toy_checkpoint)
    ours = facts_from_pipeline(pipe, manifests)
    theirs = facts_from_directory(toy_checkpoint, manifests)
    only_live = {"device.type": "cpu"}
    assert {name: ours.get(name) for name in ours} == {
        **{name: theirs.get(name) for name in theirs},
        **only_live,
    }


def test_where_the_parameters_lie_is_the_device_whatever_else_the_machine_has(
    toy_checkpoint: Path, manifests: tuple[Manifest, ...]
) -> None:
    gpu = Facts.of({"device.type": "cuda", "device.count": 1, "device.sm": 90, "python": "3"}, "NVML")
    pipe = live(toy_checkpoint)
    facts = with_machine(facts_from_pipeline(pipe, manifests), gpu)
    assert facts["device.type"] == Fact("cpu", "parameters")
    assert facts["device.sm"] == Fact(None, "parameters lie on cpu")
    assert (facts.get("device.count"), facts.get("python")) == (1, "3")
    next(iter(pipe.components["transformer"]._parameters.values())).device.type = "cuda"
    assert with_machine(facts_from_pipeline(pipe, manifests), gpu).get("device.sm") == 90
    on_disk = with_machine(facts_from_directory(toy_checkpoint, manifests), gpu)
    assert on_disk["device.type"] == Fact("cuda", "NVML")


def test_a_model_is_training_in_train_mode_with_gradients(
    toy_checkpoint: Path, manifests: tuple[Manifest, ...]
) -> None:
    def training(mode: bool, gradients: bool, component: str = "transformer") -> Any:
        pipe = live(toy_checkpoint)
        module = pipe.components[component]
        module.training = mode
        list(module._parameters.values())[-1].requires_grad = gradients
        return facts_from_pipeline(pipe, manifests).get("model.training")

    assert training(True, True) is True
    assert training(True, False) is training(False, True) is False
    assert training(True, True, "vae") is False


def test_a_bare_transformer(toy_checkpoint: Path, manifests: tuple[Manifest, ...]) -> None:
    facts = facts_from_pipeline(live(toy_checkpoint).components["transformer"], manifests)
    assert facts.get("model.family") == "toy"
    assert facts.get("model.experts") == ("transformer",)
    assert facts.get("model.id") == ""


def test_what_already_hooks_the_base_is_named(toy_checkpoint: Path, manifests: tuple[Manifest, ...]) -> None:
    def hooked(pipe: ToyPipeline) -> str:
        return str(facts_from_pipeline(pipe, manifests).get("model.hooked"))

    pipe = live(toy_checkpoint)
    pipe.components["transformer"].inner._diffusers_hook = SimpleNamespace(hooks={})
    assert hooked(pipe) == ""
    pipe.components["transformer"].inner._diffusers_hook = SimpleNamespace(hooks={"group_offloading": 1})
    assert hooked(pipe) == "transformer.blocks.0 carries diffusers hooks (group_offloading)"
    pipe = live(toy_checkpoint)
    pipe.components["vae"]._hf_hook = object()
    assert hooked(pipe) == "vae carries an accelerate hook"
    pipe = live(toy_checkpoint)
    pipe.components["transformer"].hf_device_map = {"": 0}
    assert hooked(pipe) == "transformer has an hf_device_map"


def test_real_wan_modules() -> None:
    diffusers = pytest.importorskip("diffusers")
    manifest = Path(__file__).parents[2] / "wf_plugin_wan/src/wf_plugin_wan/wf-plugin.toml"
    sizes = {
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "num_layers": 1,
        "text_dim": 16,
        "ffn_dim": 32,
    }
    model = diffusers.WanTransformer3DModel(**sizes, rope_max_seq_len=32)
    facts = facts_from_pipeline(model, (Manifest.load(manifest),))
    assert facts.get("model.family") == "wan"
    assert (facts.get("model.heads"), facts.get("model.head_dim")) == (2, 12)
    assert facts.get("model.dtype") == "float32"
    assert facts.get("model.parameters_bytes") == sum(p.numel() * 4 for p in model.parameters())


def test_a_real_accelerate_hook_is_seen() -> None:
    torch = pytest.importorskip("torch")
    hooks = pytest.importorskip("accelerate.hooks")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.config = {}
    assert facts_from_pipeline(model, ()).get("model.hooked") == ""
    hooks.add_hook_to_module(model[0], hooks.ModelHook())
    assert facts_from_pipeline(model, ()).get("model.hooked") == "transformer.0 carries an accelerate hook"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "wan2.1-t2v-1.3b"),
        ("/hub/models--Wan-AI--Wan2.2-TI2V-5B-Diffusers/snapshots/0fad780a", "wan2.2-ti2v-5b"),
        ("./my-own/", "my-own"),
        ("", ""),
    ],
)
def test_the_id_of_a_model(name: str, expected: str) -> None:
    assert model_id(name, ()) == expected


def test_the_directory_of_a_registered_model_has_its_name(site: Site) -> None:
    text = 'schema = 1\nname = "m"\napi = 1\nkind = "model-source"\n'
    text += '[[model]]\nname = "Tiny"\nfamily = "toy"\npath = "data"\n'
    folder = site.module("toyplug_m", "", text)
    (folder / "data").mkdir()
    manifest = Manifest.load(folder / "wf-plugin.toml")
    assert model_id(str(folder / "data"), (manifest,)) == "Tiny"
    assert model_id(str(folder), (manifest,)) == "toyplug_m"


# --- device, process, run ----------------------------------------------------------------------------------------


class Nvml:
    """NVML as ``pynvml`` offers it, with two devices."""

    class NVMLError(Exception):
        pass

    def __init__(self, driver: bool = True) -> None:
        self.driver = driver

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return (9, 0) if handle == 0 else (12, 0)

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12080

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"Card {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=80 * 2**30)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    fake = Nvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    monkeypatch.setattr("wf_core.facts.device.installed_version", lambda name: "2.13.0")
    return fake


def test_a_device_from_nvml(nvml: Nvml) -> None:
    facts = device_facts({})
    assert facts.values_of("device.") == {
        "type": "cuda",
        "count": 2,
        "name": "Card 0",
        "sm": 90,
        "memory_bytes": 80 * 2**30,
        "driver": "570.1",
        "cuda": "12.8",
    }
    assert device_facts({"CUDA_VISIBLE_DEVICES": "1"}).get("device.sm") == 120
    assert device_facts({"CUDA_VISIBLE_DEVICES": ""}).get("device.type") == "cpu"


def test_no_driver_is_no_device_and_no_error(nvml: Nvml) -> None:
    nvml.driver = False
    facts = device_facts({})
    assert facts.get("device.type") == "cpu"
    assert facts.source("device.type") == "NVML: Driver Not Loaded"
    assert facts.get("device.sm", 0) is None


def test_a_cpu_build_of_torch_has_no_device(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wf_core.facts.device.installed_version", lambda name: "2.13.0+cpu")
    assert device_facts({}).get("device.type") == "cpu"


def test_visible_devices() -> None:
    assert visible_devices(4, {}) == (0, 1, 2, 3)
    assert visible_devices(4, {"CUDA_VISIBLE_DEVICES": "3,1"}) == (3, 1)
    assert visible_devices(4, {"CUDA_VISIBLE_DEVICES": "2,9,1"}) == (2,)
    assert visible_devices(4, {"CUDA_VISIBLE_DEVICES": "-1"}) == ()


def test_the_process() -> None:
    facts = process_facts(["no-such-package"], {"WORLD_SIZE": "4"})
    assert facts.get("process.world") == 4
    assert facts.get("package.no-such-package", 1) is None
    assert "package.no-such-package" in facts
    assert facts.get("package.safetensors")[0].isdigit()
    assert facts.get("process.cpus") >= 1
    assert process_facts(environ={}).get("process.world") == 1


def test_run_facts_are_checked() -> None:
    facts = run_facts({"height": "480", "guidance_scale": 5, "fps": None})
    assert facts.values_of("run.") == {"height": 480, "guidance_scale": 5.0}
    with pytest.raises(BadInput, match=r"run\.height: expects a whole number"):
        run_facts({"height": 48.5})
    with pytest.raises(BadInput, match=r"run\.num_frames: 0 is out of range"):
        run_facts({"num_frames": 0})
    with pytest.raises(BadInput, match="did you mean num_frames"):
        run_facts({"num_frame": 5})


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ({"height": 480, "width": 832, "num_frames": 81}, []),
        ({"height": 481}, ["height 481 is not a multiple of 16; nearest: 480 or 496"]),
        ({"width": 8}, ["width 8 is not a multiple of 16; nearest: 16"]),
        (
            {"num_frames": 80},
            ["num_frames 80 is impossible, it must be a multiple of 4 plus 1; nearest: 77 or 81"],
        ),
        ({"num_frames": 1}, []),
    ],
)
def test_sizes_that_the_model_cannot_make(run: dict[str, int], expected: list[str]) -> None:
    model = Facts.of({"model.pixel_multiple": (16, 16), "vae.temporal_factor": 4}, "test")
    assert [sentence for _, sentence, _ in grid_problems(model.merged(run_facts(run)))] == expected
    assert grid_problems(run_facts(run)) == ()
