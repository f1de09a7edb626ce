"""rlobj's objectives and its verifier inside the trainers of other projects.

`rlobj.integrations.rewards` has the verifier as a reward function of TRL and of verl, and needs
neither of them. The other modules need their trainers: `rlobj.integrations.trl` imports trl.
"""
