"""What every HTML page of rlobj shares: its styles, scripts and fonts."""
