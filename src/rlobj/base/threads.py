"""Threads that the end of the program does not wait for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class DaemonThreads(ThreadPoolExecutor):
    """Starts a thread for each call; the process can end while one of them hangs."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        answer: Future[Any] = Future()

        def settle() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    answer.set_exception(error)

        threading.Thread(target=settle, daemon=True).start()
        return answer
