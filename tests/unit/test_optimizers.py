"""What `configure_optimizers` may return, and what is said of everything else."""

import warnings

import pytest
import torch
from tests.unit.models import Line, indexed, quiet_trainer
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau, StepLR

from paceline.errors import MisconfigurationError
from paceline.loops.optimizers import parse_optimizers


def sgd():
    return torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)


ONE, TWO = sgd(), sgd()
DECAY, OTHER, FLAT = ExponentialLR(ONE, 0.5), ExponentialLR(TWO, 0.5), ReduceLROnPlateau(ONE)
DEFAULT = {"interval": "epoch", "frequency": 1, "monitor": None, "strict": True, "name": None}


@pytest.mark.parametrize(
    ("returned", "optimizers", "schedulers"),
    [
        (ONE, [ONE], []),
        ([ONE], [ONE], []),
        ((ONE, TWO), [ONE, TWO], []),
        ([], [], []),
        (([ONE], [DECAY]), [ONE], [(DECAY, {})]),
        (([ONE, TWO], [DECAY, OTHER]), [ONE, TWO], [(DECAY, {}), (OTHER, {})]),
        (([ONE], []), [ONE], []),
        (([ONE], [{"scheduler": DECAY, "interval": "step"}]), [ONE], [(DECAY, {"interval": "step"})]),
        ({"optimizer": ONE}, [ONE], []),
        ({"optimizer": ONE, "lr_scheduler": None}, [ONE], []),
        ({"optimizer": ONE, "lr_scheduler": DECAY}, [ONE], [(DECAY, {})]),
        (
            {"optimizer": ONE, "lr_scheduler": {"scheduler": DECAY, "interval": "step", "frequency": 3, "name": "d"}},
            [ONE],
            [(DECAY, {"interval": "step", "frequency": 3, "name": "d"})],
        ),
        (
            {"optimizer": ONE, "lr_scheduler": {"scheduler": FLAT, "monitor": "val_loss", "strict": False}},
            [ONE],
            [(FLAT, {"monitor": "val_loss", "strict": False})],
        ),
        (
            [{"optimizer": ONE, "lr_scheduler": DECAY}, {"optimizer": TWO}],
            [ONE, TWO],
            [(DECAY, {})],
        ),
    ],
)
def test_every_form_gives_optimizers_and_scheduler_configurations(returned, optimizers, schedulers):
    configured = parse_optimizers(returned)
    configs = configured.schedulers
    assert configured.optimizers == optimizers
    assert [config.scheduler for config in configs] == [scheduler for scheduler, _ in schedulers]
    for config, (_, options) in zip(configs, schedulers, strict=True):
        assert {name: getattr(config, name) for name in DEFAULT} == {**DEFAULT, **options}


