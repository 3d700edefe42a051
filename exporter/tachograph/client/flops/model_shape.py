"""The dimensions of a decoder that decide what a token costs, given by hand or read from a Hugging Face configuration.

What cannot be read is refused by name: a guessed width would give an MFU that looks right and is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import NamedTuple

FAMILIES = {
    "gpt2": False, "gpt_neox": False, "nemotron": False, "phi": False, "starcoder2": False,
    "cohere": True, "cohere2": True, "deepseek_v2": True, "deepseek_v3": True, "gemma": True, "gemma2": True,
    "gemma3_text": True, "glm": True, "glm4": True, "glm4_moe": True, "gpt_oss": True, "granite": True,
    "llama": True, "mistral": True, "mixtral": True, "olmo": True, "olmo2": True, "olmo3": True, "olmoe": True,
    "phi3": True, "qwen2": True, "qwen2_moe": True, "qwen3": True, "qwen3_moe": True, "smollm3": True, "stablelm": True,
}  # fmt: skip
"""model_type -> whether its MLP is gated (three matrices, as in SwiGLU) or not (two): configurations do not say.

With Transformers 5.23, `active_parameters` finds in each of them exactly the matrices its own modules have."""

WINDOWED_THROUGHOUT = ("mistral", "mixtral", "phi3", "starcoder2")
"""Families whose `sliding_window` holds in each layer; the others mix, and tell by `layer_types`."""

NOT_COUNTED = (
    "is_encoder_decoder", "multi_query", "new_decoder_architecture", "attention_chunk_size", "intermediate_size_mlp",
    "add_cross_attention", "linear_num_key_heads", "mamba_d_state", "ssm_state_size", "state_size",
)  # fmt: skip
"""Keys that stand for matrix multiplications, or a lack of them, that `ModelShape` has no field for."""

ATTENTION_KINDS = ("full_attention", "sliding_attention")
MLP_KINDS = ("dense", "sparse")

OTHER_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
}
"""The same keys as GPT-2's configuration file names them."""

LARGEST = 100_000_000
"""No dimension of a model and no context comes near; what lies above is a slip or hostile."""


class Experts(NamedTuple):
    """A mixture of experts: `active` of `routed` experts of `width` compute each token, in `layers` layers.

    `shared` is the summed width of the experts that compute every token, `shared_gate` whether these are weighted by a
    gate of their own (one more output of the router). Layers without experts have the dense MLP.
    """

    routed: int
    active: int
    width: int
    layers: int
    shared: int = 0
    shared_gate: bool = False


