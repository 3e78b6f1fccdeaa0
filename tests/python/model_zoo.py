"""Models of torchvision, timm and transformers at small sizes, with random weights.

The packages are imported when a model is made. torchvision's own operators are not needed for its models: where its
binary does not fit the installed PyTorch, those that its Python files name are only declared.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

CLASSES = 10
WORDS = 96


@dataclass
class Case:
    """A model, its inputs, and its loss of them."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    loss: Callable[..., torch.Tensor]


@functools.cache
def declare_torchvision() -> torch.library.Library | None:
    """Declares the operators that torchvision's Python files register functions for.

    timm and transformers import torchvision too.
    """
    if importlib.util.find_spec("torchvision") is None:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def logits_of(output: Any) -> torch.Tensor:
    """Returns the logits of a result, also if a model in training adds those of other heads."""
    if isinstance(output, torch.Tensor):
        return output
    return output[0] if isinstance(output, tuple) else output.logits


def classification_loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits_of(model(images)), labels)


def images(batch: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, size, size), torch.randint(CLASSES, (batch,))


def vision(name: str, size: int = 32, batch: int = 8, **options: Any) -> Case:
    """Returns a case with a model of torchvision."""

    def make() -> nn.Module:
        declare_torchvision()
        import torchvision

        return getattr(torchvision.models, name)(num_classes=CLASSES, weights=None, **options)

    return Case(make, functools.partial(images, batch, size), classification_loss)


def timm(name: str, size: int = 32, batch: int = 8, **options: Any) -> Case:
    """Returns a case with a model of timm."""

    def make() -> nn.Module:
        declare_torchvision()
        import timm

        return timm.create_model(name, num_classes=CLASSES, **options)

    return Case(make, functools.partial(images, batch, size), classification_loss)


def mixer() -> Case:
    def make() -> nn.Module:
        declare_torchvision()
        from timm.models import mlp_mixer

        return mlp_mixer.MlpMixer(CLASSES, img_size=32, patch_size=4, num_blocks=3, embed_dim=64)

    return Case(make, functools.partial(images, 8, 32), classification_loss)


# Sizes of language models by the names that most configurations know them by.
_SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
_TOKENS = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
_SEQUENCES = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}


