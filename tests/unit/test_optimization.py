"""Every way of optimizing against a bare PyTorch loop that does the same: the weights are equal to the last bit."""

import collections
import copy
import itertools
import math

import pytest
import torch
from tests.unit.models import quiet_trainer
from torch import nn
from torch.optim import LBFGS, SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from paceline import Module
from paceline.errors import MisconfigurationError
from paceline.strategies import Precision

BATCHES = 7


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCHES * 4, 6, generator=generator)
    return TensorDataset(x, (x.sum(1, keepdim=True) * 0.3).tanh())


def loader():
    return DataLoader(data(), batch_size=4)


def batches():
    return list(loader())


def net():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(network, batch):
    x, y = batch
    return nn.functional.mse_loss(network(x), y)


class Net(Module):
    """Trains `net()` with whatever `configure` makes of the module."""

    def __init__(self, configure=None):
        super().__init__()
        self.net = net()
        self.configure = configure or (lambda module: Adam(module.parameters(), lr=0.05))

    def training_step(self, batch, batch_idx):
        loss = loss_of(self.net, batch)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return self.configure(self)


def fit(root, module, epochs=2, val=None, **arguments):
    trainer = quiet_trainer(root, max_epochs=epochs, **arguments)
    trainer.fit(module, loader(), val)
    return trainer


def assert_same(module, network):
    own, other = module.net.state_dict(), network.state_dict()
    assert own.keys() == other.keys()
    for name in own:
        assert own[name].dtype == other[name].dtype
        assert torch.equal(own[name], other[name]), name


# -- accumulation and clipping ----------------------------------------------------------------------------------------


def bare_loop(epochs, group_of, clip=None, optimizer=lambda p: Adam(p, lr=0.05)):
    """`group_of(epoch)` batches per step, the last group of an epoch smaller where they do not fit."""
    network = net()
    opt = optimizer(network.parameters())
    steps = 0
    for epoch in range(epochs):
        for group in in_groups(batches(), group_of(epoch)):
            opt.zero_grad()
            for batch in group:
                loss = loss_of(network, batch)
                (loss / len(group)).backward()
            if clip is not None:
                clip(network.parameters())
            opt.step()
            steps += 1
    return network, steps


def in_groups(items, size):
    return [items[start : start + size] for start in range(0, len(items), size)]


@pytest.mark.parametrize(
    ("accumulate", "group_of", "steps"),
    [
        (1, lambda _: 1, 14),
        (3, lambda _: 3, 6),  # 3 + 3 + 1, twice
        (4, lambda _: 4, 4),
        (7, lambda _: 7, 2),
        (100, lambda _: 100, 2),
        ({1: 3}, lambda epoch: 1 if epoch == 0 else 3, 7 + 3),
        ({0: 4, 1: 2}, lambda epoch: 4 if epoch == 0 else 2, 2 + 4),
    ],
)
def test_accumulation_equals_a_bare_loop_partial_groups_included(tmp_path, accumulate, group_of, steps):
    module = Net()
    trainer = fit(tmp_path, module, accumulate_grad_batches=accumulate)
    network, bare_steps = bare_loop(2, group_of)
    assert_same(module, network)
    assert trainer.global_step == bare_steps == steps


@pytest.mark.parametrize(
    ("algorithm", "limit", "clip"),
    [
        ("norm", 0.05, lambda p: nn.utils.clip_grad_norm_(p, 0.05)),
        ("value", 0.01, lambda p: nn.utils.clip_grad_value_(p, 0.01)),
        ("NORM", 0.05, lambda p: nn.utils.clip_grad_norm_(p, 0.05)),
    ],
)
@pytest.mark.parametrize("group", [1, 3])
def test_clipping_equals_a_bare_loop(tmp_path, algorithm, limit, clip, group):
    module = Net()
    fit(
        tmp_path,
        module,
        gradient_clip_val=limit,
        gradient_clip_algorithm=algorithm,
        accumulate_grad_batches=group,
    )
    network, _ = bare_loop(2, lambda _: group, clip)
    assert_same(module, network)
    unclipped, _ = bare_loop(2, lambda _: group)
    assert not torch.equal(unclipped[0].weight, network[0].weight)


