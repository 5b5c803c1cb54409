"""Callbacks that change what is trained: averages of weights, and parts that are frozen at first."""

import copy
import itertools

import pytest
import torch
from tests.unit.models import indexed, quiet_trainer
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from paceline import Module
from paceline.callbacks import BackboneFinetuning, ModelCheckpoint, WeightAveraging
from paceline.errors import MisconfigurationError

STEPS = 5


class Net(Module):
    """Has BatchNorm, so that there are buffers of both kinds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.net = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
        self.validated = []

    def loss(self, batch):
        return (self.net(batch / 10) - batch / 10).square().mean()

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.validated.append(self.net[0].weight.clone())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def loader():
    return indexed(STEPS * 4, 4)


def bare(epochs, average_of, updates):
    """`updates(step, epoch)`: whether the average takes in the weights after that step."""
    module = Net()
    optimizer = module.configure_optimizers()
    average = average_of(module)
    after_epochs = []
    step = 0
    for epoch in range(epochs):
        for batch in loader():
            optimizer.zero_grad()
            module.loss(batch).backward()
            optimizer.step()
            step += 1
            if updates(step, epoch):
                average.update_parameters(module)
        after_epochs.append(average.module.net[0].weight.clone())
    return module, average.module, after_epochs


def assert_same(one, other):
    for name, value in other.state_dict().items():
        assert torch.equal(one.state_dict()[name], value), name


CASES = [
    ({}, lambda m: AveragedModel(m, use_buffers=True), lambda step, epoch: True),
    ({"use_buffers": False}, AveragedModel, lambda step, epoch: True),
    (
        {"ema_decay": 0.8},
        lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True),
        lambda step, epoch: True,
    ),
    (
        {"update_every_n_steps": 3, "update_starting_at_step": 4},
        lambda m: AveragedModel(m, use_buffers=True),
        lambda step, epoch: step >= 4 and step % 3 == 0,
    ),
    (
        {"update_starting_at_epoch": 1, "avg_fn": lambda average, newest, n: (average + newest) / 2},
        lambda m: AveragedModel(m, avg_fn=lambda average, newest, n: (average + newest) / 2, use_buffers=True),
        lambda step, epoch: epoch >= 1,
    ),
]


@pytest.mark.parametrize(("options", "average_of", "updates"), CASES)
def test_the_average_is_validated_kept_and_saved(tmp_path, options, average_of, updates):
    module = Net()
    keeper = ModelCheckpoint(dirpath=tmp_path / "files")
    trainer = quiet_trainer(
        tmp_path, max_epochs=3, callbacks=[WeightAveraging(**options), keeper], num_sanity_val_steps=0
    )
    trainer.fit(module, loader(), indexed(1))
    newest, average, after_epochs = bare(3, average_of, updates)
    assert_same(module, average)
    # Before the first update it is the newest weights that are validated.
    begins = 1 if "update_starting_at_epoch" in options or "update_starting_at_step" in options else 0
    assert all(torch.equal(v, a) for v, a in zip(module.validated[begins:], after_epochs[begins:], strict=True))
    saved = torch.load(keeper.best_model_path)
    assert all(torch.equal(saved["state_dict"][name], value) for name, value in average.state_dict().items())
    newest_state = newest.state_dict()
    assert all(torch.equal(saved["current_model_state"][name], value) for name, value in newest_state.items())


@pytest.mark.parametrize("options", [{}, {"ema_decay": 0.7}, {"update_every_n_steps": 2}])
@pytest.mark.parametrize("stop_after", [1, 4, 5, 8])
def test_a_fit_with_an_average_goes_on_exactly(tmp_path, options, stop_after):
    def fit(module, **arguments):
        trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[WeightAveraging(**options)])
        trainer.fit(module, loader(), indexed(1), **arguments)
        return module

    whole = fit(Net())
    path = str(tmp_path / "stop.ckpt")
    count = itertools.count(1)

    class Saves(Net):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if next(count) == stop_after:
                self.trainer.save_checkpoint(path)

    fit(Saves())
    assert_same(fit(Net(), ckpt_path=path), whole)


def test_a_checkpoint_from_within_a_validation_goes_on_exactly(tmp_path):
    path = str(tmp_path / "stop.ckpt")

    class Saves(Net):
        saves = False

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            if self.saves and self.current_epoch == 0 and not self.trainer.sanity_checking:
                self.trainer.save_checkpoint(path)

    def fit(module, **arguments):
        trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[WeightAveraging()])
        trainer.fit(module, loader(), indexed(1), **arguments)
        return module

    whole, first = fit(Saves()), Saves()
    first.saves = True
    fit(first)
    assert_same(fit(Saves(), ckpt_path=path), whole)


def test_the_end_of_a_fit_can_be_gone_on_with_from_its_file(tmp_path):
    path = str(tmp_path / "end.ckpt")
    whole, first, second = Net(), Net(), Net()
    for module, epochs, options in ((whole, 3, {}), (first, 1, {}), (second, 3, {"ckpt_path": path})):
        trainer = quiet_trainer(tmp_path, max_epochs=epochs, callbacks=[WeightAveraging()])
        trainer.fit(module, loader(), **options)
        if module is first:
            trainer.save_checkpoint(path)
    assert_same(second, whole)


def test_a_validation_that_fails_leaves_the_newest_weights(tmp_path):
    class Fails(Net):
        def validation_step(self, batch, batch_idx):
            raise ZeroDivisionError

    module = Fails()
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[WeightAveraging()], num_sanity_val_steps=0)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(module, loader(), indexed(1))
    assert_same(module, bare(1, AveragedModel, lambda step, epoch: True)[0])


def test_without_an_update_the_weights_are_the_newest(tmp_path):
    module = Net()
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[WeightAveraging(update_starting_at_step=99)])
    trainer.fit(module, loader(), indexed(1))
    assert_same(module, bare(1, AveragedModel, lambda step, epoch: False)[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ema_decay": 1.5}, "ema_decay=1.5.*from 0 to 1"),
        ({"ema_decay": 0.5, "avg_fn": max}, "not both"),
        ({"update_every_n_steps": 0}, "update_every_n_steps=0.*at least 1"),
    ],
)
def test_arguments_of_weight_averaging_are_checked(options, words):
    with pytest.raises(MisconfigurationError, match=words):
        WeightAveraging(**options)


# -- BackboneFinetuning -----------------------------------------------------------------------------------------------


class WithBackbone(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.backbone = nn.Sequential(nn.Linear(1, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
        self.head = nn.Linear(3, 1)
        self.rates = []

    def training_step(self, batch, batch_idx):
        return (self.head(self.backbone(batch / 10)) - batch / 10).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(filter(lambda p: p.requires_grad, self.parameters()), lr=0.04, momentum=0.9)

    def on_train_epoch_start(self):
        self.rates.append([group["lr"] for group in self.trainer.optimizers[0].param_groups])


def finetune(root, module, epochs=5, ckpt_path=None, **options):
    callback = BackboneFinetuning(**{"unfreeze_backbone_at_epoch": 2, **options})
    trainer = quiet_trainer(root, max_epochs=epochs, callbacks=[callback])
    trainer.fit(module, loader(), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({}, [[0.04]] * 2 + [[0.04, 0.004], [0.04, 0.008], [0.04, 0.016]]),
        ({"backbone_initial_ratio_lr": 0.5}, [[0.04]] * 2 + [[0.04, 0.02], [0.04, 0.04], [0.04, 0.04]]),
        (
            {"backbone_initial_ratio_lr": 0.5, "should_align": False},
            [[0.04]] * 2 + [[0.04, 0.02], [0.04, 0.04], [0.04, 0.08]],
        ),
        (
            {"backbone_initial_lr": 0.001, "lambda_func": lambda epoch: 3.0},
            [[0.04]] * 2 + [[0.04, 0.001], [0.04, 0.003], [0.04, 0.009]],
        ),
    ],
)
def test_the_backbone_is_trained_from_its_epoch_on_at_a_growing_rate(tmp_path, options, rates):
    module = WithBackbone()
    frozen = copy.deepcopy(module.backbone[0].weight)
    changes = []
    module.on_train_epoch_end = lambda: changes.append(not torch.equal(module.backbone[0].weight, frozen))
    finetune(tmp_path, module, **options)
    assert module.rates == [pytest.approx(one) for one in rates]
    assert changes == [False, False, True, True, True]


@pytest.mark.parametrize("train_bn", [True, False])
def test_batchnorm_of_the_backbone_is_trained_all_along_or_not(tmp_path, train_bn):
    module = WithBackbone()
    before = [copy.deepcopy(module.backbone[1].weight), copy.deepcopy(module.backbone[1].running_mean)]
    finetune(tmp_path, module, epochs=1, train_bn=train_bn)
    assert torch.equal(module.backbone[1].weight, before[0]) is not train_bn
    assert torch.equal(module.backbone[1].running_mean, before[1]) is not train_bn


@pytest.mark.parametrize("stop_after", [3, 10, 12, 15, 18])
def test_a_fit_goes_on_exactly_before_and_after_the_backbone_was_unfrozen(tmp_path, stop_after):
    whole = WithBackbone()
    finetune(tmp_path, whole, epochs=4)
    path = str(tmp_path / "stop.ckpt")
    count = itertools.count(1)

    class Saves(WithBackbone):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if next(count) == stop_after:
                self.trainer.save_checkpoint(path)

    finetune(tmp_path, Saves(), epochs=4)
    second = WithBackbone()
    finetune(tmp_path, second, epochs=4, ckpt_path=path)
    assert_same(second, whole)


def test_what_cannot_be_finetuned_is_refused(tmp_path):
    with pytest.raises(MisconfigurationError, match="needs a torch module `backbone`, which Net does not have"):
        finetune(tmp_path, Net())
    with pytest.raises(MisconfigurationError, match="unfreeze_backbone_at_epoch=-1.*int from 0"):
        BackboneFinetuning(unfreeze_backbone_at_epoch=-1)
