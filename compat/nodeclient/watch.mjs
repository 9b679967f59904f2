// Watches: where they begin, what they tell, and how they end.

import assert from 'node:assert/strict';
import { Seen, both, eventually, put, streamed, texts } from './suite.mjs';

async function watching(builder, body) {
  const watcher = await builder.create();
  try {
    return await body(new Seen(watcher), watcher);
  } finally {
    await watcher.cancel();
  }
}

both('a watch from now', client =>
  watching(client.watch().key('watch/now'), async seen => {
    const revision = await put(client, 'watch/now');
    const [event] = await seen.events(1);
    assert.equal(event.type, 'Put');
    assert.equal(Number(event.kv.mod_revision), revision);
  }),
);

both('a watch from the past, over groups', async client => {
  const from = await put(client, 'b-past');
  await put(client, 'k-past', 't-past');
  const builder = client.watch().inRange({ start: 'b-past', end: 'u' }).startRevision(String(from));
  await streamed(client, async (stream, seen) => {
    stream.write({ create_request: builder.request });
    assert.equal((await seen.next()).created, true);
    assert.deepEqual(texts(await seen.events(3)), ['b-past', 'k-past', 't-past']);
  });
});

both('a watch from the future', async client => {
  const now = await put(client, 'watch/future');
  await streamed(client, async (stream, seen) => {
    stream.write({ create_request: { key: Buffer.from('watch/future'), start_revision: now + 2 } });
    await seen.next();
    await put(client, 'watch/future');
    const last = await put(client, 'watch/future');
    assert.equal(Number((await seen.events(1))[0].kv.mod_revision), last);
  });
});

both('a watch of a prefix tells what was before', async client => {
  await put(client, 'watch/before/1');
  await watching(client.watch().prefix('watch/before/').withPreviousKV(), async seen => {
    await put(client, 'watch/before0');
    await client.delete().prefix('watch/before/');
    const [event] = await seen.events(1);
    assert.equal(event.type, 'Delete');
    assert.equal(event.prev_kv.value.toString(), 'watch/before/1');
  });
});

both('filters', async client => {
  await watching(client.watch().key('watch/filter').only('put'), puts =>
    watching(client.watch().key('watch/filter').only('delete'), async deletes => {
      await put(client, 'watch/filter');
      await client.delete().key('watch/filter');
      await put(client, 'watch/filter');
      assert.deepEqual((await puts.events(2)).map(event => event.type), ['Put', 'Put']);
      assert.deepEqual((await deletes.events(1)).map(event => event.type), ['Delete']);
    }),
  );
});

both('a watch that begins too early', async client => {
  await put(client, 'watch/early');
  const now = await put(client, 'watch/early');
  await client.kv.compact({ revision: now });
  // A member that hasn't heard of this compaction does as before it.
  await eventually('all know of the compaction', () =>
    streamed(client, async (stream, seen) => {
      stream.write({ create_request: { key: Buffer.from('watch/early'), start_revision: 1 } });
      assert.equal((await seen.next()).created, true);
      const response = await seen.next();
      return response.canceled && Number(response.compact_revision) === now;
    }),
  );
});

both('a watch that is cancelled hears no more', client =>
  watching(client.watch().key('watch/cancel'), async (second, _) => {
    const watcher = await client.watch().key('watch/cancel').create();
    const first = new Seen(watcher);
    await put(client, 'watch/cancel');
    await first.events(1);
    await second.events(1);
    await watcher.cancel();
    await put(client, 'watch/cancel');
    await second.events(1);
    assert.equal(first.pending, 0);
  }),
);

both('ids are given or chosen', client =>
  streamed(client, async (stream, seen) => {
    const key = Buffer.from('x');
    const create = async fields => {
      stream.write({ create_request: { key, ...fields } });
      return seen.next();
    };
    assert.equal((await create({ watch_id: 7 })).watch_id, '7');
    const again = await create({ watch_id: 7 });
    assert.equal(again.canceled, true);
    assert.equal(again.cancel_reason, 'mvcc: duplicate watch ID provided on the WatchStream');
    assert.notEqual((await create({})).watch_id, '7');
    const empty = await create({ range_end: Buffer.from('a') });
    assert.equal(empty.cancel_reason, 'mvcc: watcher range is empty');
  }),
);

both('progress on request', client =>
  streamed(client, async (stream, seen) => {
    stream.write({ create_request: { key: Buffer.from('watch/progress') } });
    await seen.next();
    const revision = await put(client, 'elsewhere');
    await eventually('progress is told', async () => {
      stream.write({ progress_request: {} });
      const told = await seen.next();
      assert.equal(told.watch_id, '-1');
      assert.equal(told.events.length, 0);
      return Number(told.header.revision) >= revision;
    });
  }),
);

both('a transaction is one response', client =>
  watching(client.watch().inRange({ start: 'a', end: 'zz' }), async seen => {
    const keys = ['b-one', 'n-one', 'y-one'];
    await client.if('none', 'Create', '==', 0).then(...keys.map(key => client.put(key).value('1'))).commit();
    assert.deepEqual(texts((await seen.next()).events), keys);
  }),
);

both('many watches on one stream', async client => {
  const watchers = [];
  for (let n = 0; n < 50; n += 1) watchers.push(await client.watch().key(`many/${n}`).create());
  const seen = watchers.map(watcher => new Seen(watcher));
  for (let n = 0; n < 50; n += 1) {
    await put(client, `many/${n}`);
    assert.deepEqual(texts(await seen[n].events(1)), [`many/${n}`]);
  }
  for (const watcher of watchers) await watcher.cancel();
});

both('large revisions come in pieces', async client => {
  const size = 1_000_000;
  const begin = await put(client, 'e-large');
  const keys = ['e-large', 'n-large', 'y-large', 'yy-large'];
  for (const key of keys) await client.put(key).value('x'.repeat(size));
  await streamed(client, async (stream, seen) => {
    stream.write({
      create_request: { key: Buffer.from('e-large'), range_end: Buffer.from('z'), start_revision: begin + 1, fragment: true },
    });
    await seen.next();
    const came = [];
    let response;
    while (came.length < keys.length) {
      response = await seen.next();
      came.push(...response.events);
    }
    assert.deepEqual(texts(came), keys);
    assert(came.every(event => event.kv.value.length === size));
    assert.equal(response.fragment, false);
  });
});
