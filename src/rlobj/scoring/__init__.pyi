from .cutting import micro_batches as micro_batches
from .packing import pack_sequences as pack_sequences
from .packing import pad_sequences as pad_sequences
from .policy_scorer import PolicyScorer as PolicyScorer
from .policy_scorer import score_samples as score_samples
from .token_scores import FILTERED as FILTERED
from .token_scores import TokenScores as TokenScores
from .token_scores import score_tokens as score_tokens
