//! How two ends of a new connection agree who they are.
//!
//! ```text
//! dialler ── Hello ──► acceptor
//! dialler ◄── Hello ── acceptor      or Refusal, which says why
//!   lower ── Taken ──► higher        a number that only grows
//! ```
//!
//! Kept true: nothing but this is said until both know that they speak a common
//! version, are of one cluster, and are the nodes that the other means. The
//! lower node numbers the connections; when two nodes dial each other at once,
//! both keep the one with the highest number.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

use super::frame::{self, Frames, Kind};
use crate::codec::{Wire, wire};
use crate::position::NodeId;

/// The versions of the protocol that this code speaks.
pub(super) const VERSION_MIN: u32 = frame::VERSION_MIN as u32;
pub(super) const VERSION_MAX: u32 = frame::VERSION_MAX as u32;

/// Of the frames before both know what the other understands.
const VERSION_OF_GREETING: u8 = 1;

/// What every version begins its Hello with.
const MAGIC: &[u8] = b"PONTOON\n";

/// A stranger is allowed no longer frames than this.
const BODY_BYTES_MAX: usize = 4 << 10;

/// Who this node says it is.
pub(super) struct Identity {
    pub(super) me: NodeId,
    pub(super) cluster: u128,
    pub(super) incarnation: u64,
    pub(super) version_min: u32,
    pub(super) version_max: u32,
    /// Numbers the connections with higher nodes.
    pub(super) number_next: AtomicU64,
}

/// A connection on which both ends agree.
pub(super) struct Greeted<S> {
    pub(super) peer: NodeId,
    pub(super) incarnation: u64,
    pub(super) number: u64,
    /// Of the frames from now on.
    pub(super) version: u8,
    pub(super) frames: Frames<ReadHalf<S>>,
    pub(super) writer: WriteHalf<S>,
}