def texts(batch: int, length: int, *, padded: bool, full: bool) -> tuple[torch.Tensor, ...]:
    """Returns tokens and labels, and a mask: of texts of different lengths if `padded`, of equal lengths if `full`."""
    tokens = torch.randint(2, WORDS, (batch, length))
    labels = torch.randint(2, WORDS, (batch, length))
    if full:
        return tokens, labels, torch.ones_like(tokens)
    if not padded:
        return tokens, labels
    lengths = torch.arange(batch) * (length // (2 * batch)) + length // 2
    return tokens, labels, (torch.arange(length) < lengths[:, None]).long()


def text_loss(
    model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    logits = model(input_ids=tokens, **({} if mask is None else {"attention_mask": mask}))
    return functional.cross_entropy(logits_of(logits).flatten(0, 1), labels.flatten())


def sequence_loss(
    model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    masks = {} if mask is None else {"attention_mask": mask}
    return logits_loss(model(input_ids=tokens, decoder_input_ids=labels, **masks), labels)


def logits_loss(output: Any, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits_of(output).flatten(0, 1), labels.flatten())


def transformer(
    config: str, model: str, *, loss: Any = text_loss, padded: bool = False, full: bool = False, **options: Any
) -> Case:
    """Returns a case with a language model of transformers."""

    def make() -> nn.Module:
        declare_torchvision()
        import transformers

        configuration = getattr(transformers, config)(**options)
        if hasattr(configuration, "use_cache"):
            configuration.use_cache = False
        return getattr(transformers, model)(configuration)

    return Case(make, functools.partial(texts, 4, 32, padded=padded, full=full), loss)


def encoder(name: str, **options: Any) -> Case:
    return transformer(f"{name}Config", f"{name}ForMaskedLM", **{**_SIZES, **options})


def decoder(name: str, **options: Any) -> Case:
    return transformer(f"{name}Config", f"{name}ForCausalLM", **{**_SIZES, **_TOKENS, **options})


def sequences(name: str, **options: Any) -> Case:
    sizes = {**_SEQUENCES, **_TOKENS, **options}
    return transformer(f"{name}Config", f"{name}ForConditionalGeneration", loss=sequence_loss, **sizes)


def image_model(config: str, model: str, size: int = 32, **options: Any) -> Case:
    """Returns a case with an image classifier of transformers."""

    def make() -> nn.Module:
        declare_torchvision()
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(num_labels=CLASSES, **options))

    return Case(make, functools.partial(images, 8, size), lambda model, x, y: classification_loss(model, x, y))


def clip() -> Case:
    def make() -> nn.Module:
        declare_torchvision()
        import transformers

        text = {**_SIZES, **_TOKENS}
        image = {key: _SIZES[key] for key in _SIZES if key not in ("vocab_size", "max_position_embeddings")}
        config = transformers.CLIPConfig(
            text_config=text, vision_config={**image, "image_size": 32, "patch_size": 8}, projection_dim=16
        )
        return transformers.CLIPModel(config)

    def inputs() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(2, WORDS, (8, 32)), torch.randn(8, 3, 32, 32)

    def loss(model: nn.Module, tokens: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=tokens, pixel_values=pixels).logits_per_text
        return functional.cross_entropy(logits, torch.arange(logits.shape[0]))

    return Case(make, inputs, loss)


def whisper() -> Case:
    def inputs() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(4, 20, 64), torch.randint(2, WORDS, (4, 16))

    def loss(model: nn.Module, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits_loss(model(input_features=features, decoder_input_ids=labels), labels)

    sizes = {key: size for key, size in _SEQUENCES.items() if key not in ("max_position_embeddings",)}
    lengths = {"num_mel_bins": 20, "max_source_positions": 32, "max_target_positions": 32, "num_hidden_layers": 2}
    case = transformer("WhisperConfig", "WhisperForConditionalGeneration", **sizes, **lengths, **_TOKENS)
    return Case(case.make, inputs, loss)


def wav2vec2() -> Case:
    def make() -> nn.Module:
        declare_torchvision()
        import transformers

        layers = {"conv_dim": (16, 16, 16), "conv_stride": (5, 4, 4), "conv_kernel": (10, 4, 4)}
        config = transformers.Wav2Vec2Config(
            **{key: _SIZES[key] for key in _SIZES if key != "max_position_embeddings"},
            **layers,
            num_feat_extract_layers=3,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=2,
            mask_time_prob=0.0,
            layerdrop=0.0,
            num_labels=CLASSES,
        )
        return transformers.Wav2Vec2ForSequenceClassification(config)

    def inputs() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(4, 3200), torch.randint(CLASSES, (4,))

    return Case(make, inputs, classification_loss)


_SMALL_VIT = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 2}
_SMALL_IMAGE = {**{key: _SIZES[key] for key in list(_SIZES)[1:5]}, "image_size": 32, "patch_size": 4}
_SMALL_SWIN = {"img_size": 32, "window_size": 4, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}
_GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 1}
_LAYERS = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": WORDS, **_TOKENS}
_T5 = {"num_layers": 2, "d_model": 32, "num_heads": 2, "d_kv": 16, "d_ff": 64, "vocab_size": WORDS}

CASES: dict[str, Case] = {
    # torchvision
    "torchvision/squeezenet": vision("squeezenet1_1", 64),
    "torchvision/shufflenet": vision("shufflenet_v2_x0_5", 32),
    "torchvision/mobilenet_v2": vision("mobilenet_v2", 32),
    "torchvision/mnasnet": vision("mnasnet0_5", 32),
    "torchvision/googlenet": vision("googlenet", 64, 4, init_weights=False),
    "torchvision/convnext": vision("convnext_tiny", 64, 4),
    # timm, convolutions
    "timm/resnet": timm("resnet10t", 64, drop_path_rate=0.1),
    "timm/resnext": timm("resnext26ts"),
    "timm/regnet": timm("regnetx_002"),
    "timm/efficientnet": timm("test_efficientnet", 64),
    "timm/efficientnet_gn": timm("test_efficientnet_gn", 64),
    "timm/mobilenetv3": timm("mobilenetv3_small_050", 64),
    "timm/convnext": timm("convnext_atto", 64, drop_path_rate=0.1),
    "timm/convnext_v2": timm("test_convnext2", 64),
    "timm/inception_next": timm("inception_next_atto"),
    "timm/densenet": timm("densenet121", block_config=(2, 2, 2, 2)),
    "timm/dla": timm("dla46_c"),
    "timm/nfnet": timm("test_nfnet", 64),
    "timm/resnest": timm("resnest14d"),
    "timm/sknet": timm("skresnet18"),
    "timm/seresnet": timm("legacy_seresnet18"),
    "timm/resnetv2": timm("resnetv2_18"),
    "timm/vovnet": timm("ese_vovnet19b_slim"),
    "timm/repvgg": timm("repvgg_a0"),
    "timm/byobnet": timm("test_byobnet", 64),
    "timm/mambaout": timm("test_mambaout", 64),
    "timm/starnet": timm("starnet_s1"),
    "timm/fasternet": timm("fasternet_t0", 64),
    "timm/lcnet": timm("lcnet_050", 64),
    "timm/ghostnet": timm("ghostnet_050"),
    "timm/hrnet": timm("hrnet_w18_small", 64, 4),
    # timm, attention
    "timm/vit": timm("vit_tiny_patch16_224", **{**_SMALL_VIT, "num_heads": 2, "drop_rate": 0.1}),
    "timm/deit3": timm("deit3_small_patch16_224", **_SMALL_VIT, num_heads=2, drop_path_rate=0.1),
    "timm/beit": timm("beit_base_patch16_224", **_SMALL_VIT, num_heads=2),
    "timm/cait": timm("cait_xxs24_224", **{**_SMALL_VIT, "embed_dim": 48}),
    "timm/eva": timm("eva02_tiny_patch14_224", 28, img_size=28, depth=2),
    "timm/vit_relpos": timm("test_vit_relpos", 32, img_size=32),
    "timm/convit": timm("convit_tiny", img_size=32, patch_size=4, depth=3, local_up_to_layer=2),
    "timm/swin": timm("swin_tiny_patch4_window7_224", **_SMALL_SWIN),
    "timm/swin_v2": timm("swinv2_tiny_window8_256", **_SMALL_SWIN),
    "timm/tnt": timm("tnt_s_patch16_224", img_size=32, depth=2),
    "timm/mixer": mixer(),
    "timm/poolformer": timm("poolformer_s12", 64),
    "timm/maxvit": timm("test_maxvit", 64, img_size=64),
    "timm/coatnet": timm("test_coatnet", 64, img_size=64),
    "timm/mobilevit": timm("mobilevitv2_050", 64),
    "timm/edgenext": timm("edgenext_xx_small", 64, 4),
    "timm/xcit": timm("xcit_nano_12_p16_224", 32, img_size=32, depth=2),
    "timm/lambda_resnet": timm("lambda_resnet26t", 64, 4),
    # transformers, encoders
    "bert": encoder("Bert"),
    "bert, padded": encoder("Bert", padded=True),
    "bert, full mask": encoder("Bert", full=True),
    "roberta": encoder("Roberta", **_TOKENS),
    "albert": encoder("Albert", embedding_size=16),
    "distilbert": encoder("DistilBert", dim=32, hidden_dim=64, n_layers=2, n_heads=2),
    "electra": encoder("Electra", embedding_size=16),
    "deberta_v2": encoder("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], padded=True),
    "mpnet": encoder("MPNet", **_TOKENS),
    "fnet": encoder("FNet"),
    "modernbert": encoder("ModernBert", **_TOKENS, cls_token_id=2, sep_token_id=3, global_attn_every_n_layers=2),
    "squeezebert": encoder("SqueezeBert", embedding_size=32),
    "roformer": encoder("RoFormer", embedding_size=32),
    # transformers, decoders
    "gpt2": transformer("GPT2Config", "GPT2LMHeadModel", **_LAYERS),
    "gpt2, padded": transformer("GPT2Config", "GPT2LMHeadModel", padded=True, **_LAYERS),
    "gpt_neo": decoder("GPTNeo", num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]], window_size=16),
    "gptj": decoder("GPTJ", n_layer=2, n_embd=32, n_head=2, n_positions=64, rotary_dim=8),
    "gpt_neox": decoder("GPTNeoX"),
    "opt": decoder("OPT", ffn_dim=64, word_embed_proj_dim=32),
    "bloom": decoder("Bloom", n_layer=2, n_head=2),
    "llama": decoder("Llama", **_GROUPED),
    "llama, padded": decoder("Llama", **_GROUPED, padded=True),
    "llama, full mask": decoder("Llama", **_GROUPED, full=True),
    "mistral": decoder("Mistral", **_GROUPED, sliding_window=16),
    "qwen2": decoder("Qwen2", **_GROUPED),
    "qwen3": decoder("Qwen3", **_GROUPED, head_dim=8),
    "gemma": decoder("Gemma", **_GROUPED, head_dim=8),
    "gemma2": decoder("Gemma2", **_GROUPED, head_dim=8),
    "phi": decoder("Phi"),
    "falcon": decoder("Falcon"),
    "stablelm": decoder("StableLm", num_key_value_heads=2),
    "olmo2": decoder("Olmo2"),
    "mpt": transformer("MptConfig", "MptForCausalLM", d_model=32, n_heads=2, n_layers=2, vocab_size=WORDS),
    "mamba": decoder("Mamba", state_size=4),
    # transformers, encoders with decoders
    "t5": transformer("T5Config", "T5ForConditionalGeneration", loss=sequence_loss, **_T5),
    "t5, padded": transformer("T5Config", "T5ForConditionalGeneration", loss=sequence_loss, padded=True, **_T5),
    "bart": sequences("Bart"),
    "bart, padded": sequences("Bart", padded=True),
    "pegasus": sequences("Pegasus"),
    "mbart": sequences("MBart"),
    "whisper": whisper(),
    # transformers, images and sound
    "vit": image_model("ViTConfig", "ViTForImageClassification", **_SMALL_IMAGE),
    "dinov2": image_model("Dinov2Config", "Dinov2ForImageClassification", **{**_SMALL_IMAGE, "drop_path_rate": 0.1}),
    "segformer": image_model(
        "SegformerConfig",
        "SegformerForImageClassification",
        hidden_sizes=[16, 32],
        depths=[1, 1],
        num_encoder_blocks=2,
        num_attention_heads=[1, 2],
        sr_ratios=[4, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=32,
    ),
    "clip": clip(),
    "wav2vec2": wav2vec2(),
}
