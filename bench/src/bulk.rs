//! A range with much in it, and puts all over it.
//!
//! Kept true: the keys of a range lie evenly between its first place and the
//! first place of the next one.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pontoon_engine::{Answer, Op, Put, Request, Txn};
use pontoon_raftgroup::{Failure, Node};

use crate::load::Load;
use crate::nodes::{WITHIN, key};
use crate::proc;

static VALUE: [u8; 1024] = [7; 1024];
const CLIENTS: usize = 8;
const PUTS_PER_TXN: u64 = 64;
/// Longest that a full range is waited for.
const REST_MAX: Duration = Duration::from_secs(20);

/// Keys of a range, each with 1 KiB.
#[derive(Clone, Debug)]
pub struct Bulk {
    /// Where they are.
    pub places: Range<u32>,
    /// How many.
    pub count: u64,
}

impl Bulk {
    /// As many keys as have so many bytes with their values.
    #[must_use]
    pub fn new(places: Range<u32>, bytes: u64) -> Self {
        let each = VALUE.len() as u64 + 16;
        let count = bytes.div_ceil(each);
        Self { places, count }
    }

    /// What keys and values have together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.count * (VALUE.len() + self.key(0).len()) as u64
    }

    /// The first key of the second half.
    #[must_use]
    pub fn middle(&self) -> Bytes {
        key(u32::midpoint(self.places.start, self.places.end) as u16)
    }

    fn key(&self, number: u64) -> Bytes {
        let span = u64::from(self.places.end - self.places.start);
        let place = u64::from(self.places.start) + number * span / self.count;
        format!("key/{place:04x}/{number:07}").into()
    }

    /// Puts all keys, and returns when what that left to do is done.
    pub async fn fill(&self, node: &Node) -> io::Result<()> {
        let next = Arc::new(AtomicU64::new(0));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (bulk, node, next) = (self.clone(), node.clone(), Arc::clone(&next));
                tokio::spawn(async move {
                    loop {
                        let first = next.fetch_add(PUTS_PER_TXN, Ordering::Relaxed);
                        if first >= bulk.count {
                            return Ok::<_, Failure>(());
                        }
                        let numbers = first..bulk.count.min(first + PUTS_PER_TXN);
                        let puts = numbers.map(|number| Op::Put(bulk.put(number)));
                        let request = Request::Txn(Txn {
                            success: puts.collect(),
                            ..Txn::default()
                        });
                        until_served(&node, request).await?;
                    }
                })
            })
            .collect();
        for client in clients {
            let filled = client.await.map_err(io::Error::other)?;
            filled.map_err(io::Error::other)?;
        }
        at_rest().await
    }

    fn put(&self, number: u64) -> Put {
        Put {
            key: self.key(number),
            value: Bytes::from_static(&VALUE),
            ..Put::default()
        }
    }

    /// Clients that put at these keys, all over, so many times a second.
    #[must_use]
    pub fn load(&self, node: &Node, clients: usize, per_second: u32) -> Load {
        let (bulk, node) = (self.clone(), node.clone());
        Load::paced(clients, per_second, move |_, chance| {
            let number = (u64::from(chance) * bulk.count) >> 32;
            let (put, node) = (bulk.put(number), node.clone());
            async move {
                until_served(&node, Request::Put(put)).await?;
                Ok(true)
            }
        })
    }
}

/// Returns when nothing was written to disk for a while.
async fn at_rest() -> io::Result<()> {
    let (start, mut before) = (Instant::now(), u64::MAX);
    while start.elapsed() < REST_MAX {
        let written = proc::disk_written_bytes()?;
        if written == before {
            return Ok(());
        }
        before = written;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// Asks again as long as it is not known to be done.
async fn until_served(node: &Node, request: Request) -> Result<Answer, Failure> {
    loop {
        match node.request(request.clone(), WITHIN).await {
            Err(Failure::TooManyRequests | Failure::NoLeader | Failure::LeaderChanged) => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            served => return served,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lie_evenly_and_in_order_within_their_places() {
        let bulk = Bulk::new(0x4000..0x8000, 10 << 20);
        let keys: Vec<_> = (0..bulk.count).map(|number| bulk.key(number)).collect();
        assert!(keys.is_sorted());
        assert!(keys[0] >= key(0x4000) && keys[keys.len() - 1] < key(0x8000));
        let below = keys.partition_point(|key| *key < bulk.middle());
        assert!(below.abs_diff(keys.len() / 2) <= 1, "{below}");
        assert!(bulk.bytes() >= 10 << 20);
    }
}
