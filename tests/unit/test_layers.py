"""Who may import whom, what is public, and what an import costs."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "platform" / "paceline"

# From the lowest up: a module imports from its own layer and from those below it.
LAYERS = (
    (
        "hyperparameters",
        "metrics",
        "values",
        "hooks",
        "progress",
        "config",
        "checks",
        "old_arguments",
        "durations",
        "evaluation_mode",
        "seed",
        "errors",
    ),
    ("strategies",),
    ("data", "checkpoint", "loggers"),
    ("callbacks", "profilers", "module", "datamodule"),
    ("loops", "interop"),
    ("launch",),
    ("trainer", "run_view", "data_view", "loop_view", "plugins", "recording"),
    ("cli", "tuners"),
)
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}
# Lazily resolved, so importing it brings nothing else.
ROOT_MODULE = "__init__"


def sources():
    return sorted(
        Path(folder, file).relative_to(PACKAGE)
        for folder, _, files in os.walk(PACKAGE, followlinks=True)
        for file in files
        if file.endswith(".py")
    )


def imported_parts(tree):
    """The names below `paceline` that a file imports, wherever in it, but for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "paceline":
            parts = node.module.split(".")[1:]
            for name in [parts[0]] if parts else [alias.name for alias in node.names]:
                yield name, node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("paceline."):
                    yield alias.name.split(".")[1], node.lineno
        else:
            yield from imported_parts(node)


@pytest.mark.parametrize("source", sources(), ids=str)
def test_a_file_imports_only_from_its_layer_and_those_below(source):
    own = source.parts[0].removesuffix(".py")
    if own == ROOT_MODULE:
        assert not list(imported_parts(ast.parse((PACKAGE / source).read_text())))
        return
    assert own in LEVEL, f"{own} is in no layer"
    public = {"Callback": "callbacks", "DataModule": "datamodule", "Module": "module", "Trainer": "trainer"}
    too_high = [
        f"{source}:{line} imports {name}"
        for name, line in imported_parts(ast.parse((PACKAGE / source).read_text()))
        if LEVEL[public.get(name, {"seed_everything": "seed"}.get(name, name))] > LEVEL[own]
    ]
    assert not too_high


def test_imports_are_absolute():
    relative = [
        f"{source}:{node.lineno}"
        for source in sources()
        for node in ast.walk(ast.parse((PACKAGE / source).read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative


def test_the_folder_platform_does_not_shadow_the_standard_library():
    assert not (ROOT / "platform" / "__init__.py").exists()


@pytest.mark.parametrize("name", ["strategies", "tuners"])
def test_a_root_folder_is_linked_into_the_package(name):
    assert (PACKAGE / name).is_symlink()
    assert (PACKAGE / name).resolve() == ROOT / name
    assert not (ROOT / name).is_symlink()


@pytest.mark.parametrize(
    "module", [".".join(("paceline", *s.parts[:-1])) for s in sources() if s.name == "__init__.py"]
)
def test_every_public_name_exists(module):
    package = importlib.import_module(module)
    for name in getattr(package, "__all__", []):
        assert getattr(package, name) is not None


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    import paceline

    with pytest.raises(AttributeError, match="no attribute 'Traner'"):
        _ = paceline.Traner


def loaded_after(code, *names):
    """Which of some modules a fresh interpreter has imported after it ran `code`."""
    code += f"\nimport sys\nprint('loaded', sorted(set({names!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.rsplit("loaded ", 1)[1])


def test_importing_paceline_imports_nothing_heavy():
    assert loaded_after("import paceline", "torch", "ray", "mlflow", "numpy", "pandas") == []


def test_a_fit_on_one_device_imports_neither_ray_nor_mlflow(tmp_path):
    code = f"""
import torch
from paceline import Module, Trainer

class Tiny(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = Trainer(devices=1, logger=False, default_root_dir={str(tmp_path)!r}, max_epochs=1)
trainer.fit(Tiny(), [torch.ones(1, 1)])
assert trainer.global_step == 1
"""
    assert loaded_after(code, "ray", "mlflow", "pandas", "lightning", "pytorch_lightning") == []
