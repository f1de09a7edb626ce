"""What an estimate is made from: the size of a model, from its config.json, and the cards."""

import os
import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import nn

from rlobj.base.errors import ConfigError
from rlobj.base.showing import shown
from rlobj.base.targets import importable
from rlobj.models.checking import read_config, unreadable
from rlobj.settings.run_config import LoraConfig, ModelConfig

GIB = 1 << 30


@dataclass(frozen=True)
class Size:
    """The numbers of a model that its memory and its work depend on.

    Attributes:
        total: parameters without adapters.
        adapters: parameters of LoRA adapters of rank 1.
        layers: decoder layers; 0 = not known, then activations are not counted.
        hidden: width of the residual stream.
        queries: heads x size of a head.
        keys: key-value heads x size of a head.
        heads: attention heads.
        inner: width inside an MLP.
        vocab: tokens of the vocabulary.
        tied: the head shares the matrix of the embedding.
        normed: queries and keys have a norm (Qwen3).
        context: the most positions; None = not known.
    """

    total: int
    adapters: int
    layers: int = 0
    hidden: int = 0
    queries: int = 0
    keys: int = 0
    heads: int = 1
    inner: int = 0
    vocab: int = 0
    tied: bool = False
    normed: bool = False
    context: int | None = None

    @property
    def matrix(self) -> int:
        """Parameters of the embedding, and of the head."""
        return self.vocab * self.hidden

    @property
    def ends(self) -> int:
        """Parameters of the embedding and the head together."""
        return self.matrix * (1 if self.tied else 2)

    def of_value(self) -> Self:
        """With a head of one number instead of one of the vocabulary."""
        head = 0 if self.tied else self.matrix
        return replace(self, total=self.total - head + self.hidden + 1, tied=True)

    @classmethod
    def of(cls, model: Any, lora: LoraConfig | None) -> Self:
        """Read the size of a transformers model, on any device."""
        targets = "all-linear" if lora is None else lora.targets
        linear = [
            layer
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear)
            and layer is not model.get_output_embeddings()
            and (targets == "all-linear" or name.rpartition(".")[2] in targets)
        ]
        text = model.config.get_text_config()
        heads = getattr(text, "num_attention_heads", None) or 1
        hidden = getattr(text, "hidden_size", 0)
        head = getattr(text, "head_dim", None) or hidden // heads
        groups = getattr(text, "num_key_value_heads", None) or heads
        return cls(
            total=sum(parameter.numel() for parameter in model.parameters()),
            adapters=sum(layer.in_features + layer.out_features for layer in linear),
            layers=getattr(text, "num_hidden_layers", 0),
            hidden=hidden,
            queries=heads * head,
            keys=groups * head,
            heads=heads,
            inner=getattr(text, "intermediate_size", None) or 4 * hidden,
            vocab=text.vocab_size,
            tied=model.get_output_embeddings().weight is model.get_input_embeddings().weight,
            normed=any(name.endswith("q_norm") for name, _ in model.named_modules()),
            context=getattr(text, "max_position_embeddings", None),
        )

    @classmethod
    def named(cls, config: ModelConfig, *, local: bool = False, classifier: bool = False) -> Self:
        """Read the size of the model that a configuration names, without its weights.

        Args:
            config: the model's settings.
            local: do not ask the hub for `config.json`.
            classifier: it is a sequence classifier, of which only the parameters are counted.

        Raises:
            UnreadableModel: `config.json` cannot be read.
            ConfigError: it has a number that no model has.
        """
        from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

        kind = AutoModelForSequenceClassification if classifier else AutoModelForCausalLM
        settings = read_config(config, local=local)
        code = config.trust_remote_code and importable("model.trust_remote_code=true")
        try:
            with torch.device("meta"):
                model = kind.from_config(settings, trust_remote_code=code)
            if classifier:
                return cls(sum(parameter.numel() for parameter in model.parameters()), 0)
            return cls.of(model, config.lora)
        except Exception as error:  # as in `read_config`
            raise unreadable(str(config.name), error) from error


class Kind(NamedTuple):
    """Memory in GiB, operations a second in bfloat16, and bytes a second, at the most."""

    memory: float
    flops: float
    bandwidth: float


KINDS = {
    "H100": Kind(80, 989e12, 3.35e12),
    "A100": Kind(80, 312e12, 2.04e12),
    "H200": Kind(141, 989e12, 4.8e12),
    "L40S": Kind(48, 362e12, 0.864e12),
    "4090": Kind(24, 165e12, 1.008e12),
}
"""The GPUs that an estimate knows by name, from NVIDIA's data sheets."""


@dataclass(frozen=True)
class Cards:
    """The GPUs of a run, one a process.

    Attributes:
        count: number of GPUs.
        bytes: memory of each; of cards that differ, of the smallest.
        kind: a name of `KINDS`, for the speed.
    """

    count: int
    bytes: int
    kind: str = "H100"

    @property
    def speed(self) -> Kind:
        """The speed of each."""
        return KINDS[self.kind]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a number of GPUs, and their name or the memory of each in GiB.

        Raises:
            ConfigError: the text is something else.

        Example:
            >>> Cards.parse("8x80")
            Cards(count=8, bytes=85899345920, kind='H100')
        """
        number = r"([0-9]{1,6})\s*[x*×]\s*"
        form = rf"(?:{number})?(?:({'|'.join(KINDS)})|([0-9]+(?:\.[0-9]+)?)\s*(?:G|GB|GiB)?)"
        match = re.fullmatch(form, text.strip(), re.IGNORECASE)
        count, name, size = match.groups() if match else ("0", None, "0")
        name = name and name.upper()
        memory = float(KINDS[name].memory if name else size)
        if not int(count or 1) or not 1 <= memory <= 10_000:
            raise ConfigError(
                f"gpus is {shown(text)}; expected the number of GPUs and the memory of each in GB, "
                "from 1 to 10000, such as 8x80, or 80 for one; or a name, such as 8xH100: "
                f"{', '.join(KINDS)}; or cpu"
            )
        nearest = min(KINDS, key=lambda kind: abs(KINDS[kind].memory - memory))
        return cls(int(count or 1), int(memory * GIB), name or nearest)


def own_card() -> int | None:
    """The memory of this process's GPU in bytes; None = there is none."""
    if not torch.cuda.is_available():
        return None
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    return torch.cuda.get_device_properties(index).total_memory
