// Leases, and the client's locks and elections that are made of them.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { EtcdLeaseInvalidError, EtcdLockFailedError } from 'etcd3';
import { Seen, both, eventually, refused, soon } from './suite.mjs';

both('a lease takes its keys along', async client => {
  const lease = client.lease(100, { autoKeepAlive: false });
  for (const key of ['b-leased', 'r-leased']) await lease.put(key).value('');
  const ID = await lease.grant();
  const left = await eventually('it has its keys', async () => {
    const found = await client.leaseClient.leaseTimeToLive({ ID, keys: true });
    return found.keys.length === 2 && found;
  });
  assert.equal(left.grantedTTL, '100');
  await lease.revoke();
  assert.equal(await client.get('b-leased'), null);
  assert.equal(await client.get('r-leased'), null);
  await refused('etcdserver: requested lease not found', client.leaseClient.leaseRevoke({ ID }));
});

both('a lease ends', async client => {
  const watcher = await client.watch().key('lease/ends').only('delete').create();
  const deleted = new Seen(watcher, 'delete');
  await client.lease(1, { autoKeepAlive: false }).put('lease/ends').value('');
  assert.equal((await deleted.next()).key.toString(), 'lease/ends');
  await watcher.cancel();
});

both('a lease is refreshed', async client => {
  const lease = client.lease(50, { autoKeepAlive: false });
  assert.equal((await lease.keepaliveOnce()).TTL, '50');
  await lease.revoke();
  await assert.rejects(lease.keepaliveOnce(), EtcdLeaseInvalidError);
});

both('a lease is kept alive', async client => {
  const lease = client.lease(6);
  const kept = new Seen(lease, 'keepaliveSucceeded');
  for (let n = 0; n < 3; n += 1) assert.equal((await kept.next('a renewal')).TTL, '6');
  await lease.revoke();
});

both('who keeps a lease hears that it is lost', async client => {
  const lease = client.lease(6);
  const lost = once(lease, 'lost');
  await client.leaseClient.leaseRevoke({ ID: await lease.grant() });
  const [error] = await soon('the loss is told', lost);
  assert(error instanceof EtcdLeaseInvalidError);
});

both('leases are listed, under the ids that were asked for', async client => {
  await client.leaseClient.leaseGrant({ ID: 4712, TTL: 100 });
  const listed = async () => (await client.leaseClient.leaseLeases()).leases.some(lease => lease.ID === '4712');
  await eventually('it is listed', listed);
  await refused('etcdserver: lease already exists', client.leaseClient.leaseGrant({ ID: 4712, TTL: 100 }));
  await client.leaseClient.leaseRevoke({ ID: 4712 });
  await eventually('it is no longer listed', async () => !(await listed()));
  await refused('etcdserver: too large lease TTL', client.leaseClient.leaseGrant({ TTL: 9_000_000_001 }));
});

both('a lock is held by one', async client => {
  const lock = client.lock('mutex').ttl(60);
  await lock.acquire();
  await assert.rejects(client.lock('mutex').acquire(), EtcdLockFailedError);
  await lock.release();
  assert.equal(await client.lock('mutex').do(() => 'done'), 'done');
  await lock.acquire();
  await lock.release();
});

both('a lock ends with its lease', async client => {
  const lock = client.lock('mutex/lease').ttl(60);
  await lock.acquire();
  await client.leaseClient.leaseRevoke({ ID: await lock.leaseId() });
  const second = await client.lock('mutex/lease').acquire();
  await second.release();
  // (Or else the client tries to keep it for a while, and the process lives on.)
  await lock.release();
});

both('an election', async client => {
  const election = client.election('election', 60);
  const a = election.campaign('a');
  await soon('a wins', a.wait());
  const observer = await election.observe();
  const leaders = new Seen(observer, 'change');
  const leader = async name => {
    if (observer.leader() !== name) while ((await leaders.next(`${name} is seen`)) !== name);
  };
  await leader('a');
  const b = election.campaign('b');
  const won = b.wait();
  await a.proclaim('a2');
  await leader('a2');
  assert.equal(await election.leader(), 'a2');
  await a.resign();
  await soon('b wins', won);
  await leader('b');
  await observer.cancel();
  await b.resign();
  assert.equal(await election.leader(), undefined);
});
