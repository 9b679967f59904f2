//! What a control plane stores: where, and how large it is.

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::values::ValueSizes;

/// Values of each kind that are made once and sent again and again.
const VARIANTS: usize = 32;
/// Namespaces that pods are dealt to.
const NAMESPACES: u64 = 64;

/// A resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lease,
    Node,
    Pod,
    Event,
    Slice,
    ReplicaSet,
}

impl Kind {
    pub(super) const ALL: [Self; 6] = [
        Self::Lease,
        Self::Node,
        Self::Pod,
        Self::Event,
        Self::Slice,
        Self::ReplicaSet,
    ];

    /// Where it is stored.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Lease => "leases/kube-node-lease/",
            Self::Node => "minions/",
            Self::Pod => "pods/",
            Self::Event => "events/",
            Self::Slice => "endpointslices/",
            Self::ReplicaSet => "replicasets/",
        }
    }

    /// What one of them is called there.
    pub(super) fn name(self, id: u64) -> String {
        let namespace = id % NAMESPACES;
        match self {
            Self::Lease | Self::Node => format!("node-{id:06}"),
            Self::Pod => format!("namespace-{namespace:02}/pod-{id:012}"),
            Self::Event => format!("namespace-{namespace:02}/pod.{id:016x}"),
            Self::Slice | Self::ReplicaSet => format!("namespace-{namespace:02}/service-{id:08}"),
        }
    }

    /// As protobuf, with the fields that kubelets and controllers manage.
    pub(super) fn sizes(self) -> ValueSizes {
        let (least, most) = match self {
            Self::Lease => (440, 520),
            Self::Node => (10 << 10, 14 << 10),
            Self::Pod => (2 << 10, 8 << 10),
            Self::Event => (560, 760),
            Self::Slice => (1 << 10, 1792),
            Self::ReplicaSet => (1200, 1700),
        };
        ValueSizes::Uniform(least, most)
    }
}

/// Values of all kinds.
#[derive(Debug)]
pub(super) struct Values(Vec<Vec<Bytes>>);

impl Values {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut values = |kind: Kind| {
            let values = (0..VARIANTS).map(|_| kind.sizes().value(&mut rng));
            values.collect()
        };
        Self(Kind::ALL.into_iter().map(&mut values).collect())
    }

    pub(super) fn any(&self, kind: Kind, rng: &mut SmallRng) -> Bytes {
        self.0[kind as usize][rng.random_range(0..VARIANTS)].clone()
    }
}
