// Members and their state, and what clients see when one of them dies.

import assert from 'node:assert/strict';
import test from 'node:test';
import { noop } from 'cockatiel';
import { Seen, both, connected, eventually, ofThree, one, order, put, refused, three } from './suite.mjs';

both('members are listed', async (client, hosts) => {
  const { members } = await client.cluster.memberList({ linearizable: true });
  assert.deepEqual(members.flatMap(member => member.clientURLs).sort(), hosts.map(host => `http://${host}`).sort());
});

both('a learner comes and goes', async (client, hosts) => {
  const peerURLs = ['http://127.0.0.1:1'];
  // etcd adds none until all have been there for some seconds.
  const { member } = await eventually('members are in touch', () =>
    client.cluster.memberAdd({ peerURLs, isLearner: true }),
  );
  try {
    assert.equal(member.isLearner, true);
    assert.equal((await client.cluster.memberList({ linearizable: true })).members.length, hosts.length + 1);
    const alsoThere = [...peerURLs, 'http://127.0.0.1:5'];
    await refused('etcdserver: Peer URLs already exists', client.cluster.memberAdd({ peerURLs: alsoThere }));
    await refused(
      'etcdserver: too many learner members in cluster',
      client.cluster.memberAdd({ peerURLs: ['http://127.0.0.1:2'], isLearner: true }),
    );
    await refused(
      'etcdserver: can only promote a learner member which is in sync with leader',
      client.cluster.memberPromote({ ID: member.ID }),
    );
    await client.cluster.memberUpdate({ ID: member.ID, peerURLs: ['http://127.0.0.1:3'] });
  } finally {
    await client.cluster.memberRemove({ ID: member.ID });
  }
  assert.equal((await client.cluster.memberList({ linearizable: true })).members.length, hosts.length);
});

both('members that are not there', async client => {
  await refused('etcdserver: member not found', client.cluster.memberRemove({ ID: 12345 }));
  await refused(
    'etcdserver: member not found',
    client.cluster.memberUpdate({ ID: 12345, peerURLs: ['http://127.0.0.1:4'] }),
  );
  await refused('etcdserver: member not found', client.cluster.memberPromote({ ID: 12345 }));
});

both('status', async client => {
  const status = await eventually('there is a leader', async () => {
    const found = await client.maintenance.status();
    return found.leader !== '0' && found;
  });
  const { members } = await client.cluster.memberList({ linearizable: true });
  assert(members.some(member => member.ID === status.leader));
  assert(Number(status.raftTerm) > 0 && Number(status.dbSize) > 0);
  assert.match(status.version, /^\d+\.\d+\.\d+/);
});

both('hash', async client => {
  const revision = await put(client, 'hash');
  await eventually('it has the revision', async () => Number((await client.maintenance.hash()).header.revision) >= revision);
});

both('defragment', async client => {
  await client.maintenance.defragment();
  await put(client, 'defragmented');
});

// A client that takes a refusal as it is, and doesn't wait before it asks again.
const atOnce = { faultHandling: { global: noop, host: () => noop } };

for (const [name, host] of [['one', one[0]], ['three', three[0]]]) {
  test(`an alarm, ${name}`, () =>
    connected(host, async client => {
      await put(client, 'alarm');
      const memberID = (await client.maintenance.status()).header.member_id;
      const alarm = 'Nospace';
      const raised = await client.maintenance.alarm({ action: 'Activate', memberID, alarm });
      try {
        assert.deepEqual(raised.alarms.map(found => found.memberID), [memberID]);
        const full = 'etcdserver: mvcc: database space exceeded';
        await refused(full, client.put('alarm').value('x').exec());
        await refused(full, client.leaseClient.leaseGrant({ TTL: 10 }));
        assert.equal((await client.delete().key('alarm')).deleted, '1');
      } finally {
        await client.maintenance.alarm({ action: 'Deactivate', memberID, alarm });
      }
      assert.deepEqual((await client.maintenance.alarm({ action: 'Get' })).alarms, []);
      await eventually('writes go on', () => put(client, 'alarm'));
    }, atOnce));
}

ofThree('the leader moves', async client => {
  const leads = () =>
    eventually('there is a leader', async () => {
      const { leader } = await client.maintenance.status();
      return leader !== '0' && leader;
    });
  const old = await leads();
  const { members } = await client.cluster.memberList({ linearizable: true });
  const place = members.find(member => member.ID === old).clientURLs[0];
  const target = members.find(member => member.ID !== old).ID;
  await connected(place, leader => leader.maintenance.moveLeader({ targetID: target }));
  await eventually('it leads', async () => (await leads()) === target);
  await eventually('writes go on', () => put(client, 'moved'));
});

// Kills each member once, one after the other, with something done meanwhile.
// The client is at any of them, so whatever it relies on dies at least once.
async function killEach(body) {
  for (let at = 0; at < three.length; at += 1) {
    await order('kill', at);
    try {
      await body(at);
    } finally {
      await order('start', at);
    }
  }
}

ofThree('a watch goes on when members die', async client => {
  const prefix = `resume-${Date.now()}/`;
  const watcher = await client.watch().prefix(prefix).create();
  const seen = new Seen(watcher);
  const wanted = [];
  const write = async () => {
    const key = `${prefix}${String(wanted.length).padStart(3, '0')}`;
    wanted.push(key);
    await eventually('writes go on', () => client.put(key).value(''));
  };
  for (let n = 0; n < 10; n += 1) await write();
  await killEach(async () => {
    for (let n = 0; n < 10; n += 1) await write();
  });
  const came = [];
  let last = 0;
  while (!wanted.every(key => came.includes(key))) {
    for (const event of (await seen.next('another event')).events) {
      assert(Number(event.kv.mod_revision) > last, `${event.kv.key} came again or too late`);
      last = Number(event.kv.mod_revision);
      came.push(event.kv.key.toString());
    }
  }
  await watcher.cancel();
});

ofThree('a keepalive goes on when members die', async client => {
  const lease = client.lease(10);
  let lost;
  lease.on('lost', error => (lost = error));
  const kept = new Seen(lease, 'keepaliveSucceeded');
  const ID = await lease.grant();
  await eventually('it has a key', () => client.put(`kept-${ID}`).value('').lease(ID));
  await killEach(async () => {
    // Two renewals after the death: what was under way doesn't count.
    while (kept.pending > 0) await kept.next();
    for (let n = 0; n < 2; n += 1) assert.equal((await kept.next('a renewal')).TTL, '10');
  });
  assert.equal(lost, undefined);
  assert.deepEqual(await eventually('it answers', async () => [await client.get(`kept-${ID}`)]), ['']);
  await eventually('it is revoked', async () => [await lease.revoke()]);
});

ofThree('what was written while a member was dead is there when it is back', async client => {
  const keys = [...'adhnqtx'].map(first => `${first}-back`);
  await killEach(async at => {
    for (const key of keys) await eventually('writes go on', () => client.put(key).value(`back ${at}`));
  });
  for (const host of three) {
    await connected(host, async member => {
      for (const key of keys) assert.equal(await eventually('it answers', () => member.get(key)), 'back 2');
    });
  }
});