def test_the_norms_of_gradients_are_logged_before_they_are_clipped(tmp_path):
    norms = {}

    class Watched(Net):
        def on_after_backward(self):
            for name, parameter in self.named_parameters():
                norms[name] = parameter.grad.clone()

    for p, key in ((2, "2"), (1.5, "1.5"), ("inf", "inf")):
        trainer = fit(tmp_path, Watched(), epochs=1, track_grad_norm=p, gradient_clip_val=1e-3, log_every_n_steps=1)
        order = float(p)
        for name, gradient in norms.items():
            expected = gradient.abs().max() if p == "inf" else (gradient.abs() ** order).sum() ** (1 / order)
            assert trainer.callback_metrics[f"grad_{key}_norm/{name}"].item() == pytest.approx(
                expected.item(), rel=1e-5
            )
        everything = torch.cat([gradient.flatten() for gradient in norms.values()])
        total = everything.abs().max() if p == "inf" else (everything.abs() ** order).sum() ** (1 / order)
        assert trainer.callback_metrics[f"grad_{key}_norm_total"].item() == pytest.approx(total.item(), rel=1e-5)
    assert not any(name.startswith("grad_") for name in fit(tmp_path, Net(), epochs=1).callback_metrics)


# -- number formats ---------------------------------------------------------------------------------------------------


