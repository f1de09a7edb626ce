"""Settings of the tests of integrations."""

import os

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # TRL warns of rollout_func otherwise
