"""Settings of a model: resolved to a configuration of transformers, and back to plain values."""

import copy
import hashlib
import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skippipe.errors import InputError, in_file, unexpected
from skippipe.model.families import Family, family_of
from skippipe.model.folder import CONFIG, find_folder, read_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PretrainedConfig

_AT_LEAST_1 = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "sliding_window",
    "num_local_experts",
    "num_experts_per_tok",
    "n_inner",
    "original_max_position_embeddings",
    "query_pre_attn_scalar",
)
_SHARES = ("attention_dropout", "hidden_dropout", "router_jitter_noise", "attn_pdrop", "embd_pdrop", "resid_pdrop")
_AT_LEAST_0 = ("initializer_range", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "router_aux_loss_coef")
_ABOVE_0 = ("attn_logit_softcapping", "final_logit_softcapping")
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
_LAYER_TYPES = ("full_attention", "sliding_attention")
_NO_SETTINGS = ("use_cache", "pretraining_tp", "classifier_dropout", "is_decoder", "summary_")
"""Fields of configurations that training does not use, or how their names begin."""
_buildable = set[str]()
"""Hashes of the configurations of which a layer has been built in this process."""


def weights_folder(model: "Mapping[str, Any]") -> Path | None:
    """The folder of a model's weights, if `folder` is set; raises `InputError` if it cannot be used."""
    return find_folder(model["folder"]) if "folder" in model else None


def resolved_settings(model: "Mapping[str, Any]") -> dict[str, Any]:
    """Resolve settings of the user to plain ones, without torch.

    Args:
        model: the settings themselves; or `folder` and settings on top of its `config.json`.

    Returns:
        The settings, without `folder`. Those from a file include keys that are no settings of a model, and may have the
        names that older versions of transformers had for them.

    Raises:
        InputError: the folder or its file cannot be used.

    """
    folder = weights_folder(model)
    settings = (read_config(folder) if folder else {}) | _own(model)
    return family_of(settings.get("model_type")).with_common_names(settings)


def model_config(model: "Mapping[str, Any]") -> "PretrainedConfig":
    """Make a model's configuration.

    Args:
        model: `model_type`, one of `FAMILIES`, and any of the settings that transformers has for it by the same names,
            such as `hidden_size`; what is not given has the default of transformers. Plain values. Or `folder`, whose
            `config.json` has all that, and settings that override it.

    Raises:
        InputError: an architecture or setting is unknown, or a value cannot be used; the message names the key, and
            the file where the value is from one.

    """
    folder, own = weights_folder(model), _own(model)
    if folder is None:
        return _config(own)
    config = _config_in(folder)
    if not own:
        return config
    kind = own.setdefault("model_type", config.model_type)
    if kind != config.model_type:
        raise unexpected("model.model_type", kind, f"{config.model_type} as in {folder / CONFIG}")
    return _config(plain_settings(config) | own)


def _own(model: "Mapping[str, Any]") -> dict[str, Any]:
    """All settings but `folder`."""
    return {key: value for key, value in model.items() if key != "folder"}


def _config_in(folder: Path) -> "PretrainedConfig":
    """Make the configuration that a folder has; transformers knows what settings were called in its older versions."""
    content, path = read_config(folder), str(folder / CONFIG)
    make: Any = family_of(content["model_type"]).config_class()
    try:
        config: PretrainedConfig = make.from_dict(content)
    except Exception as error:  # whatever transformers raises, it is about this file
        raise InputError(one_line(error), file=path) from error
    try:
        return _config(plain_settings(config))
    except InputError as error:
        raise in_file(error, path) from error


def _config(settings: "Mapping[str, Any]") -> "PretrainedConfig":
    family = family_of(settings.get("model_type"))
    named = family.with_common_names(settings)
    given = {key: copy.deepcopy(value) for key, value in named.items() if key != "model_type"}
    _check_names(given, family)
    for key, value in given.items():
        _check(key, value)
    make: Any = family.config_class()
    try:
        config: PretrainedConfig = make(**given, use_cache=False)
    except Exception as error:  # whatever transformers raises, it is about these settings
        raise InputError(one_line(error), key="model") from error
    _check_off(config, family)
    _check_heads(config)
    _check_rotary_width(config)
    _check_parts(config)
    _check_buildable(config, family)
    return config


def plain_settings(config: "PretrainedConfig") -> dict[str, Any]:
    """Every setting of a configuration, defaults included: `model_config` of the result is the same configuration."""
    family = family_of(config.model_type)
    return {"model_type": family.model_type} | {key: getattr(config, key) for key in _setting_names(family)}