def bare_precision(precision):
    torch.manual_seed(2)
    network = net()
    dtype = {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(precision)
    if dtype is not None:
        network.to(dtype)
    opt = Adam(network.parameters(), lr=0.05)
    for _ in range(2):
        for x, y in batches():
            opt.zero_grad()
            if dtype is not None:
                loss = loss_of(network, (x.to(dtype), y.to(dtype)))
            elif precision == "bf16-mixed":
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(network, (x, y))
            else:
                loss = loss_of(network, (x, y))
            loss.backward()
            opt.step()
    return network


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true", "bf16-mixed", 64, 32, "bf16"])
def test_every_precision_equals_a_bare_loop(tmp_path, precision):
    module = Net()
    trainer = fit(tmp_path, module, precision=precision)
    name = {64: "64-true", 32: "32-true", "bf16": "bf16-mixed"}.get(precision, precision)
    assert trainer.precision == name
    assert_same(module, bare_precision(name))
    assert torch.get_default_dtype() is torch.float32


def test_tensors_made_in_a_step_and_its_batches_have_the_true_precision(tmp_path):
    seen = []

    class Looks(Net):
        def look(self, batch):
            seen.append((batch[0].dtype, batch[1].dtype, torch.zeros(1).dtype, self.net[0].weight.dtype))
            return self.net(batch[0])

        def training_step(self, batch, batch_idx):
            return self.look(batch).mean()

        def validation_step(self, batch, batch_idx):
            self.look(batch)

        test_step = validation_step

        def predict_step(self, batch, batch_idx):
            return self.look(batch)

    module = Looks()
    trainer = quiet_trainer(tmp_path, max_epochs=1, precision="64-true", limit_train_batches=1, limit_val_batches=1)
    whole = DataLoader(TensorDataset(torch.ones(2, 6), torch.ones(2, dtype=torch.int64)))
    trainer.fit(module, whole, whole)
    trainer.test(module, whole, verbose=False)
    trainer.predict(module, whole)
    assert set(seen) == {(torch.float64, torch.int64, torch.float64, torch.float64)}
    assert len(seen) == 1 + 1 + 1 + 2 + 2  # sanity check, training, validation, test, predict


def test_batches_keep_their_kind_of_container_in_another_precision(tmp_path):
    seen = []
    pair = collections.namedtuple("Pair", "x n")
    ones = torch.ones(2, 6)
    batch = collections.defaultdict(list, {"a": [ones, (pair(ones, torch.arange(2)), "text")]})

    class Looks(Net):
        def training_step(self, batch, batch_idx):
            seen.append(batch)
            return self.net(batch["a"][0]).mean()

    quiet_trainer(tmp_path, max_epochs=1, precision="bf16-true").fit(Looks(), [batch])
    (got,) = seen
    assert type(got) is collections.defaultdict
    first, (named, text) = got["a"]
    assert (first.dtype, named.x.dtype, named.n.dtype, text) == (torch.bfloat16, torch.bfloat16, torch.int64, "text")
    assert batch["a"][0].dtype is torch.float32


def test_16_mixed_on_the_cpu_is_refused_with_what_works(tmp_path):
    with pytest.raises(MisconfigurationError, match='needs a GPU. On the CPU use "bf16-mixed"'):
        quiet_trainer(tmp_path, precision="16-mixed", accelerator="cpu")


class Scaled(Precision):
    """Float32 with a gradient scaler: the scaler's way of a step, on a machine without GPU."""

    name = "scaled"

    def __init__(self, scale):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_gradient_scaler_changes_nothing_but_the_size_of_gradients_on_their_way(tmp_path, clip):
    module = Net()
    trainer = fit(tmp_path, module, plugins=Scaled(1024.0), gradient_clip_val=clip)
    clipping = None if clip is None else (lambda p: nn.utils.clip_grad_norm_(p, clip))
    assert_same(module, bare_loop(2, lambda _: 1, clipping)[0])  # a power of two is exact
    assert trainer.global_step == 14
    assert trainer.scaler.get_scale() == 1024.0


def test_a_step_with_infinite_gradients_is_left_out_and_not_counted(tmp_path):
    class Explodes(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * math.inf if batch_idx == 2 else loss

    module = Explodes()
    trainer = fit(tmp_path, module, epochs=1, plugins=Scaled(1024.0))
    assert trainer.global_step == BATCHES - 1
    assert trainer.scaler.get_scale() == 512.0
    assert all(torch.isfinite(p).all() for p in module.parameters())


def test_the_scaler_is_part_of_a_checkpoint(tmp_path):
    path = str(tmp_path / "a.ckpt")
    trainer = fit(tmp_path, Net(), epochs=1, plugins=Scaled(1024.0))
    trainer.scaler.update(256.0)
    trainer.save_checkpoint(path)
    assert torch.load(path)["MixedPrecision"]["scale"] == 1024.0  # as it was when the fit ended
    resumed = quiet_trainer(tmp_path, max_epochs=2, plugins=Scaled(2.0))
    resumed.fit(Net(), loader(), ckpt_path=path)
    assert resumed.scaler.get_scale() == 1024.0


# -- several optimizers, automatically --------------------------------------------------------------------------------


class Two(Module):
    """Two networks, each of whose losses depends on the other's output, as in an adversarial pair."""

    def __init__(self, configure=None, steps=("a", "b")):
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b = nn.Linear(6, 1), nn.Linear(1, 1)
        self.configure = configure or (lambda m: [SGD(m.a.parameters(), lr=0.1), Adam(m.b.parameters(), lr=0.05)])
        self.calls = []
        self.needed = []

    def loss(self, batch, index):
        x, y = batch
        made = self.a(x)
        judged = self.b(made if index == 0 else made.detach())
        return nn.functional.mse_loss(judged, y) if index == 0 else judged.square().mean()

    def training_step(self, batch, batch_idx, optimizer_idx):
        self.calls.append((batch_idx, optimizer_idx))
        self.needed.append((self.a.weight.requires_grad, self.b.weight.requires_grad))
        return self.loss(batch, optimizer_idx)

    def configure_optimizers(self):
        return self.configure(self)


def bare_two(epochs, turn, group=1):
    """`turn(batch_idx)`: which of the two step with a batch."""
    module = Two()
    optimizers = module.configure(module)
    owners = (module.a, module.b)
    for _ in range(epochs):
        everything = batches()
        for start in range(0, len(everything), group):
            together = everything[start : start + group]
            for offset, batch in enumerate(together):
                for index in turn(start + offset):
                    for owner in owners:
                        owner.requires_grad_(owner is owners[index])
                    if offset == 0:
                        optimizers[index].zero_grad()
                    loss = module.loss(batch, index)
                    (loss / len(together)).backward()
                    if offset == len(together) - 1:
                        optimizers[index].step()
                    for owner in owners:
                        owner.requires_grad_(True)
    return module


def assert_equal_weights(one, other):
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name


@pytest.mark.parametrize("group", [1, 3])
def test_several_optimizers_step_one_after_the_other_with_each_batch(tmp_path, group):
    module = Two()
    trainer = fit(tmp_path, module, accumulate_grad_batches=group)
    assert_equal_weights(module, bare_two(2, lambda _: (0, 1), group))
    assert module.calls == [(batch, index) for _ in range(2) for batch in range(BATCHES) for index in (0, 1)]
    assert module.needed[:2] == [(True, False), (False, True)]
    assert all(p.requires_grad for p in module.parameters())
    assert trainer.global_step == 2 * 2 * math.ceil(BATCHES / group)  # the steps of all


def test_optimizers_with_frequencies_take_turns(tmp_path):
    def turns(module):
        return [
            {"optimizer": SGD(module.a.parameters(), lr=0.1), "frequency": 1},
            {"optimizer": Adam(module.b.parameters(), lr=0.05), "frequency": 2},
        ]

    module = Two(turns)
    trainer = fit(tmp_path, module)
    expected = {0: 0, 1: 1, 2: 1}
    assert module.calls == [(batch, expected[batch % 3]) for _ in range(2) for batch in range(BATCHES)]
    assert_equal_weights(module, bare_two(2, lambda batch: (expected[batch % 3],)))
    assert trainer.global_step == 2 * BATCHES


def test_one_of_several_losses_may_be_left_out(tmp_path):
    class Sometimes(Two):
        def training_step(self, batch, batch_idx, optimizer_idx):
            loss = super().training_step(batch, batch_idx, optimizer_idx)
            return None if optimizer_idx == 1 and batch_idx % 2 else loss

    module = Sometimes()
    trainer = fit(tmp_path, module)
    assert_equal_weights(module, bare_two(2, lambda batch: (0,) if batch % 2 else (0, 1)))
    assert trainer.global_step == 2 * (7 + 4)


def test_the_end_hook_of_a_batch_sees_the_losses_of_all_optimizers(tmp_path):
    seen = []

    class Looks(Two):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append([sorted(output) for output in outputs])

    fit(tmp_path, Looks(), epochs=1)
    assert seen == [[["loss"], ["loss"]]] * BATCHES


def test_schedulers_of_several_optimizers_go_by_the_steps_of_their_own(tmp_path):
    def configure(module):
        one, two = SGD(module.a.parameters(), lr=1.0), SGD(module.b.parameters(), lr=1.0)
        return [
            {
                "optimizer": one,
                "frequency": 1,
                "lr_scheduler": {"scheduler": ExponentialLR(one, 0.5), "interval": "step"},
            },
            {
                "optimizer": two,
                "frequency": 2,
                "lr_scheduler": {"scheduler": ExponentialLR(two, 0.5), "interval": "step"},
            },
        ]

    module = Two(configure)
    rates = []
    module.on_train_end = lambda: rates.extend(o.param_groups[0]["lr"] for o in module.trainer.optimizers)
    fit(tmp_path, module, epochs=1)  # batches 0, 3, 6 are the first's; 1, 2, 4, 5 the second's
    assert rates == [0.5**3, 0.5**4]


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (lambda m: [SGD([p], lr=0.1) for p in m.parameters()], {}, "Let `training_step` take `optimizer_idx`"),
        (
            lambda m: [{"optimizer": SGD([p], lr=0.1), "frequency": 1} for p in m.parameters()],
            {"accumulate_grad_batches": 2},
            "take turns by `frequency` cannot accumulate",
        ),
        (lambda m: LBFGS(m.parameters()), {"accumulate_grad_batches": 2}, "such as LBFGS, cannot accumulate"),
        (lambda m: LBFGS(m.parameters()), {"accumulate_grad_batches": {1: 2}}, "such as LBFGS, cannot accumulate"),
        (lambda m: LBFGS(m.parameters()), {"plugins": Scaled(2.0)}, 'cannot be used with `precision="16-mixed"`'),
    ],
)
def test_what_cannot_be_optimized_automatically_is_refused(tmp_path, make, arguments, words):
    with pytest.raises(MisconfigurationError, match=words):
        fit(tmp_path, Net(make), **arguments)


