"""Several requests to one cluster at once, a thread each."""
import threading
import time

ANSWER_S = 600  # no answer takes so long, on a machine that is busy with other suites, too


def prompt(first, length):
    """Ids of a tiny checkpoint's vocabulary; another `first`, another beginning."""
    return [(37 * i + first) % 500 for i in range(length)]


def complete(cluster, body):
    """The choices of a completion, which must be a 200."""
    response = cluster.request("POST", "/v1/completions", {"model": cluster.name, "return_token_ids": True, **body}, timeout=ANSWER_S)
    if response.status != 200:
        raise AssertionError(f"HTTP {response.status}: {response.text}")
    return response.json["choices"]


class Together:
    """ask(cluster, request) for all of `requests`."""

    def __init__(self, cluster, requests, ask):
        self.results = [None] * len(requests)
        self.errors = []

        def run(index):
            try:
                self.results[index] = ask(cluster, requests[index])
            except BaseException as error:
                self.errors.append(error)
        self.threads = [threading.Thread(target=run, args=(index,)) for index in range(len(requests))]
        for thread in self.threads:
            thread.start()

    def ended(self):
        return not any(thread.is_alive() for thread in self.threads)

    def join(self):
        """The answers, in the order of the requests; raises the first error."""
        deadline = time.monotonic() + ANSWER_S
        for thread in self.threads:
            thread.join(max(0, deadline - time.monotonic()))
        if self.errors:
            raise self.errors[0]
        if not self.ended():
            raise AssertionError(f"no answer within {ANSWER_S} s")
        return self.results
