"""rlobj's objectives inside the trainers of other projects.

Each module needs its trainer: `rlobj.integrations.trl` imports trl.
"""
