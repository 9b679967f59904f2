// Keys, ranges, transactions, compaction, and how bad requests are refused.

import assert from 'node:assert/strict';
import { STMConflictError } from 'etcd3';
import { both, eventually, put, refused } from './suite.mjs';

const keys = response => response.kvs.map(kv => kv.key.toString());

both('put and get', async client => {
  await put(client, 'kv/a');
  const revision = await put(client, 'kv/a');
  assert.equal(await client.get('kv/a'), 'kv/a');
  const { kvs } = await client.get('kv/a').exec();
  assert.equal(Number(kvs[0].mod_revision), revision);
  assert(Number(kvs[0].version) > 1);
  assert.equal(await client.get('kv/a').exists(), true);
});

both('put tells what was before', async client => {
  await client.put('kv/before').value('old');
  const before = await client.put('kv/before').value('new').getPrevious();
  assert.equal(before.value.toString(), 'old');
});

both('a missing key is null', async client => {
  assert.equal(await client.get('kv/none'), null);
  assert.equal(await client.get('kv/none').exists(), false);
});

both('keys and values are bytes', async client => {
  const key = Buffer.from([107, 118, 0, 255, 254]);
  const value = Buffer.from(Array.from({ length: 256 }, (_, n) => n));
  await client.put(key).value(value);
  assert.deepEqual(await client.get(key).buffer(), value);
  await client.put(key).value('');
  assert.equal(await client.get(key), '');
  await client.put(key).value(42);
  assert.equal(await client.get(key).number(), 42);
});

both('ranges over groups', async client => {
  await put(client, 're-range', 'rf-range', 'sa-range', 'sb-range');
  const range = { start: 're-range', end: 'sc' };
  const all = ['re-range', 'rf-range', 'sa-range', 'sb-range'];
  assert.deepEqual(await client.getAll().inRange(range).keys(), all);
  assert.equal(await client.getAll().inRange(range).count(), 4);
  const last = await client.getAll().inRange(range).sort('Key', 'Descend').limit(2).exec();
  assert.deepEqual(keys(last), ['sb-range', 'sa-range']);
  assert.equal(last.more, true);
  assert.equal(last.count, '4');
});

both('prefixes', async client => {
  await put(client, 'prefix/1', 'prefix/2', 'prefix0');
  assert.deepEqual(await client.getAll().prefix('prefix/').strings(), {
    'prefix/1': 'prefix/1',
    'prefix/2': 'prefix/2',
  });
  assert.equal(await client.getAll().prefix('prefix/').count(), 2);
});

both('sorted by anything', async client => {
  await client.delete().prefix('sort');
  for (const [key, value] of [['sort/b', '3'], ['sort/c', '1'], ['sorta', '2'], ['sort/c', '1']]) {
    await client.put(key).value(value);
  }
  for (const [target, sorted] of Object.entries({
    Key: ['sort/b', 'sort/c', 'sorta'],
    Version: ['sort/b', 'sorta', 'sort/c'],
    Create: ['sort/b', 'sort/c', 'sorta'],
    Mod: ['sort/b', 'sorta', 'sort/c'],
    Value: ['sort/c', 'sorta', 'sort/b'],
  })) {
    assert.deepEqual(await client.getAll().prefix('sort').sort(target, 'Ascend').keys(), sorted, target);
  }
});

both('past revisions', async client => {
  const revision = await put(client, 'past');
  await client.delete().key('past');
  assert.equal(await client.get('past'), null);
  assert.equal(await client.get('past').revision(revision), 'past');
});

both('a serializable get', async client => {
  await put(client, 'serial');
  await eventually('it is there', async () => (await client.get('serial').serializable(true)) === 'serial');
});

both('only what changed since', async client => {
  await client.delete().prefix('since/');
  await put(client, 'since/1');
  const middle = await put(client, 'since/2');
  await put(client, 'since/3', 'since/1');
  const all = () => client.getAll().prefix('since/');
  assert.deepEqual(await all().minModRevision(middle).keys(), ['since/1', 'since/2', 'since/3']);
  assert.deepEqual(await all().maxModRevision(middle).keys(), ['since/2']);
  assert.deepEqual(await all().minCreateRevision(middle).keys(), ['since/2', 'since/3']);
  assert.deepEqual(await all().maxCreateRevision(middle).keys(), ['since/1', 'since/2']);
});

both('delete tells what was there', async client => {
  await put(client, 'delete/1', 'delete/2');
  const gone = await client.delete().prefix('delete/').getPrevious();
  assert.deepEqual(gone.map(kv => kv.value.toString()), ['delete/1', 'delete/2']);
  assert.equal((await client.delete().key('delete/1')).deleted, '0');
});

both('delete over groups', async client => {
  await put(client, 'f-gone', 'h-gone', 'n-gone');
  const { deleted } = await client.delete().inRange({ start: 'f-gone', end: 'n-gonf' });
  assert(Number(deleted) >= 3);
  assert.equal(await client.get('h-gone'), null);
});

both('a put that keeps value or lease', async client => {
  const lease = client.lease(100, { autoKeepAlive: false });
  await lease.put('keep').value('value');
  await client.put('keep').touch();
  let kv = (await client.get('keep').exec()).kvs[0];
  assert.deepEqual([kv.value.toString(), kv.lease], ['value', '0']);
  await lease.put('keep').value('value');
  await client.put('keep').value('other').ignoreLease();
  kv = (await client.get('keep').exec()).kvs[0];
  assert.deepEqual([kv.value.toString(), kv.lease], ['other', await lease.grant()]);
  await refused('etcdserver: key not found', client.put('keep/none').touch());
  await lease.revoke();
});

