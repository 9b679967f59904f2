"""Watches: where they begin, what they tell, and how they end."""

from pyetcd import etcdrpc
from pyetcd.events import DeleteEvent, PutEvent
from pyetcd.exceptions import RevisionCompactedError

from suite import Case, Seen, Stream, both


class Watch(Case):
    @both
    def test_from_now(self, client):
        events, cancel = client.watch("watch/now")
        revision = self.put(client, "watch/now")
        event = next(events)
        self.assertIsInstance(event, PutEvent)
        self.assertEqual((event.value, event.mod_revision), (b"watch/now", revision))
        cancel()
        self.assertEqual(list(events), [])

    @both
    def test_from_the_past_over_groups(self, client):
        begin = self.put(client, "b-past")
        self.put(client, "k-past", "t-past")
        watch = Seen(client, "b-past", range_end="u", start_revision=begin)
        self.assertEqual([event.key for event in watch.events(3)], [b"b-past", b"k-past", b"t-past"])

    @both
    def test_from_the_future(self, client):
        now = self.put(client, "watch/future")
        watch = Seen(client, "watch/future", start_revision=now + 2)
        self.put(client, "watch/future")
        last = self.put(client, "watch/future")
        self.assertEqual(watch.events(1)[0].mod_revision, last)

    @both
    def test_of_a_prefix(self, client):
        events, cancel = client.watch_prefix("watch/prefix/")
        self.put(client, "watch/prefix/1", "watch/prefix0", "watch/prefix/2")
        self.assertEqual([next(events).key for _ in range(2)], [b"watch/prefix/1", b"watch/prefix/2"])
        cancel()

    @both
    def test_tells_what_was_before(self, client):
        self.put(client, "watch/before")
        watch = Seen(client, "watch/before", prev_kv=True)
        client.delete("watch/before")
        event = watch.events(1)[0]
        self.assertIsInstance(event, DeleteEvent)
        self.assertEqual(event.prev_value, b"watch/before")

    @both
    def test_filters(self, client):
        puts = Seen(client, "watch/filter", filters=[etcdrpc.WatchCreateRequest.NODELETE])
        deletes = Seen(client, "watch/filter", filters=[etcdrpc.WatchCreateRequest.NOPUT])
        self.put(client, "watch/filter")
        client.delete("watch/filter")
        self.put(client, "watch/filter")
        self.assertTrue(all(isinstance(event, PutEvent) for event in puts.events(2)))
        self.assertIsInstance(deletes.events(1)[0], DeleteEvent)

    @both
    def test_that_begins_too_early(self, client):
        self.put(client, "watch/early")
        now = self.put(client, "watch/early")
        client.compact(now)
        watch = Seen(client, "watch/early", start_revision=1)
        with self.assertRaises(RevisionCompactedError) as refused:
            watch.next()
        self.assertEqual(refused.exception.compacted_revision, now)

    @both
    def test_that_is_cancelled_hears_no_more(self, client):
        first, second = Seen(client, "watch/cancel"), Seen(client, "watch/cancel")
        self.put(client, "watch/cancel")
        first.events(1)
        second.events(1)
        first.cancel()
        self.put(client, "watch/cancel")
        second.events(1)
        self.assertTrue(first.queue.empty())

    @both
    def test_is_told_that_it_is_cancelled(self, client):
        with Stream(client) as stream:
            created = stream.create(key=b"watch/told")
            self.assertTrue(created.created)
            stream.cancel(created.watch_id)
            told = next(stream.responses)
            self.assertTrue(told.canceled)
            self.assertEqual(told.watch_id, created.watch_id)

    @both
    def test_of_nothing_is_refused(self, client):
        with Stream(client) as stream:
            first = stream.create(key=b"x")
            empty = stream.create(key=b"x", range_end=b"a")
            self.assertTrue(empty.created and empty.canceled)
            self.assertEqual(empty.watch_id, -1)
            # The stream goes on.
            self.assertGreater(stream.create(key=b"x").watch_id, first.watch_id)

    @both
    def test_progress_on_request(self, client):
        with Stream(client) as stream:
            created = stream.create(key=b"watch/progress")
            revision = self.put(client, "elsewhere")

            def told():
                stream.ask_progress()
                response = next(stream.responses)
                self.assertEqual((response.watch_id, len(response.events)), (-1, 0))
                return response.header.revision >= revision

            self.assertEqual(created.watch_id, 0)
            self.eventually(told, "progress is told")

    @both
    def test_a_transaction_is_one_response(self, client):
        watch = Seen(client, "a", range_end="zz")
        does = client.transactions
        keys = ["b-one", "n-one", "y-one"]
        client.transaction(compare=[], success=[does.put(key, "1") for key in keys], failure=[])
        self.assertEqual([event.key.decode() for event in watch.next().events], keys)

    @both
    def test_many_on_one_stream(self, client):
        watches = [Seen(client, f"many/{n}") for n in range(50)]
        for n, watch in enumerate(watches):
            self.put(client, f"many/{n}")
            self.assertEqual(watch.events(1)[0].key, f"many/{n}".encode())

    @both
    def test_much_at_once(self, client):
        size = 1_000_000
        begin = self.put(client, "e-large")
        for key in ["e-large", "n-large", "y-large"]:
            client.put(key, "x" * size)
        watch = Seen(client, "e-large", range_end="z", start_revision=begin + 1)
        self.assertEqual([len(event.value) for event in watch.events(3)], [size] * 3)

    @both
    def test_once(self, client):
        begin = self.put(client, "watch/once")
        event = client.watch_once("watch/once", timeout=30, start_revision=begin)
        self.assertEqual(event.key, b"watch/once")
