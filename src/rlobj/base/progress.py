"""The wish that this process ends, which ends its waits."""

import threading

ENDING = threading.Event()
"""Set while this process is asked to end: a wait for something that may never come ends, too."""
