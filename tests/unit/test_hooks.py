"""The order in which hooks are called, read off real runs."""

import pytest
import torch
from tests.unit.models import indexed, quiet_trainer

from paceline import Callback, DataModule, Module
from paceline.hooks import ANYTIME, ORDER, overridden

STEP = (
    "module.on_before_batch_transfer",
    "module.transfer_batch_to_device",
    "module.on_after_batch_transfer",
    "callback.on_train_batch_start",
    "module.on_train_batch_start",
    "module.training_step",
    "callback.on_before_zero_grad",
    "module.on_before_zero_grad",
    "optimizer.zero_grad",
    "callback.on_before_backward",
    "module.on_before_backward",
    "callback.on_after_backward",
    "module.on_after_backward",
    "callback.on_before_optimizer_step",
    "module.on_before_optimizer_step",
    "module.configure_gradient_clipping",
    "optimizer.step",
    "callback.on_train_batch_end",
    "module.on_train_batch_end",
)


def evaluation(stage, batches):
    def both(hook):
        return [f"callback.{hook}", f"module.{hook}"]

    batch = [
        "module.on_before_batch_transfer",
        "module.transfer_batch_to_device",
        "module.on_after_batch_transfer",
        *both(f"on_{stage}_batch_start"),
        f"module.{stage}_step",
        *both(f"on_{stage}_batch_end"),
    ]
    return [
        *both(f"on_{stage}_start"),
        *both(f"on_{stage}_epoch_start"),
        *(batch * batches),
        *both(f"on_{stage}_epoch_end"),
        *both(f"on_{stage}_end"),
    ]


OPEN = ["module.prepare_data", "callback.setup", "module.setup", "module.configure_model"]
CLOSE = ["callback.teardown", "module.teardown"]
BEGIN_FIT = [
    *OPEN,
    "module.configure_optimizers",
    "callback.on_fit_start",
    "module.on_fit_start",
    "callback.on_sanity_check_start",
    *evaluation("validation", 1),
    "callback.on_sanity_check_end",
    "callback.on_train_start",
    "module.on_train_start",
]
EPOCH = [
    "callback.on_train_epoch_start",
    "module.on_train_epoch_start",
    *(STEP * 2),
    *evaluation("validation", 2),
    "callback.on_train_epoch_end",
    "module.on_train_epoch_end",
]
END_FIT = ["callback.on_train_end", "module.on_train_end", "callback.on_fit_end", "module.on_fit_end", *CLOSE]


def recording(kind, base, names, calls, **returns):
    """An object of a subclass of `base` whose hooks write `kind.name` to `calls`."""

    def make(name):
        original = getattr(base, name, None)

        def hook(self, *args, **kwargs):
            calls.append(f"{kind}.{name}")
            return returns[name](self, *args) if name in returns else original(self, *args, **kwargs)

        return hook

    return type(f"Recording{base.__name__}", (base,), {name: make(name) for name in names})()


def hooks_of(base):
    return [name for name in vars(base) if name in {*sum(ORDER.values(), ()), *ANYTIME}]