# -- optimizers that call for their gradients -------------------------------------------------------------------------


def test_lbfgs_equals_a_bare_loop(tmp_path):
    module = Net(lambda m: LBFGS(m.parameters(), lr=0.5, max_iter=4))
    trainer = fit(tmp_path, module, epochs=1)
    network = net()
    opt = LBFGS(network.parameters(), lr=0.5, max_iter=4)
    for batch in batches():

        def closure(batch=batch):
            opt.zero_grad()
            loss = loss_of(network, batch)
            loss.backward()
            return loss

        opt.step(closure)
    assert_same(module, network)
    assert trainer.global_step == BATCHES


@pytest.mark.parametrize("group", [1, 3])
def test_an_own_optimizer_step_is_called_per_step_and_may_skip_it(tmp_path, group):
    calls = []

    class Warm(Net):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            calls.append((epoch, batch_idx))
            for parameters in optimizer.param_groups:
                parameters["lr"] = 0.01 * len(calls)
            if len(calls) == 2:
                optimizer_closure()  # gradients, but no step
            else:
                optimizer.step(closure=optimizer_closure)

    module = Warm(lambda m: SGD(m.parameters(), lr=1.0))
    trainer = fit(tmp_path, module, epochs=1, accumulate_grad_batches=group, gradient_clip_val=0.05)
    network = net()
    opt = SGD(network.parameters(), lr=1.0)
    ends = []
    for number, start in enumerate(range(0, BATCHES, group), 1):
        together = batches()[start : start + group]
        opt.zero_grad()
        for batch in together:
            (loss_of(network, batch) / len(together)).backward()
        ends.append((0, start + len(together) - 1))
        if number == 2:
            continue
        nn.utils.clip_grad_norm_(network.parameters(), 0.05)
        opt.param_groups[0]["lr"] = 0.01 * number
        opt.step()
    assert_same(module, network)
    assert calls == ends
    assert trainer.global_step == len(ends) - 1


