"""Log-probabilities, entropies and more from hidden states, without storing the logits.

    score_tokens    hidden states [N, H] and output embeddings [V, H] -> TokenScores
    score_samples   a causal language model and sequences -> TokenScores of all response tokens
    PolicyScorer    the module that `score_samples` uses: a model that returns TokenScores
    micro_batches   groups of sequences whose tokens fit a budget

`token_scores` has the public function and its gradient. `tiles` goes over the vocabulary tile by
tile. `rows` computes the rows of a tile in torch, `kernels` in Triton. `policy_scorer` handles
transformers models, `cutting` cuts sequences into micro-batches, `packing` makes their inputs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