def make_module(calls, fails_at=None):
    class Base(Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

    class Optimizer(torch.optim.SGD):
        def step(self, *args, **kwargs):
            calls.append("optimizer.step")
            return super().step(*args, **kwargs)

        def zero_grad(self, *args, **kwargs):
            calls.append("optimizer.zero_grad")
            return super().zero_grad(*args, **kwargs)

    def training_step(self, batch, batch_idx):
        if batch_idx == fails_at:
            raise ZeroDivisionError("in the step")
        return self.layer(batch).sum()

    return recording(
        "module",
        Base,
        [name for name in hooks_of(Module) if name not in ("on_save_checkpoint", "on_load_checkpoint")],
        calls,
        training_step=training_step,
        validation_step=lambda self, batch, batch_idx: None,
        test_step=lambda self, batch, batch_idx: None,
        predict_step=lambda self, batch, batch_idx: batch,
        configure_optimizers=lambda self: Optimizer(self.parameters(), lr=0.1),
        transfer_batch_to_device=lambda self, batch, device, dataloader_idx: batch.to(device),
    )


def make_callback(calls):
    names = [name for name in hooks_of(Callback) if name not in ("on_save_checkpoint", "on_load_checkpoint")]
    return recording("callback", Callback, names, calls)


def run(tmp_path, fn, calls, **options):
    trainer = quiet_trainer(
        tmp_path, callbacks=[make_callback(calls)], max_epochs=2, num_sanity_val_steps=1, gradient_clip_val=1.0
    )
    module = make_module(calls, **options)
    if fn == "fit":
        trainer.fit(module, indexed(2), indexed(2))
    else:
        getattr(trainer, fn)(module, indexed(2))


@pytest.mark.parametrize(
    ("fn", "order"),
    [
        ("fit", [*BEGIN_FIT, *EPOCH, *EPOCH, *END_FIT]),
        ("validate", [*OPEN, *evaluation("validation", 2), *CLOSE]),
        ("test", [*OPEN, *evaluation("test", 2), *CLOSE]),
        ("predict", [*OPEN, *evaluation("predict", 2), *CLOSE]),
    ],
)
def test_hooks_are_called_in_this_order(tmp_path, fn, order):
    calls = []
    run(tmp_path, fn, calls)
    assert calls == order


@pytest.mark.parametrize("fn", ["fit", "validate", "test", "predict"])
def test_the_table_of_hooks_agrees_with_a_real_run(tmp_path, fn):
    calls = []
    run(tmp_path, fn, calls)
    if fn == "fit":
        # The table has the validation hooks where they repeat, not in the sanity check.
        start, end = calls.index("callback.on_sanity_check_start"), calls.index("callback.on_sanity_check_end")
        calls = [*calls[: start + 1], *calls[end:]]
    names = (call.split(".")[1] for call in calls if not call.startswith("optimizer."))
    assert list(dict.fromkeys(names)) == list(dict.fromkeys(ORDER[fn]))


def test_an_exception_in_a_step_ends_with_on_exception_and_teardown(tmp_path):
    calls = []
    with pytest.raises(ZeroDivisionError, match="in the step"):
        run(tmp_path, "fit", calls, fails_at=0)
    failing = STEP[: STEP.index("module.training_step") + 1]
    begin_epoch = ["callback.on_train_epoch_start", "module.on_train_epoch_start"]
    assert calls == [*BEGIN_FIT, *begin_epoch, *failing, "callback.on_exception", *CLOSE]


def test_an_accumulation_group_clears_once_and_steps_once(tmp_path):
    calls = []
    trainer = quiet_trainer(tmp_path, max_epochs=1, accumulate_grad_batches=3, limit_val_batches=0)
    trainer.fit(make_module(calls), indexed(5), indexed(1))
    interesting = ("zero_grad", "step", "on_after_backward", "on_before_optimizer_step", "on_train_batch_end")
    short = [call.split(".")[1] for call in calls if call.split(".")[1] in interesting]
    backward, batch_end, before_step = "on_after_backward", "on_train_batch_end", "on_before_optimizer_step"
    assert short == [
        *("zero_grad", backward, batch_end, backward, batch_end, backward, before_step, "step", batch_end),
        *("zero_grad", backward, batch_end, backward, before_step, "step", batch_end),
    ]


def test_the_data_module_is_set_up_and_torn_down_before_everybody_else(tmp_path):
    calls = []
    data = recording(
        "data",
        DataModule,
        ["prepare_data", "setup", "train_dataloader", "val_dataloader", "teardown"],
        calls,
        train_dataloader=lambda self: indexed(1),
        val_dataloader=lambda self: indexed(1),
    )
    quiet_trainer(tmp_path, callbacks=[make_callback(calls)], max_epochs=1).fit(make_module(calls), datamodule=data)
    named = ("prepare_data", "setup", "configure_model", "teardown", "configure_optimizers")
    assert [call for call in calls if call.startswith("data.") or call.split(".")[1] in named] == [
        "data.prepare_data",
        "module.prepare_data",
        "data.setup",
        "callback.setup",
        "module.setup",
        "module.configure_model",
        "data.train_dataloader",
        "data.val_dataloader",
        "module.configure_optimizers",
        "data.teardown",
        "callback.teardown",
        "module.teardown",
    ]


def test_callbacks_are_called_in_the_order_given_before_the_module(tmp_path):
    calls = []

    def named(name, reads=False):
        class Named(Callback):
            state_key = name
            reads_metrics = reads

            def on_train_epoch_end(self, trainer, pl_module):
                calls.append(name)

        return Named()

    class Last(Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_epoch_end(self):
            calls.append("module")

    callbacks = [named("a"), named("reads", reads=True), named("b")]
    quiet_trainer(tmp_path, callbacks=callbacks, max_epochs=1).fit(Last(), indexed(1))
    assert calls == ["a", "b", "module", "reads"]


class Base(Module):
    pass


class Overrides(Module):
    def on_fit_start(self):
        pass


class Inherits(Overrides):
    pass


class Mixin:
    def on_fit_start(self):
        pass


class FromMixin(Mixin, Module):
    pass


class BehindTheBase(Module, Mixin):
    pass


def with_attribute():
    module = Base()
    module.on_fit_start = lambda: None
    return module


@pytest.mark.parametrize(
    ("make", "is_overridden"),
    [
        (Module, False),
        (Base, False),
        (Overrides, True),
        (Inherits, True),
        (FromMixin, True),
        # Python itself finds paceline's method first there.
        (BehindTheBase, False),
        (with_attribute, True),
    ],
)
def test_a_hook_is_overridden_where_somebody_else_defines_it(make, is_overridden):
    assert overridden(make(), "on_fit_start") is is_overridden


def test_a_hook_that_does_not_exist_is_not_overridden():
    assert not overridden(Base(), "on_no_such_thing")


@pytest.mark.parametrize(
    ("old", "new"),
    [("training_epoch_end", "on_train_epoch_end"), ("configure_sharded_model", "configure_model")],
)
def test_a_hook_by_its_old_name_is_an_error_that_says_the_new_one(tmp_path, old, new):
    module = make_module([])
    setattr(module, old, lambda *_: None)
    with pytest.raises(ValueError, match=f"`{old}`, which is called `{new}` now"):
        quiet_trainer(tmp_path, max_epochs=1).fit(module, indexed(1))