def test_an_own_optimizer_step_goes_through_the_scaler(tmp_path):
    class Own(Net):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            optimizer.step(closure=optimizer_closure)

    module = Own()
    trainer = fit(tmp_path, module, plugins=Scaled(1024.0), gradient_clip_val=0.05)
    assert_same(module, bare_loop(2, lambda _: 1, lambda p: nn.utils.clip_grad_norm_(p, 0.05))[0])
    assert trainer.global_step == 14


def test_own_ways_to_clear_and_to_go_backward_are_used(tmp_path):
    calls = []

    class Own(Net):
        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            calls.append("zero_grad")
            optimizer.zero_grad(set_to_none=False)

        def backward(self, loss):
            calls.append("backward")
            loss.backward()

    module = Own()
    fit(tmp_path, module)
    assert calls == ["zero_grad", "backward"] * 14
    assert_same(module, bare_loop(2, lambda _: 1)[0])


def test_a_batch_without_a_loss_makes_no_step_in_a_closure_either(tmp_path):
    class Sometimes(Net):
        def training_step(self, batch, batch_idx):
            return None if batch_idx % 2 else super().training_step(batch, batch_idx)

    for configure in (None, lambda m: LBFGS(m.parameters(), max_iter=2)):
        assert fit(tmp_path, Sometimes(configure), epochs=1).global_step == 4


# -- manual optimization ----------------------------------------------------------------------------------------------