class Latent(NamedTuple):
    """Multi-head latent attention: ranks of the compressed queries (0: not compressed) and of the keys and values.

    `rotary` of each key's dimensions come from the hidden state directly and are shared by all heads.
    """

    query_rank: int
    rank: int
    rotary: int


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer; ValueError lists everything about it that cannot be.

    `kv_heads` is `heads` without grouped-query attention. `head` is the size of a query and of a key, `value` of a
    value (0: the same). `mlp` is the inner width of the dense MLP, `gated` whether it has three matrices. In
    `windowed_layers` of the layers a token meets `window` tokens at most, itself included.
    """

    _: KW_ONLY
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocabulary: int
    gated: bool
    value: int = 0
    window: int = 0
    windowed_layers: int = 0
    experts: Experts | None = None
    latent: Latent | None = None

    def __post_init__(self) -> None:
        optional = ("value", "window", "windowed_layers")
        sizes = {field.name: getattr(self, field.name) for field in fields(self)}
        faults = size_faults(
            {key: sizes[key] for key in sizes if key not in (*optional, "gated", "experts", "latent")}, 1
        )
        faults += size_faults({key: sizes[key] for key in optional}, 0)
        if self.experts is not None:
            faults += size_faults({f"experts.{key}": getattr(self.experts, key) for key in Experts._fields[:4]}, 1)
            faults += size_faults({"experts.shared": self.experts.shared}, 0)
        if self.latent is not None:
            faults += size_faults({"latent.query_rank": self.latent.query_rank, "latent.rotary": self.latent.rotary}, 0)
            faults += size_faults({"latent.rank": self.latent.rank}, 1)
        if not faults:
            faults = [sentence for broken, sentence in self._contradictions() if broken]
        if faults:
            raise ValueError("; ".join(faults))

    def _contradictions(self) -> list[tuple[bool, str]]:
        experts, latent = self.experts, self.latent
        return [
            (self.heads % self.kv_heads != 0, f"heads {self.heads} are no multiple of kv_heads {self.kv_heads}"),
            (self.windowed_layers > self.layers, f"windowed_layers {self.windowed_layers} > layers {self.layers}"),
            (self.windowed_layers > 0 and not self.window, "windowed_layers without a window"),
            (experts is not None and experts.active > experts.routed, "experts.active > experts.routed"),
            (experts is not None and experts.layers > self.layers, "experts.layers > layers"),
            (latent is not None and latent.rotary > self.head, "latent.rotary > head"),
        ]


def shape_of(config: object, *, gated: bool | None = None) -> ModelShape:
    """Return the shape that a Hugging Face configuration (an object, or the dict of its `config.json`) describes.

    `gated` is needed where `model_type` is not in `FAMILIES`; who gives it vouches that the keys mean what they mean
    in Llama. ValueError names each key that is missing, cannot be right, or stands for something not counted here.
    As in that library, `num_key_value_heads` is `num_attention_heads` and `head_dim` is their share of `hidden_size`
    where absent. `tie_word_embeddings` is not read: tied or not, the head is one matmul and the lookup is none. Layers
    that predict further tokens (`num_nextn_predict_layers`) are not counted: that library does not train them.
    """
    read = _Config(config)
    family = read.value("model_type")
    if gated is None:
        gated = FAMILIES.get(family) if isinstance(family, str) else None
    if gated is None:
        read.faults.append(f"model_type {family!r} is not known: say gated=")
    read.faults += [f"{key} is not counted here" for key in NOT_COUNTED if read.value(key)]
    if read.value("hidden_size", "n_embd") is None and read.value("text_config") is not None:
        read.faults.append("this is a configuration of several models: give its text_config")
    layers, hidden = read.size("num_hidden_layers"), read.size("hidden_size")
    heads, vocabulary = read.size("num_attention_heads"), read.size("vocab_size")
    if family == "gpt2" and read.value("n_inner", "intermediate_size") is None:
        mlp = 4 * hidden  # what GPT2Config documents for None
    else:
        mlp = read.size("intermediate_size")
    read.check()
    latent, head, value = _attention(read, hidden, heads)
    window, windowed_layers = _window(read, layers)
    experts = _experts(read, layers)
    kv_heads = read.size("num_key_value_heads", absent=heads)
    read.check()
    return ModelShape(
        layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head=head, value=value, mlp=mlp,
        vocabulary=vocabulary, gated=bool(gated), window=window, windowed_layers=windowed_layers, experts=experts,
        latent=latent,
    )  # fmt: skip


def size_faults(sizes: Mapping[str, object], least: int) -> list[str]:
    """Return a sentence for each of these that is no whole number from `least` to `LARGEST`."""
    return [
        f"{key} is {value!r}, not a whole number from {least} to {LARGEST}"
        for key, value in sizes.items()
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST
    ]


class _Config:
    """Reads keys of a configuration and remembers what was wrong with them, so that all of it is said at once."""

    def __init__(self, config: object) -> None:
        self._config = config
        self.faults: list[str] = []

    def value(self, *keys: str) -> object:
        """Return the first of these keys that is there and not None."""
        config = self._config
        values = (config.get(key) if isinstance(config, Mapping) else getattr(config, key, None) for key in keys)
        return next((value for value in values if value is not None), None)

    def size(self, key: str, *, absent: int | None = None, least: int = 1) -> int:
        """Return a whole number; `absent`, if that is given, where the key is not."""
        value = self.value(key, *((OTHER_NAMES[key],) if key in OTHER_NAMES else ()))
        if value is None and absent is not None:
            return absent
        wrong = [f"{key} is missing"] if value is None else size_faults({key: value}, least)
        self.faults += wrong
        return value if isinstance(value, int) and not wrong else 1

    def items(self, key: str) -> list[object] | None:
        """Return a list; None where the key is absent."""
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, (list, tuple)):
            return list(value)
        self.faults.append(f"{key} is {value!r}, not a list")
        return None

    def kinds(self, key: str, known: tuple[str, ...], layers: int) -> list[object] | None:
        """Return a list with a kind of layer, one of those known, for each layer; None where the key is absent."""
        kinds = self.items(key)
        if kinds is None:
            return None
        self.faults += dict.fromkeys(f"{key}: {kind!r} is not counted here" for kind in kinds if kind not in known)
        if len(kinds) != layers:
            self.faults.append(f"{key} has {len(kinds)} entries for {layers} layers")
        return kinds

    def check(self) -> None:
        """Raise ValueError with all faults so far."""
        if self.faults:
            raise ValueError("; ".join(self.faults))


def _attention(read: _Config, hidden: int, heads: int) -> tuple[Latent | None, int, int]:
    if read.value("kv_lora_rank") is not None:
        # its `head_dim` is the rotary part alone
        rotary = read.size("qk_rope_head_dim", least=0)
        latent = Latent(read.size("q_lora_rank", absent=0), read.size("kv_lora_rank"), rotary)
        return latent, read.size("qk_nope_head_dim") + rotary, read.size("v_head_dim")
    if read.value("head_dim") is None and hidden % heads:
        read.faults.append(f"head_dim is missing, and hidden_size {hidden} is no multiple of {heads} heads")
    return None, read.size("head_dim", absent=max(hidden // heads, 1)), 0


def _window(read: _Config, layers: int) -> tuple[int, int]:
    kinds = read.kinds("layer_types", ATTENTION_KINDS, layers)
    if kinds is not None:
        windowed = kinds.count("sliding_attention")
        return (read.size("sliding_window"), windowed) if windowed else (0, 0)
    if read.value("use_sliding_window") is False or not read.value("sliding_window"):
        return 0, 0
    if read.value("model_type") not in WINDOWED_THROUGHOUT:
        read.faults.append("layer_types is missing: which layers have the sliding_window?")
    return read.size("sliding_window"), layers


def _experts(read: _Config, layers: int) -> Experts | None:
    key = next((key for key in ("num_local_experts", "n_routed_experts", "num_experts") if read.value(key)), None)
    if key is None:
        return None
    # Mixtral and its like have no other width; where both are given, `intermediate_size` is the dense layers'
    alone = key == "num_local_experts" or read.value("model_type") == "olmoe"
    width = "intermediate_size" if alone and read.value("moe_intermediate_size") is None else "moe_intermediate_size"
    sparse = _sparse(read, layers)
    if not sparse:
        return None
    expert = read.size(width)
    summed = read.size("shared_expert_intermediate_size", absent=0, least=0)
    return Experts(
        routed=read.size(key), active=read.size("num_experts_per_tok"), width=expert, layers=sparse,
        shared=summed or read.size("n_shared_experts", absent=0, least=0) * expert, shared_gate=summed > 0,
    )  # fmt: skip


def _sparse(read: _Config, layers: int) -> int:
    """Return how many layers have experts: the rules of DeepSeek (a dense start) and of Qwen (every n-th), together."""
    dense_start = read.size("first_k_dense_replace", absent=0, least=0)
    step, frequency = read.size("decoder_sparse_step", absent=1), read.size("moe_layer_freq", absent=1)
    dense = read.items("mlp_only_layers") or []
    kinds = read.kinds("mlp_layer_types", MLP_KINDS, layers)
    if kinds is not None:
        return kinds.count("sparse")
    return sum(
        layer >= dense_start and layer not in dense and (layer + 1) % step == 0 and layer % frequency == 0
        for layer in range(layers)
    )
