"""What the commands share on screen."""
