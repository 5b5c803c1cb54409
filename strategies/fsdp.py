"""Sharded data parallel training: each worker holds a part of weights, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.config import TrainerConfig
from paceline.errors import MisconfigurationError
from paceline.strategies.accelerators import Accelerator
from paceline.strategies.process_group import ProcessGroupStrategy

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

Policy = Collection[type[nn.Module]] | Callable[[nn.Module], bool]

_CALL = "_call_step"


class FSDPStrategy(ProcessGroupStrategy):
    """Trains on several workers with torch's `fully_shard` (FSDP2).

    A group of parameters is gathered when it is needed, and given up again after it was used. The gradients are
    averaged over the workers, so results are those of "ddp". With gradient accumulation they are so after each batch:
    gathering them whole until the group ends would take the memory that sharding saves. Checkpoints are single files,
    as those of the other strategies, which can go on from them, on any number of workers. On one worker nothing is
    sharded.

    Args:
        wrap_policy: the layers whose parameters are gathered together: classes, or a function of a layer. By default
            the items of every ModuleList, which is how models hold their repeated blocks. What is in none of them is
            gathered when the step begins.
        mixed_precision: formats for gathering and reducing; by default those of the parameters. With
            `Trainer(precision="bf16-mixed")` layers compute in bfloat16 all the same.
        cpu_offload: keep the parts on the CPU, and bring them to the device to be used; the optimizer steps on the CPU.
        activation_checkpointing: layers that are computed again in the backward pass instead of keeping what they
            computed: classes, or a function of a layer.
        mesh: (replicas, workers that share one): shard within a node, say, and replicate over nodes (HSDP). By default
            all workers share one.
        reshard_after_forward: give gathered parameters up after the forward pass as well; False is faster and takes
            more memory.

    Raises:
        MisconfigurationError: a policy is neither classes nor a function, or `mesh` no pair of numbers from 1.

    Example:
        >>> Trainer(devices=8, strategy=FSDPStrategy(wrap_policy={Block}, activation_checkpointing={Block}))
    """

    name = "fsdp"

    def __init__(
        self,
        wrap_policy: Policy | None = None,
        mixed_precision: MixedPrecisionPolicy | None = None,
        cpu_offload: bool = False,
        activation_checkpointing: Policy = (),
        mesh: tuple[int, int] | None = None,
        reshard_after_forward: bool = True,
    ) -> None:
        super().__init__()
        self._to_wrap = _items_of_lists if wrap_policy is None else _chooser("wrap_policy", wrap_policy)
        self._to_recompute = _chooser("activation_checkpointing", activation_checkpointing)
        self._mixed_precision = mixed_precision
        self._cpu_offload = cpu_offload
        self._reshard_after_forward = reshard_after_forward
        if mesh is not None and not (len(mesh) == 2 and all(type(size) is int and size >= 1 for size in mesh)):
            raise MisconfigurationError(
                f"`mesh={mesh!r}` must hold the number of replicas and the number of workers of each, such as (2, 4)."
            )
        self._mesh = mesh
        self._order: list[nn.Module] = []
        self._in_root: Callable[..., Any] = self._call

    def refuse(self, config: TrainerConfig, num_workers: int) -> None:
        """Look for what cannot work: clipping by value, and a mesh of another number of workers."""
        super().refuse(config, num_workers)
        if config.gradient_clip_val and config.gradient_clip_algorithm == "value":
            raise MisconfigurationError(
                '`gradient_clip_algorithm="value"` does not go with sharded parameters. Use "norm", which is the norm '
                "over all workers."
            )
        if self._mesh is not None and (self._mesh[0] * self._mesh[1] != num_workers or type(config.devices) is tuple):
            raise MisconfigurationError(
                f"`mesh={self._mesh}` is of {self._mesh[0] * self._mesh[1]} workers, and `devices` and `num_nodes` are "
                f"of {num_workers if type(config.devices) is not tuple else config.devices}."
            )

    def backend(self, accelerator: Accelerator) -> str:
        """With parts on the CPU, one for those beside the one for the device."""
        own = super().backend(accelerator)
        return f"cpu:gloo,{accelerator.name}:{own}" if self._cpu_offload and own != "gloo" else own

    @property
    def inference_tensors_work(self) -> bool:
        """Parameters that are gathered under the inference mode could not be trained afterwards."""
        return not self._has_others

    # -- the module -----------------------------------------------------------------------------------------------

    def setup(self, module: nn.Module) -> None:
        """Bring the module to the device, and keep this worker's part of it."""
        super().setup(module)
        for layer in self._to_recompute(module):
            _recompute(layer)
        if not self._has_others:
            return
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        options = self._options()
        layers = self._to_wrap(module)
        for layer in reversed(layers):  # the inner ones first
            fully_shard(layer, **options)
            layer.register_forward_pre_hook(self._note)
        fully_shard(module, **options)
        self._order = layers
        # A step is a method of its own, not the forward pass that FSDP gathers parameters for.
        setattr(module, _CALL, self._call)
        register_fsdp_forward_method(module, _CALL)
        self._in_root = getattr(module, _CALL)

    def _options(self) -> dict[str, Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy

        sizes, names = (
            (self._mesh, ("replicate", "shard")) if self._mesh else ((self.placement.world_size,), ("shard",))
        )
        options: dict[str, Any] = {
            "mesh": init_device_mesh(self.device.type, sizes, mesh_dim_names=names),
            "reshard_after_forward": self._reshard_after_forward,
        }
        if self._mixed_precision is not None:
            options["mp_policy"] = self._mixed_precision
        if self._cpu_offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
        return options

    def wrap(self, module: nn.Module, step: Callable[..., Any], training: bool) -> Callable[..., Any]:
        """The step with the parameters gathered for it."""
        return partial(self._in_root, step) if self._has_others else step

    def _call(self, step: Callable[..., Any], *args: Any) -> Any:
        self._order = []
        return step(*args)

    def _note(self, layer: nn.Module, _: Any) -> None:
        self._order.append(layer)

    @property
    def steps_together(self) -> bool:  # type: ignore[override]
        """All workers give their parts of the parameters for each forward pass."""
        return self._has_others

    def stand_in(self) -> None:
        """Give this worker's parts to the others, for the layers of the last step, in their order.

        A worker that has had no step yet goes by the order in which the module defines its layers.
        """
        order: list[Any] = self._order

        def gather() -> None:
            for layer in order:
                layer.unshard()
                if self._reshard_after_forward:
                    layer.reshard()

        self._in_root(gather)
        self._order = order

    def teardown(self, module: nn.Module) -> None:
        """Let go of the module, which ends with its worker; alone, it is left on the CPU."""
        for layer in self._to_recompute(module):
            vars(layer).pop("forward", None)
        if not self._has_others:
            super().teardown(module)

    # -- a step ---------------------------------------------------------------------------------------------------

    def clip_gradients(self, optimizer: Optimizer, limit: float, algorithm: str) -> None:
        """Clip by the norm over all workers.

        Raises:
            MisconfigurationError: clipping by value is asked for.
        """
        if algorithm != "norm":
            raise MisconfigurationError(f"`gradient_clip_algorithm={algorithm!r}` does not go with sharded parameters.")
        super().clip_gradients(optimizer, limit, algorithm)

    # -- state ----------------------------------------------------------------------------------------------------

    def whole(self, tensor: Tensor) -> Tensor:
        """All workers' parts together."""
        gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
        return tensor if gather is None else gather()

    def own_part(self, tensor: Tensor) -> Tensor:
        """This worker's part."""
        local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
        return tensor if local is None else local()

    def from_own_part(self, part: Tensor, like: Tensor) -> Tensor:
        """The sharded tensor that a part belongs to."""
        from torch.distributed.tensor import DTensor

        if not isinstance(like, DTensor):
            return super().from_own_part(part, like)
        part = part.to(like.to_local().device)
        return DTensor.from_local(
            part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def shard(self, whole: Any, like: Any) -> Any:
        """This worker's part, which it has no need of the others for."""
        return _sharded_like(like, whole)

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load this worker's part of an optimizer's state."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        shards = {
            index: {name: self.shard(value, parameters[index]) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": shards})


def _recompute(layer: nn.Module) -> None:
    from torch.utils.checkpoint import checkpoint

    # An attribute of this one layer: its class, and the names of its parameters, stay as they are.
    layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _sharded_like(parameter: Any, value: Any) -> Any:
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    value = value.to(parameter.to_local().device)
    # Every worker has read the whole: nothing needs to be sent.
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _chooser(argument: str, policy: Policy) -> Callable[[nn.Module], list[nn.Module]]:
    """A function that gives the layers of a module that a policy means, outer ones first."""
    if isinstance(policy, Collection) and all(isinstance(one, type) for one in policy):
        classes = tuple(policy)
        return lambda module: [one for one in module.modules() if one is not module and isinstance(one, classes)]
    if callable(policy) and not isinstance(policy, type):
        return lambda module: [one for one in module.modules() if one is not module and policy(one)]
    raise MisconfigurationError(
        f"`{argument}={policy!r}` must be classes of layers, as in {{nn.TransformerEncoderLayer}}, or a function that "
        "says of a layer whether it is meant."
    )


def _items_of_lists(module: nn.Module) -> list[nn.Module]:
    return [item for layer in module.modules() if isinstance(layer, nn.ModuleList) for item in layer]
