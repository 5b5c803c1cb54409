"""Modules that `torch.compile` was called on: trained, saved without a trace of it, resumed, evaluated."""

import pytest
import torch
from tests.unit.models import Line, indexed, quiet_trainer
from torch import nn

from paceline.callbacks import ModelCheckpoint
from paceline.errors import MisconfigurationError


class Logs(Line):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))


@pytest.fixture(autouse=True)
def fresh_dynamo():
    yield
    torch._dynamo.reset()


def counting_backend():
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    return backend, calls


def weights(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_a_compiled_module_trains_to_the_same_weights_and_is_saved_without_a_trace(tmp_path):
    plain = Logs()
    quiet_trainer(tmp_path, max_epochs=2).fit(plain, indexed(4), indexed(2))

    backend, calls = counting_backend()
    module = Logs()
    compiled = torch.compile(module, backend=backend)
    checkpoints = ModelCheckpoint(monitor="val_loss")
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[checkpoints])
    trainer.fit(compiled, indexed(4), indexed(2))

    assert calls, "the steps went through the compiler"
    for name, value in plain.state_dict().items():
        assert torch.equal(module.state_dict()[name], value)
    assert trainer.model is compiled
    assert trainer.lightning_module is module
    assert "train_loss" in trainer.callback_metrics
    saved = torch.load(checkpoints.best_model_path)["state_dict"]
    assert sorted(saved) == ["layer.bias", "layer.weight"]
    Logs.load_from_checkpoint(checkpoints.best_model_path)


def test_a_compiled_fit_goes_on_where_it_or_a_plain_one_stopped(tmp_path):
    whole = Logs()
    quiet_trainer(tmp_path, max_epochs=3).fit(whole, indexed(4), indexed(2))
    for first_is_compiled, second_is_compiled in ((True, True), (True, False), (False, True)):
        path = str(tmp_path / f"{first_is_compiled}{second_is_compiled}.ckpt")
        first, second = Logs(), Logs()
        trainer = quiet_trainer(tmp_path, max_epochs=1)
        trainer.fit(torch.compile(first, backend="eager") if first_is_compiled else first, indexed(4), indexed(2))
        trainer.save_checkpoint(path)
        trainer = quiet_trainer(tmp_path, max_epochs=3)
        trainer.fit(
            torch.compile(second, backend="eager") if second_is_compiled else second,
            indexed(4),
            indexed(2),
            ckpt_path=path,
        )
        assert all(torch.equal(p, q) for p, q in zip(second.parameters(), whole.parameters(), strict=True))


def test_a_compiled_module_is_validated_tested_and_predicts(tmp_path):
    compiled = torch.compile(Logs(), backend="eager")
    compiled._orig_mod.test_step = lambda batch, batch_idx: compiled._orig_mod.log("test", 3.0)
    trainer = quiet_trainer(tmp_path)
    plain = quiet_trainer(tmp_path).validate(Logs(), indexed(3), verbose=False)
    assert trainer.validate(compiled, indexed(3), verbose=False) == plain
    assert trainer.test(compiled, indexed(3), verbose=False) == [{"test": 3.0}]
    assert [p.item() for p in trainer.predict(compiled, indexed(2))] == [0.0, 0.5]


class Inner(Logs):
    """Only a part of it is compiled, as its own code wants it."""

    def configure_model(self):
        if not hasattr(self.layer, "_orig_mod"):
            self.layer = torch.compile(self.layer, backend="eager")


def test_a_module_with_a_compiled_part_is_saved_and_loaded_without_a_trace(tmp_path):
    whole, first, second = Logs(), Inner(), Inner()
    quiet_trainer(tmp_path, max_epochs=2).fit(whole, indexed(4), indexed(2))
    path = str(tmp_path / "one.ckpt")
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(first, indexed(4), indexed(2))
    trainer.save_checkpoint(path)
    assert sorted(torch.load(path)["state_dict"]) == ["layer.bias", "layer.weight"]
    quiet_trainer(tmp_path, max_epochs=2).fit(second, indexed(4), indexed(2), ckpt_path=path)
    for loaded in (Inner.load_from_checkpoint(path), Logs.load_from_checkpoint(path)):
        assert all(torch.equal(p, q) for p, q in zip(loaded.parameters(), first.parameters(), strict=True))
    assert all(torch.equal(p, q) for p, q in zip(second.parameters(), whole.parameters(), strict=True))


def test_what_only_looks_like_a_module_is_refused_compiled_or_not(tmp_path):
    for wrong in (nn.Linear(1, 1), torch.compile(nn.Linear(1, 1), backend="eager")):
        with pytest.raises(TypeError, match="must be a paceline.Module, not a Linear"):
            quiet_trainer(tmp_path, max_epochs=1).fit(wrong, indexed(1))


def test_several_workers_refuse_a_module_that_is_compiled_as_a_whole(tmp_path):
    with pytest.raises(MisconfigurationError, match="runs on one device, not on 2. Call `torch.compile` on its parts"):
        quiet_trainer(tmp_path, devices=2, max_epochs=1).fit(torch.compile(Logs(), backend="eager"), indexed(1))
