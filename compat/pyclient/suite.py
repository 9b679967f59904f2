"""What the tests share: two clusters, clients of them, and waiting.

`clusters` starts one member and three; they end with this process.
"""

import atexit
import faulthandler
import functools
import os
import queue
import subprocess
import time
import unittest

import grpc
import pyetcd
from pyetcd import etcdrpc

# What takes longer is not coming. Nothing waits for this if all is well.
SECONDS = 30

# If all else waits, the process says where, and ends.
faulthandler.dump_traceback_later(900, exit=True)


class Clusters:
    def __init__(self):
        command = [os.environ["CLUSTERS"], os.environ["SERVER"]]
        if os.environ["SPLITS"]:
            command.append(os.environ["SPLITS"])
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.one = self._places("one")
        self.three = self._places("three")

    def _places(self, name):
        first, *places = self.process.stdout.readline().split()
        assert first == name, first
        return places

    def order(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer == "done", answer

    def stop(self):
        self.process.stdin.close()
        self.process.wait(SECONDS)
        self.process.stdout.close()


clusters = Clusters()
atexit.register(clusters.stop)


def connect(places):
    """A client that goes on with another member where one fails."""
    endpoints = []
    for place in places:
        host, port = place.split(":")
        endpoints.append(pyetcd.Endpoint(host, port, secure=False, time_retry=1))
    return pyetcd.MultiEndpointEtcd3Client(endpoints, timeout=SECONDS, failover=True)


def both(test):
    """Runs a case with a client of the one member and with one of the three."""

    @functools.wraps(test)
    def run(self):
        for name, places in [("one", clusters.one), ("three", clusters.three)]:
            with self.subTest(name), connect(places) as client:
                test(self, client)

    return run


class Case(unittest.TestCase):
    def refused(self, code, text, call, *arguments, **named):
        """A call must fail as etcd has it fail. (Some failures are turned into
        exceptions of the client's own, which are raised from the server's.)"""
        try:
            call(*arguments, **named)
        except pyetcd.Etcd3Exception as turned:
            error = turned.__context__
        except grpc.RpcError as failure:
            error = failure
        else:
            self.fail("it was not refused")
        self.assertEqual((error.code(), error.details()), (code, text))

    def eventually(self, done, what):
        """Waits until something is so, whatever goes wrong meanwhile."""
        deadline = time.monotonic() + SECONDS
        last = None
        while time.monotonic() < deadline:
            try:
                if result := done():
                    return result
            except (pyetcd.Etcd3Exception, grpc.RpcError) as error:
                last = error
            time.sleep(0.02)
        self.fail(f"{what}: not in {SECONDS} s; {last!r}")

    def put(self, client, *keys):
        """Puts keys, each with itself as its value; the revision of the last."""
        for key in keys:
            revision = client.put(key, key).header.revision
        return revision

    def keys(self, response):
        return [kv.key.decode() for kv in response.kvs]


class Seen:
    """What a watch of the client's own tells, as a queue."""

    def __init__(self, client, key, **options):
        self.queue = queue.Queue()
        self.client = client
        self.id = client.add_watch_callback(key, self.queue.put, **options)

    def next(self):
        response = self.queue.get(timeout=SECONDS)
        if isinstance(response, Exception):
            raise response
        return response

    def events(self, count):
        events = []
        while len(events) < count:
            events += self.next().events
        return events

    def cancel(self):
        self.client.cancel_watch(self.id)


class Stream:
    """A watch stream without the client's help: everything can be asked for."""

    def __init__(self, client):
        self.requests = queue.Queue()
        self.responses = etcdrpc.WatchStub(client.channel).Watch(
            iter(self.requests.get, None), timeout=SECONDS
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.requests.put(None)
        self.responses.cancel()

    def create(self, **fields):
        request = etcdrpc.WatchCreateRequest(**fields)
        self.requests.put(etcdrpc.WatchRequest(create_request=request))
        return next(self.responses)

    def cancel(self, watch_id):
        request = etcdrpc.WatchCancelRequest(watch_id=watch_id)
        self.requests.put(etcdrpc.WatchRequest(cancel_request=request))

    def ask_progress(self):
        request = etcdrpc.WatchProgressRequest()
        self.requests.put(etcdrpc.WatchRequest(progress_request=request))