class Manual(Two):
    def __init__(self, **options):
        super().__init__(**options)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for index, optimizer in enumerate(self.optimizers()):
            self.toggle_optimizer(optimizer)
            self.needed.append((self.a.weight.requires_grad, self.b.weight.requires_grad))
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch, index))
            optimizer.step()
            self.untoggle_optimizer(optimizer)


def test_manual_optimization_equals_a_bare_loop(tmp_path):
    module = Manual()
    trainer = fit(tmp_path, module)
    assert_equal_weights(module, bare_two(2, lambda _: (0, 1)))
    assert module.needed == [(True, False), (False, True)] * 14
    assert trainer.global_step == 28


def test_manual_optimization_goes_through_the_precision_and_the_hooks(tmp_path):
    calls = []

    class Watched(Manual):
        def on_before_backward(self, loss):
            calls.append("before_backward")

        def on_after_backward(self):
            calls.append("after_backward")

        def on_before_optimizer_step(self, optimizer):
            calls.append(type(optimizer).__name__)

    module = Watched()
    trainer = fit(tmp_path, module, epochs=1, plugins=Scaled(1024.0))
    assert calls == [
        "before_backward", "after_backward", "SGD", "before_backward", "after_backward", "Adam",
    ] * BATCHES  # fmt: skip
    assert_equal_weights(module, bare_two(1, lambda _: (0, 1)))
    assert trainer.global_step == 14


def test_manual_clipping_accumulation_and_schedulers(tmp_path):
    class Own(Net):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            self.manual_backward(loss_of(self.net, batch) / 2)
            if (batch_idx + 1) % 2 == 0:
                self.clip_gradients(optimizer, gradient_clip_val=0.02, gradient_clip_algorithm="value")
                optimizer.step()
                optimizer.zero_grad()
                self.lr_schedulers().step()

    def configure(module):
        optimizer = SGD(module.parameters(), lr=0.5)
        return [optimizer], [ExponentialLR(optimizer, 0.9)]

    module = Own(configure)
    trainer = fit(tmp_path, module)
    network = net()
    opt = SGD(network.parameters(), lr=0.5)
    rates = ExponentialLR(opt, 0.9)
    for _ in range(2):
        for index, batch in enumerate(batches()):
            (loss_of(network, batch) / 2).backward()
            if index % 2:
                nn.utils.clip_grad_value_(network.parameters(), 0.02)
                opt.step()
                opt.zero_grad()
                rates.step()
    assert_same(module, network)
    assert trainer.global_step == 6


def test_steps_of_a_bare_optimizer_are_counted_too(tmp_path):
    class Raw(Net):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.trainer.optimizers[0]
            optimizer.zero_grad()
            loss_of(self.net, batch).backward()
            optimizer.step()

    module = Raw()
    assert fit(tmp_path, module).global_step == 14
    assert_same(module, bare_loop(2, lambda _: 1)[0])


def test_toggle_model_leaves_one_optimizers_parameters_on(tmp_path):
    class Toggles(Manual):
        def training_step(self, batch, batch_idx):
            _, two = self.optimizers()
            with two.toggle_model():
                self.needed.append((self.a.weight.requires_grad, self.b.weight.requires_grad))
            self.needed.append((self.a.weight.requires_grad, self.b.weight.requires_grad))

    module = Toggles()
    fit(tmp_path, module, limit_train_batches=2, epochs=1)
    assert module.needed == [(False, True), (True, True)] * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"gradient_clip_val": 1.0},
            "`gradient_clip_val=1.0` does nothing in manual optimization: call `self.clip_grad",
        ),
        ({"accumulate_grad_batches": 2}, "`accumulate_grad_batches` does nothing in manual optimization"),
        ({"accumulate_grad_batches": {3: 2}}, "`accumulate_grad_batches` does nothing in manual optimization"),
    ],
)
def test_arguments_that_do_nothing_in_manual_optimization_are_refused(tmp_path, arguments, words):
    with pytest.raises(MisconfigurationError, match=words):
        fit(tmp_path, Manual(), **arguments)


