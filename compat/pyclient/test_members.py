"""Members and their state, and what clients see when one of them dies."""

import time

import grpc
from grpc import StatusCode
from pyetcd import etcdrpc
from pyetcd.exceptions import PreconditionFailedError

from suite import Case, Seen, both, clusters, connect


class Members(Case):
    @both
    def test_are_listed(self, client):
        members = list(client.members)
        self.assertEqual(len(members), len(client.endpoints))
        places = {url for member in members for url in member.client_urls}
        self.assertEqual(places, {f"http://{place}" for place in client.endpoints})

    @both
    def test_are_not_added_twice(self, client):
        def add(urls):
            try:
                return client.add_member(urls)
            except PreconditionFailedError as refusal:
                return refusal.__context__.details()

        for member in client.members:
            # etcd adds none until all have been there for some seconds.
            told = self.eventually(lambda: add(list(member.peer_urls)), "members are in touch")
            self.assertEqual(told, "etcdserver: Peer URLs already exists")

    @both
    def test_are_told_where_they_are(self, client):
        member = next(iter(client.members))
        member.update(list(member.peer_urls))
        found = {other.id: list(other.peer_urls) for other in client.members}
        self.assertEqual(found[member.id], list(member.peer_urls))

    @both
    def test_that_are_not_there(self, client):
        missing = (StatusCode.NOT_FOUND, "etcdserver: member not found")
        self.refused(*missing, client.remove_member, 12345)
        self.refused(*missing, client.update_member, 12345, ["http://127.0.0.1:3"])

    @both
    def test_status(self, client):
        status = client.status()
        self.assertIn(status.leader.id, [member.id for member in client.members])
        self.assertGreater(status.raft_term, 0)
        self.assertGreater(status.db_size, 0)
        self.assertRegex(status.version, r"^\d+\.\d+\.\d+")

    def test_have_the_same_hash(self):
        with connect(clusters.three) as client:
            revision = self.put(client, "hash")
        request = etcdrpc.HashKVRequest(revision=revision)
        hashes = set()
        for place in clusters.three:
            with connect([place]) as client:
                answer = self.eventually(lambda: client.maintenancestub.HashKV(request), "it has the revision")
                self.assertGreaterEqual(answer.header.revision, revision)
                hashes.add(answer.hash)
                client.hash()
        self.assertEqual(len(hashes), 1)

    @both
    def test_defragment(self, client):
        client.defragment()
        self.put(client, "defragmented")

    def test_alarm(self):
        for places in [clusters.one, clusters.three[:1]]:
            with self.subTest(places), connect(places) as client:
                self.put(client, "alarm")
                member = client.maintenancestub.Status(etcdrpc.StatusRequest()).header.member_id
                raised = client.create_alarm(member)
                try:
                    self.assertEqual([alarm.member_id for alarm in raised], [member])
                    self.assertEqual([alarm.alarm_type for alarm in client.list_alarms()], [etcdrpc.NOSPACE])
                    full = (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")
                    self.refused(*full, client.put, "alarm", "x")
                    self.refused(*full, client.lease, 10)
                    self.assertTrue(client.delete("alarm"))
                finally:
                    client.disarm_alarm(member)
                self.assertEqual(list(client.list_alarms()), [])
                self.put(client, "alarm")

    def test_leader_moves(self):
        with connect(clusters.three) as client:
            old = self.eventually(lambda: client.status().leader, "there is a leader")
            new = next(member for member in client.members if member.id != old.id)
            place = old.client_urls[0].removeprefix("http://")
            with connect([place]) as leader:
                request = etcdrpc.MoveLeaderRequest(targetID=new.id)
                leader.maintenancestub.MoveLeader(request)
            self.eventually(lambda: client.status().leader.id == new.id, "it leads")
            self.eventually(lambda: self.put(client, "moved"), "writes go on")


class Death(Case):
    """A member of three is killed; it is started again when the case ends."""

    def kill(self, place):
        at = clusters.three.index(place)
        clusters.order(f"kill {at}")
        self.addCleanup(clusters.order, f"start {at}")

    def leader(self):
        with connect(clusters.three) as client:
            status = self.eventually(lambda: (found := client.status()).leader and found, "there is a leader")
            return status.leader.client_urls[0].removeprefix("http://")

    def watch_survives(self, victim):
        client = connect([victim] + [place for place in clusters.three if place != victim])
        # The client chooses one of its members by chance.
        client._current_endpoint_label = victim
        survivors = connect([place for place in clusters.three if place != victim])
        prefix = f"resume-{time.monotonic_ns()}/"
        with client, survivors:
            watch = Seen(client, prefix, range_end=prefix[:-1] + "0")
            for n in range(20):
                survivors.put(f"{prefix}{n:03}", "")
            keys, last = [], 0
            keys += [event.key for event in watch.events(1)]
            last = client.get(keys[-1])[1].mod_revision
            self.kill(victim)
            for n in range(20, 40):
                self.eventually(lambda: survivors.put(f"{prefix}{n:03}", ""), "writes go on")
            while len(keys) < 40:
                try:
                    response = watch.next()
                except grpc.RpcError:
                    # As its users do: it goes on after the last that it saw.
                    client.endpoint_in_use.fail()
                    client._clear_old_stubs()
                    watch = self.eventually(
                        lambda: Seen(client, prefix, range_end=prefix[:-1] + "0", start_revision=last + 1),
                        "another member takes the watch",
                    )
                    continue
                for event in response.events:
                    self.assertGreater(event.mod_revision, last)
                    last = event.mod_revision
                    keys.append(event.key)
            self.assertEqual(keys, [f"{prefix}{n:03}".encode() for n in range(40)])

    def test_watch_goes_on_when_the_leader_dies(self):
        self.watch_survives(self.leader())

    def test_watch_goes_on_when_another_dies(self):
        leader = self.leader()
        self.watch_survives(next(place for place in clusters.three if place != leader))

    def keepalive_survives(self, victim):
        client = connect(clusters.three)
        client._current_endpoint_label = victim
        with client:
            lease = client.lease(10)
            key = f"kept-{lease.id}"
            client.put(key, "", lease=lease)
            self.assertEqual(lease.refresh()[0].TTL, 10)
            self.kill(victim)
            until = time.monotonic() + 14
            while time.monotonic() < until:
                self.eventually(lambda: lease.refresh()[0].TTL == 10, "it is kept alive")
                time.sleep(0.5)
            self.assertEqual(self.eventually(lambda: client.get(key), "it answers")[0], b"")

    def test_keepalive_goes_on_when_the_leader_dies(self):
        self.keepalive_survives(self.leader())

    def test_keepalive_goes_on_when_another_dies(self):
        leader = self.leader()
        self.keepalive_survives(next(place for place in clusters.three if place != leader))

    def test_lock_outlives_the_leader(self):
        with connect(clusters.three) as client:
            lock = client.lock("outlives", ttl=60)
            self.assertTrue(lock.acquire(timeout=30))
            self.kill(self.leader())
            self.assertTrue(self.eventually(lock.is_acquired, "it is still held"))
            self.assertTrue(self.eventually(lock.release, "it is released"))

    def test_a_member_that_comes_back_has_everything(self):
        victim = next(place for place in clusters.three if place != self.leader())
        survivors = connect([place for place in clusters.three if place != victim])
        with survivors:
            at = clusters.three.index(victim)
            clusters.order(f"kill {at}")
            try:
                keys = [f"{first}-back" for first in "adhnqtx"]
                for key in keys:
                    self.eventually(lambda: survivors.put(key, "back"), "writes go on")
            finally:
                clusters.order(f"start {at}")
        with connect([victim]) as client:
            for key in keys:
                self.assertEqual(self.eventually(lambda: client.get(key), "it answers")[0], b"back")