def config_sha256(config: "PretrainedConfig") -> str:
    """Hash of every setting, in hexadecimal: equal where two ranks build the same model."""
    text = json.dumps(plain_settings(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _setting_names(family: Family) -> list[str]:
    """What an architecture can be set to, in the order in which transformers declares it."""
    own = inspect.get_annotations(family.config_class())
    names = [name for name, kind in own.items() if "ClassVar" not in str(kind) and not name.startswith(_NO_SETTINGS)]
    return [family.own_names.get(name, name) for name in names]


def _check_names(given: "Mapping[str, Any]", family: Family) -> None:
    known = _setting_names(family)
    for key in given:
        if key not in known:
            hint = f"choose from {', '.join(known)}"
            raise InputError(f"unknown setting of {family.model_type}", key=f"model.{key}", hint=hint)


def _check(key: str, value: Any) -> None:
    """Check one value by itself; types that are not checked here are checked by transformers."""
    if value is None:
        return
    if key in _AT_LEAST_1 and (not _is_int(value) or value < 1):
        raise _refusal(key, value, "an integer of at least 1")
    if key in _SHARES and not (_is_number(value) and 0 <= value < 1):
        raise _refusal(key, value, "a number of at least 0 and below 1")
    if key in _AT_LEAST_0 and not (_is_number(value) and 0 <= value < float("inf")):
        raise _refusal(key, value, "a finite number of at least 0")
    if key in _ABOVE_0 and not (_is_number(value) and 0 < value < float("inf")):
        raise _refusal(key, value, "a finite number of more than 0")
    if key == "layer_types" and not (isinstance(value, list) and all(kind in _LAYER_TYPES for kind in value)):
        raise _refusal(key, value, f"a list of {' and '.join(_LAYER_TYPES)}")
    if key in _ACTIVATIONS:
        _check_activation(key, value)
    if key == "rope_parameters":
        for name, rotary in _rotaries(value).items():
            _check_rotary(name, rotary)


def _rotaries(parameters: Any) -> dict[str, Any]:
    """Settings of each rotary embedding by their key: one for all layers, or one for each kind of layer."""
    kinds = [kind for kind in _LAYER_TYPES if isinstance(parameters, dict) and kind in parameters]
    if not kinds:
        return {"rope_parameters": parameters}
    return {f"rope_parameters.{kind}": parameters[kind] for kind in kinds}


def _check_activation(key: str, value: Any) -> None:
    from transformers.activations import ACT2FN  # noqa: PLC0415 - imports torch

    if not isinstance(value, str) or value not in ACT2FN:
        raise _refusal(key, value, f"one of {', '.join(sorted(ACT2FN))}")


def _check_rotary(key: str, value: Any) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: PLC0415 - imports torch

    if not isinstance(value, dict):
        raise _refusal(key, value, "a mapping")
    kind, theta = value.get("rope_type", "default"), value.get("rope_theta", 1.0)
    kinds = sorted({"default", *ROPE_INIT_FUNCTIONS})
    if kind not in kinds:
        raise _refusal(f"{key}.rope_type", kind, f"one of {', '.join(kinds)}")
    if not (_is_number(theta) and 0 < theta < float("inf")):
        raise _refusal(f"{key}.rope_theta", theta, "a finite number of more than 0")
    share = value.get("partial_rotary_factor", 1.0)
    if not (_is_number(share) and 0 < share <= 1):
        raise _refusal(f"{key}.partial_rotary_factor", share, "a number of more than 0 and at most 1")


def _check_off(config: Any, family: Family) -> None:
    for key, reason in family.off.items():
        if getattr(config, key):
            raise unexpected(f"model.{key}", getattr(config, key), "false", hint=reason)


def _check_heads(config: Any) -> None:
    """Check what attention heads must fit; transformers would fail later, in the middle of a forward pass."""
    heads, groups = config.num_attention_heads, getattr(config, "num_key_value_heads", None) or 1
    if heads % groups:
        raise _refusal("num_key_value_heads", groups, f"a divisor of num_attention_heads ({heads})")
    if getattr(config, "head_dim", None) is None and config.hidden_size % heads:
        raise _refusal("num_attention_heads", heads, f"a divisor of hidden_size ({config.hidden_size})")


def _check_rotary_width(config: Any) -> None:
    """Check that rotary embeddings, if any, turn pairs of dimensions."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parameters = getattr(config, "rope_parameters", None)
    for rotary in _rotaries(parameters).values() if parameters else ():
        turned = int(width * rotary.get("partial_rotary_factor", 1.0))
        if turned < 2 or turned % 2:
            found = f"{turned} of {width} (head_dim, or hidden_size / num_attention_heads)"
            raise unexpected("model", found, "rotary embeddings over an even number of at least 2 dimensions of a head")


def _check_parts(config: Any) -> None:
    """Check what other settings must fit."""
    chosen, experts = getattr(config, "num_experts_per_tok", 1), getattr(config, "num_local_experts", 1)
    if chosen > experts:
        raise _refusal("num_experts_per_tok", chosen, f"at most num_local_experts ({experts})")
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if kinds is not None and len(kinds) != config.num_hidden_layers:
        raise _refusal("layer_types", kinds, f"one for each of {config.num_hidden_layers} layers")
    if kinds is not None and window is None and "sliding_attention" in kinds:
        switch = "use_sliding_window=true and " if hasattr(config, "use_sliding_window") else ""
        raise _refusal("sliding_window", window, f"{switch}a number for layers of sliding attention")
    pad = config.pad_token_id
    if pad is not None and not 0 <= pad < config.vocab_size:
        raise _refusal("pad_token_id", pad, f"a token below vocab_size ({config.vocab_size})")


def _check_buildable(config: "PretrainedConfig", family: Family) -> None:
    """Build one layer without memory, so that a value that no check above knows is refused here.

    It takes longer than all other checks together, so the same settings are built once in a process.
    """
    from skippipe.model.stage_module import empty_stage_module  # noqa: PLC0415 - torch is imported only where a model is built

    settings = config_sha256(config)
    if settings in _buildable:
        return
    try:
        empty_stage_module(config, stage=0, layers=range(1), first=True)
    except Exception as error:
        reason = f"transformers cannot build a {family.model_type} of these settings: {one_line(error)}"
        raise InputError(reason, key="model") from error
    _buildable.add(settings)


def _refusal(key: str, value: Any, expected: str) -> InputError:
    return unexpected(f"model.{key}", repr(value), expected)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def one_line(error: BaseException) -> str:
    """Message of another package's error in one line."""
    return " ".join(str(error).split()) or type(error).__name__