def test_frequencies_are_refused_in_manual_optimization(tmp_path):
    module = Manual(configure=lambda m: [{"optimizer": SGD(m.parameters(), lr=0.1), "frequency": 1}])
    with pytest.raises(MisconfigurationError, match="`frequency` of optimizers does nothing in manual"):
        fit(tmp_path, module)


def test_manual_backward_is_refused_where_the_trainer_optimizes(tmp_path):
    class Wrong(Net):
        def training_step(self, batch, batch_idx):
            self.manual_backward(loss_of(self.net, batch))

    with pytest.raises(MisconfigurationError, match="set `self.automatic_optimization = False`, or return the loss"):
        fit(tmp_path, Wrong())


def test_clipping_in_two_places_that_differ_is_refused(tmp_path):
    class Other(Net):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            self.clip_gradients(optimizer, gradient_clip_val=0.5)

    with pytest.raises(MisconfigurationError, match="`clip_gradients\\(gradient_clip_val=0.5\\)`, but the Trainer has"):
        fit(tmp_path, Other(), gradient_clip_val=0.1)
    fit(tmp_path, Other(), gradient_clip_val=0.5)


# -- schedulers -------------------------------------------------------------------------------------------------------


def with_scheduler(make, **options):
    def configure(module):
        optimizer = SGD(module.parameters(), lr=0.2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), **options}}

    return configure


@pytest.mark.parametrize(
    ("interval", "frequency", "group", "when"),
    [
        ("epoch", 1, 1, lambda epoch, step, last: last),
        ("epoch", 2, 1, lambda epoch, step, last: last and epoch % 2 == 1),
        ("step", 1, 1, lambda epoch, step, last: True),
        ("step", 3, 1, lambda epoch, step, last: step % 3 == 0),
        ("step", 2, 3, lambda epoch, step, last: step % 2 == 0),
        ("epoch", 1, 3, lambda epoch, step, last: last),
    ],
)
def test_schedulers_equal_a_bare_loop(tmp_path, interval, frequency, group, when):
    module = Net(with_scheduler(lambda o: ExponentialLR(o, 0.7), interval=interval, frequency=frequency))
    fit(tmp_path, module, epochs=4, accumulate_grad_batches=group)
    network = net()
    opt = SGD(network.parameters(), lr=0.2)
    rates = ExponentialLR(opt, 0.7)
    step = 0
    for epoch in range(4):
        starts = range(0, BATCHES, group)
        for start in starts:
            together = batches()[start : start + group]
            opt.zero_grad()
            for batch in together:
                loss = loss_of(network, batch)
                (loss / len(together)).backward()
            opt.step()
            step += 1
            if when(epoch, step, start == starts[-1]):
                rates.step()
    assert_same(module, network)


class Validated(Net):
    """Its validation loss is what `values` says, in turn."""

    def __init__(self, configure, values, name="val_loss"):
        super().__init__(configure)
        self.values = iter(values)
        self.name = name
        self.rates = []

    def validation_step(self, batch, batch_idx):
        pass

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.log(self.name, next(self.values))

    def on_train_epoch_start(self):
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    on_train_end = on_train_epoch_start


def plateau(**options):
    return with_scheduler(lambda o: ReduceLROnPlateau(o, patience=0, factor=0.5), **{"monitor": "val_loss", **options})


def test_a_scheduler_on_a_plateau_waits_for_sparse_validations(tmp_path):
    module = Validated(plateau(), [1.0, 2.0, 3.0])
    fit(tmp_path, module, epochs=6, val=loader(), check_val_every_n_epoch=2)
    assert module.rates == [0.2, 0.2, 0.2, 0.2, 0.1, 0.1, 0.05]  # after epochs 2, 4 and 6: worse at 4 and at 6


