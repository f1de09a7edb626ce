from rlobj.scoring.packing import micro_batches as micro_batches
from rlobj.scoring.packing import pack_sequences as pack_sequences
from rlobj.scoring.packing import pad_sequences as pad_sequences
from rlobj.scoring.policy_scorer import PolicyScorer as PolicyScorer
from rlobj.scoring.policy_scorer import score_samples as score_samples
from rlobj.scoring.token_scores import FILTERED as FILTERED
from rlobj.scoring.token_scores import TokenScores as TokenScores
from rlobj.scoring.token_scores import score_tokens as score_tokens
