"""Hidden states to what an objective reads of the policy, without ever holding the logits.

    score_tokens    [N, H] hidden states and the output embeddings -> a `TokenScores`
    score_samples   a causal language model and sequences -> the same, for all response tokens
    PolicyScorer    the module inside `score_samples`: trunk and head in one forward, ready for DDP
    micro_batches   which sequences to score together under a budget of tokens

`tokens` holds the public function and its gradient, `tiles` the sweeps over the vocabulary, `rows`
the arithmetic of a tile in torch and `kernels` the same in Triton; `policy` and `heads` know about
transformers models, `packing` about batches of sequences.
"""

from rlobj.scoring.packing import (
    ScoredSequence,
    micro_batches,
    pack_sequences,
    pad_sequences,
)
from rlobj.scoring.policy_scorer import PolicyScorer, score_samples
from rlobj.scoring.tiles import tile_columns
from rlobj.scoring.token_scores import FILTERED, TokenScores, score_tokens

__all__ = [
    "FILTERED",
    "PolicyScorer",
    "ScoredSequence",
    "TokenScores",
    "micro_batches",
    "pack_sequences",
    "pad_sequences",
    "score_samples",
    "score_tokens",
    "tile_columns",
]