def test_a_scheduler_on_a_plateau_that_is_stepped_per_step_uses_the_newest_value(tmp_path):
    def configure(module):
        optimizer = SGD(module.parameters(), lr=1e-9)
        rates = ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=9.0, threshold_mode="abs", eps=0.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": rates, "interval": "step", "monitor": "train_loss"},
        }

    module = Net(configure)
    trainer = fit(tmp_path, module, epochs=1)
    assert trainer.global_step == BATCHES
    ends = []
    module.on_train_end = lambda: ends.append(module.trainer.optimizers[0].param_groups[0]["lr"])
    fit(tmp_path, module, epochs=1)
    assert ends == [1e-9 * 0.5 ** (BATCHES - 1)]  # the first value is the best, the others are no better by enough


def test_a_missing_monitor_is_an_error_or_a_warning_that_lists_what_is_there(tmp_path):
    with pytest.raises(
        MisconfigurationError, match="monitors `val_los`, which was not logged. Logged were: .*val_loss"
    ):
        fit(tmp_path, Validated(plateau(monitor="val_los"), [1.0] * 9), val=loader())
    with pytest.warns(UserWarning, match="monitors `val_los`, which was not logged"):
        fit(tmp_path, Validated(plateau(monitor="val_los", strict=False), [1.0] * 9), val=loader())


def test_an_own_scheduler_step_gets_the_metric(tmp_path):
    calls = []

    class Own(Validated):
        def lr_scheduler_step(self, scheduler, metric):
            calls.append((type(scheduler).__name__, metric))

    def configure(module):
        optimizer = SGD(module.parameters(), lr=0.1)
        return [optimizer], [
            StepLR(optimizer, 1),
            {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val_loss"},
        ]

    fit(tmp_path, Own(configure, [5.0, 6.0]), val=loader())
    assert calls == [("StepLR", None), ("ReduceLROnPlateau", 5.0), ("StepLR", None), ("ReduceLROnPlateau", 6.0)]


def test_no_scheduler_is_stepped_before_the_first_optimizer_step(tmp_path):
    class Idle(Net):
        def training_step(self, batch, batch_idx):
            return None

    module = Idle(with_scheduler(lambda o: LambdaLR(o, lambda n: 0.5**n)))
    rates = []
    module.on_train_end = lambda: rates.append(module.trainer.optimizers[0].param_groups[0]["lr"])
    fit(tmp_path, module)
    assert rates == [0.2]


# -- resuming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (Two, {}),
        (Two, {"accumulate_grad_batches": 3}),
        (Manual, {}),
        (lambda: Two(lambda m: [{"optimizer": SGD(n.parameters(), lr=0.1), "frequency": 2} for n in (m.a, m.b)]), {}),
    ],
)
@pytest.mark.parametrize("stop_after", [1, 4, 6, 7, 9])
def test_a_fit_with_several_optimizers_goes_on_exactly(tmp_path, make, arguments, stop_after):
    whole = make()
    fit(tmp_path, whole, **arguments)
    path = str(tmp_path / "stop.ckpt")

    first = make()
    seen = itertools.count(1)

    def save(outputs, batch, batch_idx):
        if next(seen) == stop_after:
            first.trainer.save_checkpoint(path)

    first.on_train_batch_end = save
    fit(tmp_path, first, **arguments)
    second = make()
    quiet_trainer(tmp_path, max_epochs=2, **arguments).fit(second, loader(), ckpt_path=path)
    assert_equal_weights(second, whole)


def test_gradients_that_a_module_adds_up_by_hand_survive_a_resume(tmp_path):
    class Adds(Net):
        automatic_optimization = False
        path = None

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            self.manual_backward(loss_of(self.net, batch))
            if (batch_idx + 1) % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()

        def on_train_batch_end(self, outputs, batch, batch_idx):
            if self.path and batch_idx == 4:
                self.trainer.save_checkpoint(self.path)

    whole, first, second = Adds(), Adds(), Adds()
    fit(tmp_path, whole, epochs=1)
    first.path = str(tmp_path / "a.ckpt")
    fit(tmp_path, first, epochs=1)
    quiet_trainer(tmp_path, max_epochs=1).fit(second, loader(), ckpt_path=first.path)
    assert_equal_weights(second, whole)
    assert copy.deepcopy(second).net is not second.net
