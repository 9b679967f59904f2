"""Leases, and the client's locks that are made of them."""

import threading

from grpc import StatusCode
from pyetcd import etcdrpc
from pyetcd.events import DeleteEvent

from suite import Case, Seen, both, clusters, connect


class Lease(Case):
    @both
    def test_takes_its_keys_along(self, client):
        lease = client.lease(100)
        for key in ["b-leased", "r-leased"]:
            client.put(key, "", lease=lease)
        self.assertEqual(sorted(lease.keys), [b"b-leased", b"r-leased"])
        self.assertEqual(lease.granted_ttl, 100)
        self.assertLessEqual(lease.remaining_ttl, 100)
        lease.revoke()
        self.assertEqual(client.get("b-leased"), (None, None))
        self.assertEqual(client.get("r-leased"), (None, None))
        self.refused(StatusCode.NOT_FOUND, "etcdserver: requested lease not found", lease.revoke)
        self.assertEqual(client.get_lease_info(lease.id).TTL, -1)

    @both
    def test_ends(self, client):
        lease = client.lease(1)
        watch = Seen(client, "lease/ends", filters=[etcdrpc.WatchCreateRequest.NOPUT])
        client.put("lease/ends", "", lease=lease)
        self.assertIsInstance(watch.events(1)[0], DeleteEvent)

    @both
    def test_has_the_id_that_is_asked_for(self, client):
        lease = client.lease(100, lease_id=4711)
        self.assertEqual(lease.id, 4711)
        self.refused(
            StatusCode.FAILED_PRECONDITION, "etcdserver: lease already exists", client.lease, 100, lease_id=4711
        )
        lease.revoke()

    @both
    def test_too_long(self, client):
        self.refused(StatusCode.OUT_OF_RANGE, "etcdserver: too large lease TTL", client.lease, 9_000_000_001)

    @both
    def test_is_refreshed(self, client):
        lease = client.lease(50)
        self.assertEqual(lease.refresh()[0].TTL, 50)
        self.assertEqual(next(client.refresh_lease(98765)).TTL, 0)

    @both
    def test_goes_from_key_to_key(self, client):
        first, second = client.lease(100), client.lease(100)
        client.put("lease/moves", "", lease=first)
        client.put("lease/moves", "", lease=second)
        first.revoke()
        self.assertEqual(client.get("lease/moves")[1].lease_id, second.id)
        client.put("lease/moves", "")
        second.revoke()
        self.assertEqual(client.get("lease/moves")[0], b"")


class Lock(Case):
    @both
    def test_is_held_by_one(self, client):
        held, most, taken = 0, 0, 0

        def work():
            nonlocal held, most, taken
            with connect(clusters.three if len(client.endpoints) > 1 else clusters.one) as own:
                for _ in range(3):
                    lock = own.lock("counted", ttl=60)
                    assert lock.acquire(timeout=30)
                    held += 1
                    most = max(most, held)
                    taken += 1
                    held -= 1
                    lock.release()

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual((most, taken), (1, 12))

    @both
    def test_is_not_given_twice(self, client):
        with client.lock("twice") as first:
            self.assertTrue(first.is_acquired())
            second = client.lock("twice")
            self.assertFalse(second.acquire(timeout=0))
            self.assertFalse(second.is_acquired())
        self.assertTrue(second.acquire(timeout=30))
        self.assertTrue(second.release())

    @both
    def test_ends_with_its_lease(self, client):
        first, second = client.lock("ends", ttl=60), client.lock("ends", ttl=60)
        self.assertTrue(first.acquire())
        first.refresh()
        waiting = threading.Timer(0.1, first.lease.revoke)
        waiting.start()
        self.assertTrue(second.acquire(timeout=30))
        waiting.join()
        self.assertFalse(first.is_acquired())
        second.release()
