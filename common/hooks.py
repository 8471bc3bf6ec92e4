"""Changing the residual stream at layer boundaries.

A boundary `l` is the input of layer `l`, `X[l]` [batch, tokens, channels]; boundary `N` is the input of the final norm.

Temporary: `scale_stream` multiplies what the layer really receives: patches act first.

Lasting: a *patch* is any module `[batch, tokens, channels] -> same` that a method inserts at a boundary. It is held by a
forward pre-hook on the module that receives the boundary, and not registered as a submodule. So the model's own
`state_dict`, parameter count and `save_pretrained` stay exactly those of the plain architecture
(`common.models.checkpoint` writes patches beside it), the patch keeps its own dtype when the model is cast, cached
generation works because the layer is still the same layer, `copy.deepcopy` copies it, and it travels with its layer
when others are removed. The price: `model.parameters()` does not list it (use `patch_parameters`), and it follows the
model to another device on its next call.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from common.models.architectures import boundary_module, check_one_basis, layer_list
from common.utils.errors import UserError
from common.utils.plugins import import_modules

PatchLoader = Callable[[dict[str, Tensor], dict], nn.Module]
PATCH_LOADERS: dict[str, PatchLoader] = {}


def register_patch(kind: str, loader: PatchLoader) -> None:
    """Register the loader of a kind of patch.

    ``loader(tensors, options)`` rebuilds the module from its state dict and from the JSON-able mapping in the module's
    attribute `options` when it was saved, {} if it had none.
    """
    PATCH_LOADERS[kind] = loader


def patch_loader(kind: str) -> PatchLoader | None:
    """Return the loader of a kind of patch, None if it is unknown.

    Modules that register loaders are imported when they are needed: those of `common.baselines`, and of a kind
    ``my-kind`` also ``papers/my_kind.py`` or ``papers/my_kind/patch.py``.
    """
    if kind not in PATCH_LOADERS:
        import_modules("common.baselines")
    if kind not in PATCH_LOADERS and (name := kind.replace("-", "_")).isidentifier():
        method = find_spec(f"papers.{name}")
        if method is not None and method.submodule_search_locations is not None:
            method = find_spec(f"papers.{name}.patch")
        if method is not None:
            importlib.import_module(method.name)
    return PATCH_LOADERS.get(kind)


@contextmanager
def scale_stream(model: nn.Module, layer: int, factor: float | Tensor) -> Iterator[None]:
    """Multiply the input of layer `layer` by `factor`, a number or a tensor [channels], while the context is open."""

    def hook(_module, args):
        scale = factor.to(args[0]) if isinstance(factor, Tensor) else factor
        return (args[0] * scale, *args[1:])

    with boundary_module(model, layer).register_forward_pre_hook(hook):
        yield


class PatchHook:
    """The pre-hook that applies a patch; patches on a model are recognised by this class."""

    def __init__(self, module: nn.Module, kind: str):
        self.module = module
        self.kind = kind

    def __call__(self, _receiver: nn.Module, args: tuple):
        """Return the arguments of the layer with the patched hidden states."""
        hidden = args[0]
        parameter = next(self.module.parameters(), None)
        if parameter is not None and parameter.device != hidden.device:
            with torch.inference_mode(False):  # else the moved parameters could never be trained again
                self.module.to(hidden.device)
        return (self.module(hidden).to(hidden.dtype), *args[1:])


@dataclass(frozen=True)
class Patch:
    """A patch on a model, acting on `X[position]`; positions count the model's present layers."""

    position: int
    kind: str
    module: nn.Module


def attach_patch(model: nn.Module, position: int, module: nn.Module, kind: str | None = None) -> Patch:
    """Insert `module` at boundary `position` (0..N of the present model), in place; several at one boundary act in order.

    ``kind`` is the name under which its loader is registered (`register_patch`); default `module.kind`.
    """
    kind = kind or getattr(module, "kind", None)
    if not isinstance(kind, str):
        raise UserError(f"cannot attach {type(module).__name__}: it has no kind; pass kind= or give the class one")
    check_one_basis(model)
    receiver = boundary_module(model, position)
    parameter = next(receiver.parameters(), None)
    if parameter is not None and not parameter.is_meta:  # meta: offloaded, the layer's weights come when it runs
        module.to(parameter.device)
    receiver.register_forward_pre_hook(PatchHook(module, kind))
    return Patch(position, kind, module)


def patches(model: nn.Module) -> list[Patch]:
    """Return every patch on the model, in order of execution."""
    positions = range(len(layer_list(model)) + 1)
    return [Patch(at, hook.kind, hook.module) for at in positions for hook in patch_hooks(boundary_module(model, at))]


def patch_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of all patches (they are not among `model.parameters()`)."""
    return [parameter for patch in patches(model) for parameter in patch.module.parameters()]


def compares_tokens(model: nn.Module) -> bool:
    """Return whether a patch compares the tokens of a sequence, so that padding would change its effect.

    The module of such a patch has a true attribute `compares_tokens`.
    """
    return any(getattr(patch.module, "compares_tokens", False) for patch in patches(model))


def refuse_patches(model: nn.Module, what: str) -> None:
    """Refuse a model that carries a patch; ``what`` names the work that needs a model without.

    Raises:
        UserError: the model carries a patch.
    """
    if attached := patches(model):
        raise UserError(
            f"{what} needs a model without patches, and this one has a {attached[0].kind} patch before layer "
            f"{attached[0].position}; take the model that it was made for, and patch it afterwards"
        )


def patch_hooks(receiver: nn.Module) -> list[PatchHook]:
    """Return the patch hooks on one module, in order of execution."""
    return [hook for hook in receiver._forward_pre_hooks.values() if isinstance(hook, PatchHook)]


def take_patch_hooks(receiver: nn.Module) -> list[PatchHook]:
    """Remove the patch hooks of one module and return them, in order of execution."""
    hooks = patch_hooks(receiver)
    for key in [key for key, hook in receiver._forward_pre_hooks.items() if isinstance(hook, PatchHook)]:
        del receiver._forward_pre_hooks[key]
    return hooks