class Steps:
    """A scheduler that keeps no state."""

    def step(self):
        pass


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("adam", ["returned a str", "Return an optimizer"]),
        (3, ["returned a int", "or None"]),
        (ONE.step, ["Return an optimizer"]),
        ([ONE, "adam"], ["a str as optimizer"]),
        ([DECAY], ["a ExponentialLR as optimizer"]),
        (DECAY, ["returned a ExponentialLR"]),
        ({}, ["without `optimizer`"]),
        ({"lr_scheduler": DECAY}, ["without `optimizer`"]),
        ({"optimiser": ONE}, ["unknown key `optimiser`", "Did you mean `optimizer`?", "lr_scheduler"]),
        ({"optimizer": ONE, "scheduler": DECAY}, ["unknown key `scheduler`", "Allowed: optimizer, lr_scheduler"]),
        ({"optimizer": ONE, "lr_scheduler": FLAT}, ["ReduceLROnPlateau needs", '"monitor"']),
        (
            [{"optimizer": ONE, "frequency": 2}, {"optimizer": TWO}],
            ["gave 1 of 2 optimizers a `frequency`", "to all, for them to take turns, or to none"],
        ),
        ([{"optimizer": ONE, "frequency": 0}], ["frequency is an int of at least 1, not 0"]),
        ([{"optimizer": ONE, "frequency": 1.5}], ["frequency is an int of at least 1, not 1.5"]),
        (([ONE], [Steps()]), ["A Steps has no `state_dict` and `load_state_dict`", "Give it both"]),
        (
            ([ONE], [{"scheduler": DECAY, "reduce_on_plateau": True}]),
            ["needs to know what to look at", '"monitor"'],
        ),
        ({"optimizer": ONE, "lr_scheduler": {"scheduler": FLAT}}, ["ReduceLROnPlateau needs"]),
        ({"optimizer": ONE, "lr_scheduler": {"interval": "step"}}, ["needs the key `scheduler`"]),
        (
            {"optimizer": ONE, "lr_scheduler": {"scheduler": DECAY, "freqency": 1}},
            ["unknown key `freqency`", "Did you mean `frequency`?", "Allowed: scheduler"],
        ),
        ({"optimizer": ONE, "lr_scheduler": {"scheduler": DECAY, "interval": "batch"}}, ['"epoch" or "step"']),
        ({"optimizer": ONE, "lr_scheduler": {"scheduler": DECAY, "frequency": 0}}, ["at least 1, not 0"]),
        ({"optimizer": ONE, "lr_scheduler": {"scheduler": DECAY, "frequency": True}}, ["at least 1, not True"]),
        ({"optimizer": ONE, "lr_scheduler": 0.5}, ["float is no scheduler"]),
        ({"optimizer": ONE, "lr_scheduler": OTHER}, ["ExponentialLR of an optimizer that it did not return"]),
        (([ONE], [OTHER]), ["ExponentialLR of an optimizer that it did not return"]),
        (([], [DECAY]), ["ExponentialLR of an optimizer that it did not return"]),
    ],
)
def test_what_is_none_of_the_forms_is_refused_with_what_is(returned, words):
    with pytest.raises(MisconfigurationError) as caught:
        parse_optimizers(returned)
    for word in words:
        assert word in str(caught.value)


class Returns(Line):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def configure_optimizers(self):
        return self.make(self)


def test_none_warns_and_trains_nothing(tmp_path):
    module = Returns(lambda _: None)
    before = [p.clone() for p in module.parameters()]
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    with pytest.warns(UserWarning, match="returned None: the weights are not optimized"):
        trainer.fit(module, indexed(3))
    assert len(module.seen) == 3
    assert trainer.global_step == 0
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), before, strict=True))


def test_several_optimizers_are_refused_where_the_step_cannot_tell_which_is_at_work(tmp_path):
    two = Returns(lambda module: [torch.optim.SGD([p], lr=0.1) for p in module.parameters()])
    with pytest.raises(MisconfigurationError, match="returned 2 optimizers"):
        quiet_trainer(tmp_path, max_epochs=1).fit(two, indexed(1))


def test_hooks_see_one_optimizer_and_one_scheduler_bare_and_several_as_lists(tmp_path):
    def make(module):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        return [optimizer], [ExponentialLR(optimizer, 0.5) for _ in range(module.schedulers)]

    seen = []

    class Looks(Returns):
        def on_train_start(self):
            seen.append((type(self.optimizers().optimizer).__name__, type(self.lr_schedulers()).__name__))

    for count in (0, 1, 2):
        module = Looks(make)
        module.schedulers = count
        quiet_trainer(tmp_path, max_epochs=1).fit(module, indexed(1))
    assert seen == [("SGD", "NoneType"), ("SGD", "ExponentialLR"), ("SGD", "list")]


def test_frequencies_and_owners_are_found():
    schedule = {"scheduler": StepLR(TWO, 1), "name": "mine"}
    configured = parse_optimizers(
        [{"optimizer": ONE, "frequency": 3}, {"optimizer": TWO, "frequency": 1, "lr_scheduler": schedule}]
    )
    assert configured.frequencies == [3, 1]
    assert [(config.name, config.optimizer_idx) for config in configured.schedulers] == [("mine", 1)]
    assert parse_optimizers([ONE, TWO]).frequencies == []


def test_a_cycle_that_is_stepped_per_epoch_draws_a_warning():
    with pytest.warns(UserWarning, match="OneCycleLR counts optimizer steps, but is stepped per epoch"):
        parse_optimizers(([ONE], [OneCycleLR(ONE, max_lr=0.1, total_steps=10)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = {"scheduler": OneCycleLR(ONE, max_lr=0.1, total_steps=10), "interval": "step"}
        parse_optimizers({"optimizer": ONE, "lr_scheduler": schedule})
