"""The page of `rlobj inspect RUN --html`."""