both('a namespace', async client => {
  const inside = client.namespace('space/');
  await inside.put('k').value('v');
  assert.equal(await client.get('space/k'), 'v');
  assert.deepEqual(await inside.getAll().keys(), ['k']);
  await inside.delete().all();
  assert.equal(await client.get('space/k'), null);
});

both('a transaction over groups', async client => {
  await put(client, 'a-txn', 'x-txn');
  const swap = () =>
    client
      .if('a-txn', 'Value', '==', 'a-txn')
      .and('x-txn', 'Version', '>', 0)
      .then(client.put('a-txn').value('x'), client.put('x-txn').value('a'), client.get('a-txn'))
      .else(client.get('x-txn'))
      .commit();
  const first = await swap();
  assert.equal(first.succeeded, true);
  assert.equal(first.responses[2].response_range.kvs[0].value.toString(), 'x');
  const second = await swap();
  assert.equal(second.succeeded, false);
  assert.equal(second.responses[0].response_range.kvs[0].value.toString(), 'a');
  const [a, x] = await Promise.all(['a-txn', 'x-txn'].map(key => client.get(key).exec()));
  assert.equal(a.kvs[0].mod_revision, x.kvs[0].mod_revision);
});

both('every comparison', async client => {
  const revision = await put(client, 'compared');
  const kv = (await client.get('compared').exec()).kvs[0];
  for (const [column, operator, value, expected] of [
    ['Value', '==', 'compared', true],
    ['Value', '!=', 'compared', false],
    ['Value', '<', 'd', true],
    ['Version', '==', Number(kv.version), true],
    ['Create', '<', Number(kv.create_revision), false],
    ['Mod', '>', revision - 1, true],
    ['Lease', '==', 0, true],
  ]) {
    const { succeeded } = await client.if('compared', column, operator, value).then().commit();
    assert.equal(succeeded, expected, `${column} ${operator} ${value}`);
  }
});

both('nested transactions', async client => {
  await put(client, 'b-nested');
  await client.delete().key('y-nested');
  const bytes = text => Buffer.from(text);
  const inner = {
    compare: [{ result: 'Equal', target: 'Create', key: bytes('y-nested'), create_revision: 0 }],
    success: [{ request_put: { key: bytes('y-nested'), value: bytes('1') } }],
    failure: [{ request_delete_range: { key: bytes('b-nested') } }],
  };
  for (const expected of [true, false]) {
    const answer = await client.kv.txn({
      success: [{ request_range: { key: bytes('b-nested') } }, { request_txn: inner }],
    });
    assert.equal(answer.responses[0].response_range.count, '1');
    assert.equal(answer.responses[1].response_txn.succeeded, expected);
  }
  assert.equal(await client.get('b-nested'), null);
});

both('software transactions', async client => {
  await client.put('t-stm').value('');
  await client.put('d-stm').value('0');
  for (let n = 0; n < 5; n += 1) {
    await client.stm().transact(async tx => {
      const before = Number(await tx.get('d-stm'));
      await tx.put('t-stm').value('x'.repeat(before + 1));
      await tx.put('d-stm').value(before + 1);
    });
  }
  assert.equal(await client.get('d-stm').number(), 5);
  assert.equal(await client.get('t-stm'), 'xxxxx');
  // What is changed by another meanwhile isn't written over.
  const late = client.stm({ retries: 0 }).transact(async tx => {
    await tx.get('d-stm');
    await client.put('d-stm').value('other');
    await tx.put('d-stm').value('late');
  });
  await assert.rejects(late, STMConflictError);
  assert.equal(await client.get('d-stm'), 'other');
});

both('compaction', async client => {
  const old = await put(client, 'compact');
  const now = await put(client, 'compact');
  await client.kv.compact({ revision: now, physical: true });
  await refused('etcdserver: mvcc: required revision has been compacted', client.get('compact').revision(old).exec());
  assert.equal(await client.get('compact').revision(now), 'compact');
  await refused('etcdserver: mvcc: required revision has been compacted', client.kv.compact({ revision: now }));
  await refused(
    'etcdserver: mvcc: required revision is a future revision',
    client.kv.compact({ revision: now + 1_000_000_000 }),
  );
});

both('bad requests are refused', async client => {
  await refused('etcdserver: key is not provided', client.put('').value('x').exec());
  await refused('etcdserver: requested lease not found', client.put('x').value('x').lease(12345).exec());
  await refused('etcdserver: mvcc: required revision is a future revision', client.get('x').revision(2 ** 40).exec());
  await refused('etcdserver: request is too large', client.put('x').value('x'.repeat(1_600_000)).exec());
  const x = client.put('x').value('1');
  await refused('etcdserver: duplicate key given in txn request', client.if('x', 'Mod', '>', 0).then(x, x).commit());
  const many = Array.from({ length: 129 }, (_, n) => client.put(`many/${n}`).value(''));
  await refused('etcdserver: too many operations in txn request', client.if('x', 'Mod', '>', 0).then(...many).commit());
});
