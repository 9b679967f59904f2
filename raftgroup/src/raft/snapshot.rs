//! Checkpoints on their way to a replica that is too far behind for the log.
//!
//! Kept true: disks are waited for where nobody else does, see `tenders.rs`; a
//! bounded number of pieces is under way; the receiver takes each
//! piece once and in order, checked, and has one copy in the making at a time,
//! the one that began last. Only a whole copy is installed, and until it is,
//! no other begins: they would have the same name on disk.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use futures_util::stream::FuturesOrdered;
use openraft::errors::StreamingError;
use openraft::raft::SnapshotResponse;
use openraft::{AnyError, AsyncRuntime, StorageError};
use parking_lot::Mutex;
use pontoon_engine::{EngineError, Install, Piece, Snapshot as Pages};
use rand::Rng;
use tokio::sync::oneshot;

use crate::counters::{Counters, Transfer};
use crate::position::NodeId;
use crate::raft::machine::{Replica, Snapshot, SnapshotData};
use crate::raft::message::{Answer, Request};
use crate::raft::peers::{Link, mistaken};
use crate::raft::types::{SnapshotMeta, Types, Vote};
use crate::runtime::Runtime;

/// How long a piece may take; only the installation of all takes longer.
const PIECE_WITHIN: Duration = Duration::from_secs(10);

/// Sends a snapshot and waits until it is installed. When this is dropped,
/// nothing more is sent.
pub(crate) async fn send(
    link: &Link,
    vote: Vote,
    snapshot: Snapshot,
    within: Duration,
) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
    let SnapshotData::Pinned { pages, formats } = snapshot.snapshot else {
        return Err(unreadable("it has no content"));
    };
    // So that a late piece of an earlier try is not taken for one of this.
    let id = Runtime::thread_rng().next_u64();
    let begin = Request::SnapshotBegin {
        formats,
        id,
        vote,
        last: snapshot.meta.last_log_id,
        membership: snapshot.meta.last_membership,
    };
    let pages = Arc::new(pages);
    let mut under_way = FuturesOrdered::new();
    under_way.push_back(link.ask(&begin, within.min(PIECE_WITHIN)));
    let mut pieces = 0;
    let no_thread = |error: io::Error| unreadable(&error.to_string());
    let mut next = Some(read(link, &pages, 0).map_err(no_thread)?);
    while next.is_some() || !under_way.is_empty() {
        let piece = tokio::select! {
            biased;
            Some(answer) = under_way.next() => match answer {
                Ok(Answer::Taken) => continue,
                Ok(Answer::HigherVote(vote)) => return Ok(SnapshotResponse::new(vote)),
                Ok(_) => return Err(mistaken().into()),
                Err(error) => return Err(error.into()),
            },
            Some(piece) = OptionFuture::from(next.as_mut()),
                if under_way.len() < link.links.window.max(1) => piece,
        };
        let piece = piece.map_err(|_| unreadable("the node has ended"))?;
        let piece = piece.map_err(|error| {
            link.failed((&error).into());
            unreadable(&error.to_string())
        })?;
        let Some(piece) = piece else {
            next = None;
            continue;
        };
        next = Some(read(link, &pages, piece.next()).map_err(no_thread)?);
        let request = Request::SnapshotPiece {
            id,
            number: pieces,
            page: piece.page,
            bytes: piece.bytes,
        };
        pieces += 1;
        under_way.push_back(link.ask(&request, within.min(PIECE_WITHIN)));
    }
    let end = Request::SnapshotEnd { id, pieces };
    match link.ask(&end, within).await? {
        Answer::Installed(vote) | Answer::HigherVote(vote) => Ok(SnapshotResponse::new(vote)),
        _ => Err(mistaken().into()),
    }
}

type Read = oneshot::Receiver<Result<Option<Piece>, EngineError>>;

/// Begins to read the next piece.
fn read(link: &Link, pages: &Arc<Pages>, page: u64) -> io::Result<Read> {
    let (done, read) = oneshot::channel();
    let pages = Arc::clone(pages);
    let part = move || {
        // Nobody waits any more: the snapshot isn't sent.
        let _ = done.send(pages.read(page));
    };
    link.links.tenders.copy(link.links.group, part)?;
    Ok(read)
}

