//! The state of one range replica: what etcd promises about keys, revisions,
//! history and leases attached to keys, on a memory-mapped B-tree.
//!
//! The crate refuses to know Raft, the network and the clock.

mod apply;
mod checkpoint;
mod copying;
mod counters;
mod counts;
mod effects;
mod entry;
mod error;
mod evaluate;
mod events;
pub mod format;
mod hash;
pub mod inspect;
mod keys;
mod node;
mod open;
mod pages;
mod pending;
mod position;
mod read;
mod request;
mod shed;
mod snapshot;
mod space;
mod split;
mod store;
mod sweep;
mod sync;
mod tables;
mod tally;
mod tend;
mod tree;
mod version;

pub use copying::Copying;
pub use counters::Counters;
pub use effects::{Effect, Effects, Staged};
pub use entry::{Entry, Step};
pub use error::{EngineError, Reject};
pub use evaluate::{Evaluated, check, evaluate, join, part, range};
pub use events::{Event, EventKind, EventsRead, ReadBudget};
pub use hash::HashMoment;
pub use keys::KeyRange;
pub use pending::{Changes, Pending};
pub use position::{Applied, Change, Revision, Ticket};
pub use request::*;
pub use snapshot::{Install, Piece, Snapshot};
pub use split::Split;
pub use store::{Config, ContentHash, Store};
