//! The members of the cluster.

/// A member, as the root group knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it is reached.
    pub address: String,
    /// Whether it only listens: it has all data, but no vote.
    pub learner: bool,
}
