"""A micro-batch of a model: what autograd keeps, and the largest tensors of the passes."""

from dataclasses import dataclass

from rlobj.scoring.tiles import tile_columns
from rlobj.scoring.token_scores import CPU_CHUNK_BYTES, DEVICE_CHUNK_BYTES
from rlobj.sizing.sizes import Size

WORD = 4
"""Bytes of a number of the weights, the residual stream and the norms: float32."""


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch of a model: what autograd keeps, and the largest tensors of the passes.

    The formulas count the tensors that the backward pass of a decoder layer reads: an RMS norm,
    grouped attention through `scaled_dot_product_attention`, and a gated MLP. They were compared
    with measured peaks in benchmarks/results/estimate.md.

    Attributes:
        size: of the model.
        tokens: with padding.
        half: linear layers compute in bfloat16, under autocast, on a GPU.
        lora: only adapters are trained.
        recompute: layers keep only their input.
        logits: there is a head of the vocabulary; False = one of a single number, for a value.
    """

    size: Size
    tokens: int
    half: bool = False
    lora: bool = False
    recompute: bool = False
    logits: bool = True

    @property
    def word(self) -> int:
        """Bytes of a number that a linear layer returns."""
        return 2 if self.half else WORD

    def layer(self) -> float:
        """Bytes that autograd keeps of a layer, its input too.

        For each token, with width H, queries Q, keys K, inner width I, and b bytes a number:

            norms       input, and normalised if their weights are trained: 4H each
                        what linear layers read: 4H each; in bfloat16 5 copies, 2H each
            queries     with a norm: its input 4Q, and normalised bQ; rotated bQ
            keys        as queries, with K; values bK
            attention   its output bQ, and a number a head
            MLP         gate, its activation, up, and their product: 4·bI
        """
        size, b, wide = self.size, self.word, WORD * self.size.hidden
        norms = 2 * wide * (1 if self.lora else 2)
        norms += 5 * b * size.hidden if self.half else 2 * wide
        by_norm = size.normed * (WORD + b * (not self.lora))
        keys = (by_norm + 2 * b) * size.keys
        queries = (by_norm + b) * size.queries
        output = b * size.queries * (2 if self.half and self.lora else 1) + 4 * size.heads
        return self.tokens * (norms + queries + keys + output + 4 * b * size.inner)

    def kept(self) -> float:
        """Bytes that autograd keeps of all layers, the last norm and the scorer's input."""
        size = self.size
        wide = self.tokens * WORD * size.hidden
        layers = size.layers * (wide if self.recompute else self.layer())
        return layers + wide * (2 if self.lora else 3)

    def tile(self) -> float:
        """Bytes of a tile of logits, with its gradient in half precision."""
        if not self.logits:
            return 0.0
        chunk = DEVICE_CHUNK_BYTES if self.half else CPU_CHUNK_BYTES
        columns = min(tile_columns(self.tokens, chunk), self.size.vocab)
        return self.tokens * columns * WORD * (1.5 if self.half else 1)

    def backward(self) -> float:
        """Bytes of the largest tensors of the backward pass, beside what is kept.

        In the scorer: a tile, the gradient of the head's matrix and that of the hidden states. In
        a layer: gradients inside its MLP, and with recomputation what it keeps. At the embedding:
        its gradient, when nothing is kept any more. A tied matrix waits for that of the embedding.
        """
        size, wide = self.size, self.tokens * WORD * self.size.hidden
        head = 0 if self.lora else WORD * size.matrix
        scorer = head * self.logits
        waiting = scorer * size.tied
        inside = self.tokens * 2 * self.word * size.inner + 2 * wide
        layer = inside + (self.layer() if self.recompute else 0)
        return max(scorer + self.tile() + 2 * wide, waiting + layer, waiting + head - self.kept())

    def forward(self) -> float:
        """Bytes of the largest tensors of a forward pass without gradient."""
        size, wide = self.size, self.tokens * WORD * self.size.hidden
        return max(3 * wide + 3 * self.word * self.tokens * size.inner, 2 * wide + self.tile())
