// What the tests share: two clusters, clients of them, and waiting.
//
// `clusters` starts one member and three; they end with this process.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { after, test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';

import { Etcd3 } from 'etcd3';

// What takes longer is not coming. Nothing waits for this if all is well.
export const patience = 30_000;

const { CLUSTERS, SERVER, SPLITS } = process.env;
const clusters = spawn(CLUSTERS, [SERVER, ...(SPLITS ? [SPLITS] : [])], {
  stdio: ['pipe', 'pipe', 'inherit'],
});
const lines = createInterface({ input: clusters.stdout })[Symbol.asyncIterator]();

async function line() {
  const { value, done } = await lines.next();
  assert(!done, 'the clusters have ended');
  return value;
}

async function places(name) {
  const [first, ...found] = (await line()).split(' ');
  assert.equal(first, name);
  return found;
}

export const one = await places('one');
export const three = await places('three');

// Kills or starts a member of the three.
export async function order(verb, at) {
  clusters.stdin.write(`${verb} ${at}\n`);
  assert.equal(await line(), 'done');
}

after(async () => {
  clusters.stdin.end();
  await once(clusters, 'exit');
});

// Runs with a client, and closes it.
export async function connected(hosts, body, options = {}) {
  const client = new Etcd3({
    hosts,
    ...options,
    defaultCallOptions: context => (context.isStream ? {} : { deadline: Date.now() + patience }),
  });
  try {
    return await body(client, hosts);
  } finally {
    client.close();
  }
}

// A case with a client of the one member, and with one of the three.
export function both(name, body) {
  test(`${name}, one`, { timeout: 2 * patience }, () => connected(one, body));
  test(`${name}, three`, { timeout: 2 * patience }, () => connected(three, body));
}

// A case that is about the three alone.
export function ofThree(name, body) {
  test(name, { timeout: 6 * patience }, () => connected(three, body));
}

// A call must fail, with etcd's text.
export async function refused(text, call) {
  await assert.rejects(call, error => {
    assert(error.message.includes(text), `${error.message} instead of ${text}`);
    return true;
  });
}

// Waits until something is so, whatever goes wrong meanwhile.
export async function eventually(what, done) {
  const deadline = Date.now() + patience;
  let last;
  while (Date.now() < deadline) {
    try {
      const result = await done();
      if (result) return result;
    } catch (error) {
      last = error;
    }
    await pause(20);
  }
  assert.fail(`${what}: not in time; ${last}`);
}

// What comes must come in time.
export function soon(what, promise) {
  const timer = new AbortController();
  const late = pause(patience, undefined, { signal: timer.signal }).then(() =>
    assert.fail(`${what}: not in time`),
  );
  late.catch(() => undefined);
  return Promise.race([promise, late]).finally(() => timer.abort());
}

// Puts keys, each with itself as its value; the revision of the last.
export async function put(client, ...keys) {
  let revision;
  for (const key of keys) revision = Number((await client.put(key).value(key)).header.revision);
  return revision;
}

// Collects what an emitter or a stream emits, to be waited for.
export class Seen {
  #came = [];
  #wake = () => undefined;

  constructor(emitter, event = 'data') {
    emitter.on(event, value => {
      this.#came.push(value);
      this.#wake();
    });
  }

  get pending() {
    return this.#came.length;
  }

  next(what = 'something comes') {
    return soon(what, this.#next());
  }

  async #next() {
    while (this.#came.length === 0) await new Promise(resolve => (this.#wake = resolve));
    return this.#came.shift();
  }

  // Events of as many responses as it takes.
  async events(count) {
    const events = [];
    while (events.length < count) events.push(...(await this.next()).events);
    return events;
  }
}

// A watch stream without the client's help: everything can be asked for.
export async function streamed(client, body) {
  const stream = await client.watchClient.watch();
  stream.on('error', () => undefined);
  const seen = new Seen(stream);
  try {
    return await body(stream, seen);
  } finally {
    stream.cancel();
  }
}

export const texts = events => events.map(event => event.kv.key.toString());