fn unreadable(reason: &str) -> StreamingError<Types> {
    StorageError::read_snapshot(None, AnyError::error(reason)).into()
}

/// The copy that is being received or installed, if one is.
pub(crate) struct Incoming {
    state: Mutex<State>,
    counters: Arc<Counters>,
}

#[derive(Default)]
enum State {
    #[default]
    Nothing,
    Receiving(Box<Copy>),
    Installing,
    /// The replica has ended.
    Closed,
}

struct Copy {
    from: NodeId,
    id: u64,
    vote: Vote,
    meta: SnapshotMeta,
    install: Install,
    /// How many pieces are here.
    pieces: u64,
    transfer: Transfer,
}

impl Incoming {
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self {
            state: Mutex::default(),
            counters,
        }
    }

    /// Begins a copy in place of the one before it.
    pub(crate) fn begin(
        &self,
        replica: &Replica,
        from: NodeId,
        id: u64,
        vote: Vote,
        meta: SnapshotMeta,
    ) -> Result<(), String> {
        let mut incoming = self.state.lock();
        match *incoming {
            State::Installing => return Err("another snapshot is being installed".to_owned()),
            State::Closed => return Err("the replica has ended".to_owned()),
            State::Nothing | State::Receiving(_) => *incoming = State::Nothing,
        }
        let install = Install::begin(replica.disk(), replica.path());
        *incoming = State::Receiving(Box::new(Copy {
            from,
            id,
            vote,
            meta,
            install: install.map_err(|error| error.to_string())?,
            pieces: 0,
            transfer: Transfer::begin(self.counters.snapshots_from(from)),
        }));
        Ok(())
    }

    /// Writes the next piece.
    pub(crate) fn add(
        &self,
        from: NodeId,
        id: u64,
        number: u64,
        page: u64,
        bytes: Bytes,
    ) -> Result<(), String> {
        let mut incoming = self.state.lock();
        let copy = expected(&mut incoming, from, id)?;
        if number != copy.pieces {
            let next = copy.pieces;
            return Err(format!("piece {number} came, piece {next} is the next one"));
        }
        let added = copy.install.add(&Piece { page, bytes });
        added.map_err(|error| error.to_string())?;
        copy.pieces += 1;
        Ok(())
    }

    /// Takes the copy out, if all of it is here. It is being installed from
    /// then on, until [`Incoming::installed`].
    pub(crate) fn end(
        &self,
        from: NodeId,
        id: u64,
        pieces: u64,
    ) -> Result<(Vote, Snapshot), String> {
        let mut incoming = self.state.lock();
        let here = expected(&mut incoming, from, id)?.pieces;
        if here != pieces {
            return Err(format!("{here} of {pieces} pieces came"));
        }
        let State::Receiving(copy) = std::mem::replace(&mut *incoming, State::Installing) else {
            unreachable!("it was just looked at");
        };
        copy.transfer.done();
        let snapshot = Snapshot {
            meta: copy.meta,
            snapshot: SnapshotData::Received(copy.install),
        };
        Ok((copy.vote, snapshot))
    }

    /// The copy that was taken out is installed, or isn't wanted.
    pub(crate) fn installed(&self) {
        let mut incoming = self.state.lock();
        if matches!(*incoming, State::Installing) {
            *incoming = State::Nothing;
        }
    }

    /// Gives up what is under way; nothing begins any more.
    pub(crate) fn close(&self) {
        *self.state.lock() = State::Closed;
    }
}

fn expected(incoming: &mut State, from: NodeId, id: u64) -> Result<&mut Copy, String> {
    match incoming {
        State::Receiving(copy) if copy.from != from || copy.id != id => Err(format!(
            "snapshot {id} of node {from} was replaced by {} of node {}",
            copy.id, copy.from
        )),
        State::Receiving(copy) => Ok(copy),
        _ => Err(format!("snapshot {id} of node {from} has not begun")),
    }
}