impl<S> Greeted<S> {
    /// Whether it takes the place of another connection with the same peer.
    pub(super) fn replaces(&self, other: (u64, u64)) -> bool {
        let (incarnation, number) = other;
        self.incarnation != incarnation || self.number > number
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum NotGreeted {
    /// This node won't talk to that one.
    #[error("{0}")]
    Refused(String),
    /// That node won't talk to this one.
    #[error("the peer refused: {0}")]
    RefusedByPeer(String),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Layout is for ever, up to the versions at least; later versions may append.
pub(super) struct Hello {
    version_min: u32,
    version_max: u32,
    cluster: (u64, u64),
    from: NodeId,
    to: NodeId,
    incarnation: u64,
}

wire!(struct Hello { version_min, version_max, cluster, from, to, incarnation });

impl Hello {
    fn cluster(&self) -> u128 {
        u128::from(self.cluster.0) << 64 | u128::from(self.cluster.1)
    }

    fn read(body: Bytes) -> Result<Self, NotGreeted> {
        let mut rest = match body.strip_prefix(MAGIC) {
            Some(rest) => body.slice_ref(rest),
            None => return Err(NotGreeted::Refused("it is no node".into())),
        };
        Self::take(&mut rest).ok_or(NotGreeted::Refused("its hello is cut".into()))
    }
}

impl Identity {
    /// Says who this is and hears who that is; `dialled` is who it should be,
    /// if this node made the connection.
    pub(super) async fn greet<S>(
        &self,
        stream: S,
        dialled: Option<NodeId>,
    ) -> Result<Greeted<S>, NotGreeted>
    where
        S: AsyncRead + AsyncWrite,
    {
        let (reader, mut writer) = tokio::io::split(stream);
        let mut frames = Frames::new(reader, BODY_BYTES_MAX);
        if let Some(peer) = dialled {
            say(&mut writer, Kind::Hello, &self.hello(peer)).await?;
        }
        let hello = Hello::read(hear(&mut frames, Kind::Hello).await?)?;
        if let Err(reason) = self.check(&hello, dialled) {
            // It is refused all the same if it does not hear why.
            let _ = say(&mut writer, Kind::Refusal, reason.as_bytes()).await;
            return Err(NotGreeted::Refused(reason));
        }
        let peer = hello.from;
        let version = self.version_max.min(hello.version_max);
        if dialled.is_none() {
            say(&mut writer, Kind::Hello, &self.hello(peer)).await?;
        }
        let number = if self.me < peer {
            let number = self.number_next.fetch_add(1, Ordering::Relaxed);
            say(&mut writer, Kind::Taken, &number.encode()).await?;
            number
        } else {
            let taken = hear(&mut frames, Kind::Taken).await?;
            u64::decode(taken).ok_or(NotGreeted::Refused(
                "it took a connection without number".into(),
            ))?
        };
        Ok(Greeted {
            peer,
            incarnation: hello.incarnation,
            number,
            version: u8::try_from(version).unwrap_or(frame::VERSION_MAX),
            frames,
            writer,
        })
    }

    fn hello(&self, to: NodeId) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let hello = Hello {
            version_min: self.version_min,
            version_max: self.version_max,
            cluster: ((self.cluster >> 64) as u64, self.cluster as u64),
            from: self.me,
            to,
            incarnation: self.incarnation,
        };
        hello.put(&mut out);
        out
    }

    fn check(&self, hello: &Hello, dialled: Option<NodeId>) -> Result<(), String> {
        let (me, from) = (self.me, hello.from);
        if hello.version_max < self.version_min || self.version_max < hello.version_min {
            return Err(format!(
                "node {from} speaks protocol versions {} to {}, node {me} speaks {} to {}",
                hello.version_min, hello.version_max, self.version_min, self.version_max
            ));
        }
        if hello.cluster() != self.cluster {
            return Err(format!(
                "node {from} is of cluster {:032x}, node {me} of cluster {:032x}",
                hello.cluster(),
                self.cluster
            ));
        }
        if let Some(peer) = dialled.filter(|peer| *peer != from) {
            return Err(format!("node {from} answers where node {peer} was dialled"));
        }
        if hello.to != me || from == me {
            return Err(format!(
                "node {from} looks for node {}, this is node {me}",
                hello.to
            ));
        }
        Ok(())
    }
}

async fn say(to: &mut (impl AsyncWrite + Unpin), kind: Kind, body: &[u8]) -> io::Result<()> {
    let mut out = Vec::new();
    frame::put(VERSION_OF_GREETING, kind, body, &mut out);
    to.write_all(&out).await?;
    to.flush().await
}

async fn hear(
    from: &mut Frames<impl AsyncRead + Unpin>,
    expected: Kind,
) -> Result<Bytes, NotGreeted> {
    let frame = from.next().await?;
    match frame.kind {
        kind if kind == expected => Ok(frame.body),
        Kind::Refusal => {
            let reason = String::from_utf8_lossy(&frame.body).into_owned();
            Err(NotGreeted::RefusedByPeer(reason))
        }
        kind => Err(NotGreeted::Refused(format!(
            "it said {kind:?}, not {expected:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(me: u64, change: impl FnOnce(&mut Identity)) -> Identity {
        let mut identity = Identity {
            me: NodeId(me),
            cluster: 1 << 100 | 7,
            incarnation: 10 + me,
            version_min: 1,
            version_max: 3,
            number_next: AtomicU64::new(5),
        };
        change(&mut identity);
        identity
    }

    /// One dials the other as node 2; gives what both make of it: the peer,
    /// its incarnation and the number, or why not.
    async fn meet(dialler: Identity, acceptor: Identity) -> [Result<(u64, u64, u64), String>; 2] {
        let (one, other) = tokio::io::duplex(64);
        let (dialled, accepted) = tokio::join!(
            dialler.greet(one, Some(NodeId(2))),
            acceptor.greet(other, None)
        );
        [dialled, accepted].map(|greeted| match greeted {
            Ok(greeted) => Ok((greeted.peer.0, greeted.incarnation, greeted.number)),
            Err(error) => Err(error.to_string()),
        })
    }

    async fn refused(dialler: Identity, acceptor: Identity, reason: &str) {
        let by_peer = format!("the peer refused: {reason}");
        let [dialled, accepted] = meet(dialler, acceptor).await;
        assert_eq!(accepted, Err(reason.into()));
        assert_eq!(dialled, Err(by_peer));
    }

    #[tokio::test]
    async fn both_ends_agree_who_they_are_and_on_the_number() {
        let met = meet(node(1, |_| {}), node(2, |_| {})).await;
        assert_eq!(met, [Ok((2, 12, 5)), Ok((1, 11, 5))]);
        let met = meet(node(3, |n| n.number_next = 9.into()), node(2, |_| {})).await;
        assert_eq!(met, [Ok((2, 12, 5)), Ok((3, 13, 5))]);
        // Ranges that only touch.
        let old = node(1, |n| (n.version_min, n.version_max) = (0, 1));
        assert!(meet(old, node(2, |_| {})).await[1].is_ok());
    }

    #[tokio::test]
    async fn another_version_is_refused_and_both_are_named() {
        let new = node(1, |n| (n.version_min, n.version_max) = (4, 9));
        let reason = "node 1 speaks protocol versions 4 to 9, node 2 speaks 1 to 3";
        refused(new, node(2, |_| {}), reason).await;
        let old = node(1, |n| (n.version_min, n.version_max) = (0, 0));
        let reason = "node 1 speaks protocol versions 0 to 0, node 2 speaks 1 to 3";
        refused(old, node(2, |_| {}), reason).await;
    }

    #[tokio::test]
    async fn another_cluster_is_refused() {
        let reason = "node 1 is of cluster 00000010000000000000000000000008, \
                      node 2 of cluster 00000010000000000000000000000007";
        let other = node(1, |n| n.cluster += 1);
        refused(other, node(2, |_| {}), reason).await;
        let other = node(1, |n| n.cluster = 7);
        assert!(meet(other, node(2, |_| {})).await[1].is_err());
    }

    #[tokio::test]
    async fn another_node_than_the_one_dialled_is_refused() {
        let reason = "node 1 looks for node 2, this is node 3";
        refused(node(1, |_| {}), node(3, |_| {}), reason).await;
        refused(
            node(2, |_| {}),
            node(2, |_| {}),
            "node 2 looks for node 2, this is node 2",
        )
        .await;
        // An acceptor that does not mind is refused by the dialler.
        let (one, other) = tokio::io::duplex(1000);
        let (dialler, liar) = (node(1, |_| {}), node(3, |_| {}));
        let (reader, mut writer) = tokio::io::split(other);
        say(&mut writer, Kind::Hello, &liar.hello(NodeId(1)))
            .await
            .unwrap();
        let error = dialler.greet(one, Some(NodeId(2))).await.err().unwrap();
        assert_eq!(error.to_string(), "node 3 answers where node 2 was dialled");
        let mut heard = Frames::new(reader, 1000);
        assert_eq!(heard.next().await.unwrap().kind, Kind::Hello);
        assert_eq!(heard.next().await.unwrap().kind, Kind::Refusal);
    }

    #[tokio::test]
    async fn what_is_no_hello_is_refused() {
        let mut hello = node(1, |_| {}).hello(NodeId(2));
        hello[0] ^= 1;
        let cut = &node(1, |_| {}).hello(NodeId(2))[..12];
        let cases = [
            (Kind::Hello, hello.as_slice(), "it is no node"),
            (Kind::Hello, cut, "its hello is cut"),
            (Kind::Message, b"x", "it said Message, not Hello"),
            (
                Kind::Hello,
                &[0; BODY_BYTES_MAX + 1],
                "a frame of 4097 bytes, more than 4096",
            ),
        ];
        for (kind, body, reason) in cases {
            let (mut one, other) = tokio::io::duplex(10_000);
            say(&mut one, kind, body).await.unwrap();
            let error = node(2, |_| {}).greet(other, None).await.err().unwrap();
            assert_eq!(error.to_string(), reason);
        }
    }

    #[tokio::test]
    async fn a_later_version_may_say_more_in_its_hello() {
        let mut hello = node(1, |n| n.version_max = 9).hello(NodeId(2));
        hello.extend_from_slice(b"more");
        let (mut one, other) = tokio::io::duplex(1000);
        say(&mut one, Kind::Hello, &hello).await.unwrap();
        say(&mut one, Kind::Taken, &77_u64.encode()).await.unwrap();
        let greeted = node(2, |_| {}).greet(other, None).await.ok().unwrap();
        assert_eq!((greeted.peer, greeted.number), (NodeId(1), 77));
    }
}
