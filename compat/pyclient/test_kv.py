"""Keys, ranges, transactions, compaction, and how bad requests are refused."""

from grpc import StatusCode
from pyetcd import etcdrpc

from suite import Case, both


class Kv(Case):
    @both
    def test_put_and_get(self, client):
        first = self.put(client, "kv/a")
        second = self.put(client, "kv/a")
        value, about = client.get("kv/a")
        self.assertEqual(value, b"kv/a")
        self.assertGreater(second, first)
        self.assertEqual(about.mod_revision, second)
        self.assertGreater(about.version, 1)
        self.assertGreaterEqual(about.response_header.revision, second)

    @both
    def test_put_tells_what_was_before(self, client):
        client.put("kv/before", "old")
        self.assertEqual(client.put("kv/before", "new", prev_kv=True).prev_kv.value, b"old")

    @both
    def test_a_missing_key_is_none(self, client):
        self.assertEqual(client.get("kv/none"), (None, None))

    @both
    def test_keys_and_values_are_bytes(self, client):
        key, value = b"kv/\x00\xff\xfe", bytes(range(256))
        client.put(key, value)
        self.assertEqual(client.get(key)[0], value)
        client.put(key, b"")
        self.assertEqual(client.get(key)[0], b"")

    @both
    def test_ranges_over_groups(self, client):
        self.put(client, "re-range", "rf-range", "sa-range", "sb-range")
        found = client.get_range_response("re-range", "sc")
        self.assertEqual(self.keys(found), ["re-range", "rf-range", "sa-range", "sb-range"])
        last = client.get_range_response("re-range", "sc", sort_order="descend", limit=2)
        self.assertEqual(self.keys(last), ["sb-range", "sa-range"])
        self.assertTrue(last.more)
        self.assertEqual(last.count, 4)

    @both
    def test_prefix(self, client):
        self.put(client, "prefix/1", "prefix/2", "prefix0")
        self.assertEqual([value for value, _ in client.get_prefix("prefix/")], [b"prefix/1", b"prefix/2"])
        count = client.get_prefix_response("prefix/", count_only=True)
        self.assertEqual((count.count, len(count.kvs)), (2, 0))
        only = client.get_prefix_response("prefix/", keys_only=True)
        self.assertEqual([kv.value for kv in only.kvs], [b"", b""])

    @both
    def test_all_keys(self, client):
        self.put(client, "a-all", "n-all", "zz-all")
        found = self.keys(client.get_all_response())
        self.assertEqual(found, sorted(found))
        self.assertLessEqual({"a-all", "n-all", "zz-all"}, set(found))

    @both
    def test_sorted_by_anything(self, client):
        client.delete_prefix("sort")
        for key, value in [("sort/b", "3"), ("sort/c", "1"), ("sorta", "2"), ("sort/c", "1")]:
            client.put(key, value)
        for target, keys in {
            "key": ["sort/b", "sort/c", "sorta"],
            "version": ["sort/b", "sorta", "sort/c"],
            "create": ["sort/b", "sort/c", "sorta"],
            "mod": ["sort/b", "sorta", "sort/c"],
            "value": ["sort/c", "sorta", "sort/b"],
        }.items():
            up = client.get_prefix_response("sort", sort_order="ascend", sort_target=target)
            self.assertEqual(self.keys(up), keys, target)
        down = client.get_prefix_response("sort", sort_order="descend", sort_target="mod")
        self.assertEqual(self.keys(down), ["sort/c", "sorta", "sort/b"])

    @both
    def test_past_revisions(self, client):
        revision = self.put(client, "past")
        client.delete("past")
        self.assertEqual(client.get("past"), (None, None))
        self.assertEqual(client.get("past", revision=revision)[0], b"past")

    @both
    def test_a_serializable_get(self, client):
        self.put(client, "serial")
        self.eventually(lambda: client.get("serial", serializable=True)[0] == b"serial", "it is there")

    @both
    def test_only_what_changed_since(self, client):
        self.put(client, "since/1")
        middle = self.put(client, "since/2")
        self.put(client, "since/3", "since/1")
        newer = client.get_prefix_response("since/", min_mod_revision=middle)
        self.assertEqual(self.keys(newer), ["since/1", "since/2", "since/3"])
        older = client.get_prefix_response("since/", max_mod_revision=middle)
        self.assertEqual(self.keys(older), ["since/2"])
        request = etcdrpc.RangeRequest(key=b"since/", range_end=b"since0", min_create_revision=middle)
        self.assertNotIn(b"since/1", [kv.key for kv in client.kvstub.Range(request).kvs])

    @both
    def test_delete(self, client):
        self.put(client, "delete")
        gone = client.delete("delete", prev_kv=True, return_response=True)
        self.assertEqual((gone.deleted, gone.prev_kvs[0].value), (1, b"delete"))
        self.assertFalse(client.delete("delete"))

    @both
    def test_delete_over_groups(self, client):
        self.put(client, "b-delete", "q-delete", "x-delete")
        client.delete_prefix("b-delete")
        request = etcdrpc.DeleteRangeRequest(key=b"q-delete", range_end=b"x-deletf", prev_kv=True)
        gone = [kv.key for kv in client.kvstub.DeleteRange(request).prev_kvs]
        self.assertIn(b"q-delete", gone)
        self.assertIn(b"x-delete", gone)
        self.assertEqual(client.get("x-delete"), (None, None))

    @both
    def test_put_that_keeps_value_or_lease(self, client):
        with_lease = client.lease(100)
        client.put("keep", "value", lease=with_lease)
        client.kvstub.Put(etcdrpc.PutRequest(key=b"keep", ignore_value=True))
        value, about = client.get("keep")
        self.assertEqual((value, about.lease_id), (b"value", 0))
        client.put("keep", "value", lease=with_lease)
        client.kvstub.Put(etcdrpc.PutRequest(key=b"keep", value=b"other", ignore_lease=True))
        value, about = client.get("keep")
        self.assertEqual((value, about.lease_id), (b"other", with_lease.id))
        missing = etcdrpc.PutRequest(key=b"keep/none", ignore_value=True)
        self.refused(StatusCode.INVALID_ARGUMENT, "etcdserver: key not found", client.kvstub.Put, missing)
        both_ways = etcdrpc.PutRequest(key=b"keep", value=b"x", ignore_value=True)
        self.refused(StatusCode.INVALID_ARGUMENT, "etcdserver: value is provided", client.kvstub.Put, both_ways)

    @both
    def test_compaction(self, client):
        old = self.put(client, "compact")
        now = self.put(client, "compact")
        client.compact(now, physical=True)
        gone = (StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
        self.refused(*gone, client.get, "compact", revision=old)
        self.assertEqual(client.get("compact", revision=now)[0], b"compact")
        self.refused(*gone, client.compact, now)
        self.refused(
            StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision",
            client.compact, now + 1_000_000_000,
        )


class Refused(Case):
    @both
    def test_an_empty_key(self, client):
        self.refused(StatusCode.INVALID_ARGUMENT, "etcdserver: key is not provided", client.put, "", "x")

    @both
    def test_a_lease_that_is_not_there(self, client):
        self.refused(StatusCode.NOT_FOUND, "etcdserver: requested lease not found", client.put, "x", "x", lease=12345)

    @both
    def test_a_revision_of_the_future(self, client):
        text = "etcdserver: mvcc: required revision is a future revision"
        self.refused(StatusCode.OUT_OF_RANGE, text, client.get, "x", revision=1 << 40)

    @both
    def test_a_key_twice(self, client):
        twice = [client.transactions.put("x", "1"), client.transactions.put("x", "2")]
        text = "etcdserver: duplicate key given in txn request"
        self.refused(StatusCode.INVALID_ARGUMENT, text, client.transaction, compare=[], success=twice, failure=[])

    @both
    def test_too_many_operations(self, client):
        many = [client.transactions.put(f"many/{n}", "") for n in range(129)]
        text = "etcdserver: too many operations in txn request"
        self.refused(StatusCode.INVALID_ARGUMENT, text, client.transaction, compare=[], success=many, failure=[])

    @both
    def test_a_large_request(self, client):
        self.refused(StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", client.put, "x", "x" * 1_600_000)

    @both
    def test_a_strange_order(self, client):
        request = etcdrpc.RangeRequest(key=b"x", sort_order=99)
        self.refused(StatusCode.INVALID_ARGUMENT, "etcdserver: invalid sort option", client.kvstub.Range, request)


class Transactions(Case):
    @both
    def test_over_groups(self, client):
        self.put(client, "a-txn", "x-txn")
        does = client.transactions

        def swap():
            return client.transaction(
                compare=[does.value("a-txn") == "a-txn", does.version("x-txn") > 0],
                success=[does.put("a-txn", "x"), does.put("x-txn", "a"), does.get("a-txn")],
                failure=[does.get("x-txn")],
            )

        succeeded, responses = swap()
        self.assertTrue(succeeded)
        self.assertEqual(responses[2][0][0], b"x")
        succeeded, responses = swap()
        self.assertFalse(succeeded)
        self.assertEqual(responses[0][0][0], b"a")
        self.assertEqual(client.get("a-txn")[1].mod_revision, client.get("x-txn")[1].mod_revision)

    @both
    def test_nested(self, client):
        self.put(client, "b-nested")
        client.delete("y-nested")
        does = client.transactions
        inner = does.txn(
            compare=[does.create("y-nested") == 0],
            success=[does.put("y-nested", "1"), does.get("b-nested")],
            failure=[does.delete("b-nested")],
        )
        for expected in [True, False]:
            succeeded, responses = client.transaction(
                compare=[does.mod("b-nested") > 0], success=[does.get("b-nested"), inner], failure=[]
            )
            self.assertTrue(succeeded)
            self.assertEqual(responses[1].response_txn.succeeded, expected)
        self.assertEqual(client.get("b-nested"), (None, None))

    @both
    def test_comparisons_of_ranges(self, client):
        self.put(client, "d-range", "k-range")
        does = client.transactions
        later = client.get("d-range")[1].create_revision

        def all_are(compare):
            return client.transaction(compare=[compare], success=[], failure=[])[0]

        self.assertTrue(all_are(does.create("d-range", "k-rangf") > later - 1))
        self.assertFalse(all_are(does.create("d-range", "k-rangf") < later))
        self.assertTrue(all_are(does.value("d-range") != "other"))

    @both
    def test_if_not_there(self, client):
        client.delete("once")
        self.assertTrue(client.put_if_not_exists("once", "1"))
        self.assertFalse(client.put_if_not_exists("once", "2"))
        self.assertEqual(client.get("once")[0], b"1")

    @both
    def test_replace(self, client):
        client.put("swap", "old")
        self.assertTrue(client.replace("swap", "old", "new"))
        self.assertFalse(client.replace("swap", "old", "newer"))
        self.assertEqual(client.get("swap")[0], b"new")

    @both
    def test_what_changes_nothing_makes_no_revision(self, client):
        before = self.put(client, "still")
        does = client.transactions
        client.transaction(compare=[], success=[does.get("still"), does.delete("still/none")], failure=[])
        self.assertEqual(client.get("still")[1].response_header.revision, before)
