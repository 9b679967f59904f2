//! The network between nodes: a trait, because a simulation must replace it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::position::NodeId;
use crate::runtime::Scope;

/// Carries messages between this node and others, on one connection for each pair.
pub trait Network: Send + Sync + 'static {
    /// Starts to deliver what arrives for this node; runs its tasks in `scope`.
    /// Once only.
    fn start(&self, scope: &Scope, inbox: Arc<dyn Inbox>) -> io::Result<()>;

    /// Queues a message for a peer. Never waits; on an error the message is not sent.
    fn send(&self, to: NodeId, message: Bytes) -> Result<(), Unsent>;

    /// Nodes to be connected with (not this one), and where they are; replaces
    /// the earlier list. Others may still connect themselves with this node.
    fn set_peers(&self, peers: &BTreeMap<NodeId, String>);
}

/// What a [`Network`] delivers to; its calls must not block.
///
/// For each peer they come one after the other: `connected`, what was
/// `received` on that connection in the order sent, `lost`, and so on. From
/// `lost` on nothing more is queued for the connection it speaks of.
pub trait Inbox: Send + Sync + 'static {
    /// A message arrived.
    fn received(&self, from: NodeId, message: Bytes);

    /// There is a new connection: what was sent on the old one may be lost.
    fn connected(&self, peer: NodeId);

    /// The connection is gone.
    fn lost(&self, peer: NodeId);
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// Nobody said where this node is.
    #[error("the node is not known")]
    Unknown,
    /// There is no connection now.
    #[error("the node is not connected")]
    NotConnected,
    /// The peer does not keep up; sending again later may help.
    #[error("too much is queued for the node")]
    Full,
    /// The message is longer than any peer accepts.
    #[error("the message is too long")]
    TooLong,
}
